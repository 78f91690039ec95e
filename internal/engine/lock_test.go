package engine

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// An engine that ends while a lock is given back keeps it: the process whose it was is
// alive, and takes it away itself. What it holds it does not.
func TestLockThatWasNotTakenBack(t *testing.T) {
	var mu sync.Mutex
	there, removed := "left", []string(nil)
	e := answered(t, func(w http.ResponseWriter, r *http.Request, path string) {
		mu.Lock()
		defer mu.Unlock()
		say := func(status int, v any) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			json.NewEncoder(w).Encode(v)
		}
		switch {
		case path == "/containers/create" && there != "":
			say(http.StatusConflict, map[string]string{"message": "Conflict"})
		case path == "/containers/create":
			there = "new"
			say(http.StatusCreated, map[string]string{"Id": there})
		case r.Method == http.MethodDelete:
			removed = append(removed, there)
			there = ""
			w.WriteHeader(http.StatusNoContent)
		case strings.HasSuffix(path, "/json"):
			say(http.StatusOK, map[string]any{"Id": there, "Created": time.Now().Format(time.RFC3339Nano),
				"Config": map[string]any{"Labels": map[string]string{labelOwner: owner(os.Getpid())}}})
		default:
			say(http.StatusNotFound, map[string]string{"message": path})
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	unlock, err := e.lock(ctx, "image")
	if err != nil || there != "new" || len(removed) != 1 || removed[0] != "left" {
		t.Fatalf("%v, %q is there, %q removed", err, there, removed)
	}
	short, cancelShort := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancelShort()
	if _, err := e.lock(short, "image"); err == nil || there != "new" {
		t.Errorf("a lock that is held was taken: %v", err)
	}
	if err := unlock(); err != nil || there != "" {
		t.Errorf("%v, %q is there", err, there)
	}
	if unlock, err = e.lock(ctx, "image"); err != nil {
		t.Fatal(err)
	}
	if err := unlock(); err != nil {
		t.Error(err)
	}
}
