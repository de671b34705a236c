package watchlock

// queue holds waiters in the order they came. A waiter is in one queue at most,
// and the links are its own, so that queueing allocates nothing.
type queue struct {
	first, last *waiter
	n           int
}

func (q *queue) push(w *waiter) {
	w.queued, w.before, w.behind = true, q.last, nil
	if q.last == nil {
		q.first = w
	} else {
		q.last.behind = w
	}
	q.last = w
	q.n++
}

func (q *queue) remove(w *waiter) {
	if w.before == nil {
		q.first = w.behind
	} else {
		w.before.behind = w.behind
	}
	if w.behind == nil {
		q.last = w.before
	} else {
		w.behind.before = w.before
	}
	w.queued, w.before, w.behind = false, nil, nil
	q.n--
}
