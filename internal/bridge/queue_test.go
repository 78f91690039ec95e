package bridge

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
)

// They come in their order, however others leave, and no slot is lost.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1, 3)
		nobody := func(int) { t.Error("nobody is ahead") }
		first, err := q.enter(t.Context(), nobody)
		if err != nil {
			t.Fatal(err)
		}
		type entry struct {
			release func()
			err     error
		}
		gone := errors.New("gone")
		var ahead [3][]int
		var come [3]chan entry
		var leave [3]context.CancelCauseFunc
		for i := range come {
			come[i] = make(chan entry, 1)
			ctx, cancel := context.WithCancelCause(t.Context())
			leave[i] = cancel
			go func() {
				release, err := q.enter(ctx, func(n int) { ahead[i] = append(ahead[i], n) })
				come[i] <- entry{release, err}
			}()
			synctest.Wait()
		}
		if _, err := q.enter(t.Context(), nobody); !errors.Is(err, errBusy) {
			t.Errorf("one too many: %v", err)
		}
		leave[1](gone)
		if e := <-come[1]; !errors.Is(e.err, gone) {
			t.Errorf("who left: %v", e.err)
		}
		synctest.Wait()
		first()
		first() // once is enough
		e := <-come[0]
		if e.err != nil {
			t.Error(e.err)
		}
		synctest.Wait()
		if len(come[2]) > 0 {
			t.Error("two at a time")
		}
		e.release()
		if e = <-come[2]; e.err != nil {
			t.Error(e.err)
		}
		for i, want := range [][]int{{1}, {2}, {3, 2, 1}} {
			if !slices.Equal(ahead[i], want) {
				t.Errorf("the %d. hears that there are %v ahead, want %v", i+1, ahead[i], want)
			}
		}
		e.release()
		if release, err := q.enter(t.Context(), nobody); err != nil {
			t.Errorf("the slot is gone: %v", err)
		} else {
			release()
		}
		leave[0](nil)
		leave[2](nil)
	})
}

// A turn that comes while its caller leaves is handed on.
func TestQueueLeftAtTheLastMoment(t *testing.T) {
	for range 200 {
		q := newQueue(1, 1)
		release, err := q.enter(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan func(), 1)
		go func() {
			r, _ := q.enter(ctx, func(int) {})
			done <- r
		}()
		go leave()
		release()
		if r := <-done; r != nil {
			r()
		}
		leave()
		again, cancel := context.WithCancel(t.Context())
		cancel() // a slot that is free is given whoever asks
		if r, err := q.enter(again, func(int) { t.Error("the slot is lost") }); err != nil {
			t.Fatal(err)
		} else {
			r()
		}
	}
}
