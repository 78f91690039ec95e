package bridge

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// queue lets so many calls run at a time and so many wait, in their order.
type queue struct {
	mu            sync.Mutex
	free, waiting int
	line          []*turn
}

type turn struct {
	come  chan struct{} // closed when the turn has come
	moved chan struct{} // has a value when the line has moved
}

var errBusy = errors.New("busy")

func newQueue(slots, waiting int) *queue { return &queue{free: slots, waiting: waiting} }

// enter waits for a slot, which release gives back. Whenever the number of calls
// before this one changes, ahead gets it.
func (q *queue) enter(ctx context.Context, ahead func(int)) (release func(), err error) {
	q.mu.Lock()
	if q.free > 0 {
		q.free--
		q.mu.Unlock()
		return sync.OnceFunc(q.leave), nil
	}
	if len(q.line) >= q.waiting {
		q.mu.Unlock()
		return nil, errBusy
	}
	t := &turn{come: make(chan struct{}), moved: make(chan struct{}, 1)}
	t.moved <- struct{}{}
	q.line = append(q.line, t)
	q.mu.Unlock()
	for {
		select {
		case <-t.come:
			return sync.OnceFunc(q.leave), nil
		case <-t.moved:
			if n := q.before(t); n >= 0 {
				ahead(n + 1)
			}
		case <-ctx.Done():
			if !q.drop(t) { // it came just now
				q.leave()
			}
			return nil, context.Cause(ctx)
		}
	}
}

// before is how many wait before a turn; negative if it has come.
func (q *queue) before(t *turn) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Index(q.line, t)
}

// drop takes a turn out of the line and is false if it has come.
func (q *queue) drop(t *turn) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.line, t)
	if i < 0 {
		return false
	}
	q.line = slices.Delete(q.line, i, i+1)
	q.move(i)
	return true
}

// leave hands a slot to the first in the line.
func (q *queue) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.line) == 0 {
		q.free++
		return
	}
	close(q.line[0].come)
	q.line = slices.Delete(q.line, 0, 1)
	q.move(0)
}

// move tells those from the i-th on that they are nearer.
func (q *queue) move(i int) {
	for _, t := range q.line[i:] {
		select {
		case t.moved <- struct{}{}:
		default:
		}
	}
}
