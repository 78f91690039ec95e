package verify

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
)

func TestServing(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
	if err := serving(t.Context(), []string{port}); err != nil {
		t.Errorf("what listens: %v", err)
	}
	l.Close()
	late, cancel := context.WithCancelCause(t.Context())
	cancel(fmt.Errorf("it is late"))
	if err := serving(late, []string{port}); err == nil || !strings.Contains(err.Error(), "it is late") {
		t.Errorf("what does not: %v", err)
	}
	for _, args := range [][]string{nil, {"0"}, {"65536"}, {"http"}, {"80", "81"}} {
		if err := serving(t.Context(), args); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
}
