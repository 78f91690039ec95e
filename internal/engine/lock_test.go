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

// The lock is never started, so any image does where its own is gone; where there is
// none at all it cannot be had.
func TestLockWithoutItsImage(t *testing.T) {
	for _, c := range []struct {
		has  []string
		want string // the image of the lock
	}{
		{[]string{"sha256:first", "sha256:second"}, "sha256:first"},
		{nil, ""},
		{[]string{"sha256:gone"}, ""}, // it went, too
	} {
		made, tries := "", 0
		e := answered(t, func(w http.ResponseWriter, r *http.Request, path string) {
			w.Header().Set("Content-Type", "application/json")
			switch {
			case path == "/images/json":
				list := []map[string]string{}
				for _, id := range c.has {
					list = append(list, map[string]string{"Id": id})
				}
				json.NewEncoder(w).Encode(list)
			case path == "/containers/create":
				tries++
				var asked struct{ Image string }
				json.NewDecoder(r.Body).Decode(&asked)
				if asked.Image == "gone" || asked.Image == "sha256:gone" {
					w.WriteHeader(http.StatusNotFound)
					json.NewEncoder(w).Encode(map[string]string{"message": "No such image"})
					return
				}
				made = asked.Image
				w.WriteHeader(http.StatusCreated)
				json.NewEncoder(w).Encode(map[string]string{"Id": "new"})
			case r.Method == http.MethodDelete:
				w.WriteHeader(http.StatusNoContent)
			default:
				w.WriteHeader(http.StatusNotFound)
				json.NewEncoder(w).Encode(map[string]string{"message": path})
			}
		})
		unlock, err := e.lock(t.Context(), "gone")
		if made != c.want || (err == nil) != (c.want != "") || tries > 2 {
			t.Errorf("%v: a lock of %q after %d tries, %v", c.has, made, tries, err)
		}
		if err == nil {
			err = unlock()
		}
		if c.want != "" && err != nil {
			t.Error(err)
		}
	}
}

// What processes made for a moment and are not there to take away goes; what a living
// one has made stays, and so does what belongs to a sandbox.
func TestSweepTools(t *testing.T) {
	var removed []string
	e := answered(t, func(w http.ResponseWriter, r *http.Request, path string) {
		switch {
		case path == "/containers/json":
			if !strings.Contains(r.URL.Query().Get("filters"), labelRole+"="+RoleTool) {
				t.Errorf("asked for %s", r.URL.Query().Get("filters"))
			}
			w.Header().Set("Content-Type", "application/json")
			of := func(id, name, owner string) map[string]any {
				return map[string]any{"Id": id, "Names": []string{"/" + name}, "Labels": map[string]string{labelRole: RoleTool, labelOwner: owner}}
			}
			json.NewEncoder(w).Encode([]map[string]any{
				of("dead", lockName, "another-boot 1 1"), of("alive", "corral-tool-a", owner(os.Getpid())), of("foreign", "somebody", "another-boot 1 1"), of("unowned", "corral-tool-b", ""),
			})
		case r.Method == http.MethodDelete:
			removed = append(removed, strings.TrimPrefix(path, "/containers/"))
			w.WriteHeader(http.StatusNoContent)
		}
	})
	if err := e.SweepTools(t.Context()); err != nil || len(removed) != 1 || removed[0] != "dead" {
		t.Errorf("%v, removed %v", err, removed)
	}
}
