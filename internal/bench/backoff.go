package main

import (
	"math/rand/v2"
	"time"
)

const (
	firstBackoff = time.Millisecond
	lastBackoff  = 64 * time.Millisecond
)

// backoff is how clients without a way to wait do wait here: they ask again after
// a pause, which doubles from 1 ms to 64 ms, less a random part of up to half.
type backoff struct{ next time.Duration }

// NextBackoff is redislock's RetryStrategy.
func (b *backoff) NextBackoff() time.Duration {
	d := max(b.next, firstBackoff)
	b.next = min(2*d, lastBackoff)
	return d/2 + rand.N(d/2)
}

// pause lets d pass.
func pause(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // to let time pass is what a benchmark does
}
