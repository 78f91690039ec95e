package command

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestRun(t *testing.T) {
	out, err := Run(t.Context(), strings.NewReader("in"), "sh", "-c", "cat; echo $LC_ALL")
	if err != nil || string(out) != "inC\n" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestFailureSaysHow(t *testing.T) {
	out, err := Run(t.Context(), nil, "sh", "-c", "echo kept; seq 10 >&2; exit 7")
	var e *Error
	if !errors.As(err, &e) || e.Status != 7 || e.Stderr != "6; 7; 8; 9; 10" || string(out) != "kept\n" {
		t.Errorf("%q, %+v", out, err)
	}
	if !strings.HasPrefix(err.Error(), "sh -c ") || !strings.HasSuffix(err.Error(), ": 6; 7; 8; 9; 10") {
		t.Error(err)
	}
	if _, err := Run(t.Context(), nil, "no-such-program"); !errors.As(err, &e) || e.Status != -1 {
		t.Errorf("%+v", err)
	}
}

// A program that is ended leaves nobody waiting for its children's output.
func TestContextEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Run(ctx, nil, "sh", "-c", "sleep 100 & wait"); err == nil {
		t.Error("it ended well")
	}
}
