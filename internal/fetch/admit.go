package fetch

// slots are the fetches that may be under way. There is no queue: who finds none
// free is told at once, and has cost nothing.
type slots chan struct{}

func newSlots(n int) slots { return make(slots, n) }

// take is a slot, to be released exactly once, if one is free.
func (s slots) take() (release func(), ok bool) {
	select {
	case s <- struct{}{}:
		return func() { <-s }, true
	default:
		return nil, false
	}
}

// taken is how many there are now.
func (s slots) taken() int { return len(s) }
