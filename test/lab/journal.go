package lab

import (
	"slices"
	"sync"
	"testing"
	"time"
)

// patience is how long a test waits for what must come.
const patience = 20 * time.Second

// journal keeps what happened, in order, and wakes whoever waits for more.
type journal[T any] struct {
	mu    sync.Mutex
	items []T
	more  chan struct{}
}

func (j *journal[T]) add(items ...T) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.items = append(j.items, items...)
	if j.more != nil {
		close(j.more)
		j.more = nil
	}
}

func (j *journal[T]) list(keep func(T) bool) []T {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(j.items), func(item T) bool { return !keep(item) })
}

func (j *journal[T]) reset() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.items = nil
}

// await returns the first item that matches, waiting for it if it has not
// come yet. The test fails if it does not come.
func (j *journal[T]) await(tb testing.TB, what string, match func(T) bool) T {
	tb.Helper()
	limit := time.After(patience)
	for {
		j.mu.Lock()
		i := slices.IndexFunc(j.items, match)
		if i >= 0 {
			defer j.mu.Unlock()
			return j.items[i]
		}
		if j.more == nil {
			j.more = make(chan struct{})
		}
		more := j.more
		j.mu.Unlock()
		select {
		case <-more:
		case <-limit:
			tb.Fatalf("lab: no such %s within %v; there were %v", what, patience, j.list(func(T) bool { return true }))
		}
	}
}
