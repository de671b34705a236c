package bootclock

import (
	"math"
	"sync/atomic"
	"time"
)

const (
	bootFresh = 2 * time.Millisecond // how old a look at the boot clock may be
	bootNoise = time.Millisecond     // growth below this is not a suspend
)

// Never is the end of what ends only by somebody's act.
const Never = time.Duration(math.MaxInt64)

// Clock measures trust. Go's monotonic clock stands still while the machine is
// suspended (golang/go#24595); Redis's does not. So an instant here is the time
// since the client was made plus the growth of CLOCK_BOOTTIME over
// CLOCK_MONOTONIC, which is the time slept. Instants are never compared with
// those of another client. Safe for concurrent use.
type Clock struct {
	// immutable
	start time.Time
	boot  func() time.Duration // CLOCK_BOOTTIME - CLOCK_MONOTONIC, or a constant
	base  time.Duration        // boot() when the client was made

	// atomic
	slept  atomic.Int64 // the growth, which never shrinks
	looked atomic.Int64 // time since start of the newest look at boot
}

// New returns a clock that counts what boot grows by: Offset, but in tests.
func New(boot func() time.Duration) *Clock {
	return &Clock{start: time.Now(), boot: boot, base: boot()}
}

// Now is the present instant.
func (c *Clock) Now() time.Duration {
	mono := time.Since(c.start)
	if mono-time.Duration(c.looked.Load()) >= bootFresh {
		c.look(mono)
	}
	return mono + time.Duration(c.slept.Load())
}

// look reads the boot clock. Two looks at once may finish in any order, so the
// growth only ever rises.
func (c *Clock) look(mono time.Duration) {
	c.looked.Store(int64(mono))
	grown := int64(c.boot() - c.base)
	for {
		old := c.slept.Load()
		if grown-old < int64(bootNoise) || c.slept.CompareAndSwap(old, grown) {
			return
		}
	}
}

// Wait returns when done is closed or at the instant at, whichever is first.
func (c *Clock) Wait(done <-chan struct{}, at time.Duration) {
	timer := time.NewTimer(at - c.Now())
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// Wall turns an instant into a time.Time for people.
func (c *Clock) Wall(at time.Duration) time.Time {
	return time.Now().Add(at - c.Now())
}

// Margin is how long before the server's expiry a holder stops to trust its
// lease: 1 % and 50 ms for long leases, which covers a server clock that runs
// 1 % fast, twenty times the kernel's slew limit, and the delay of a timer.
func Margin(lease time.Duration) time.Duration {
	if lease >= 5*time.Second {
		return lease/100 + 50*time.Millisecond
	}
	return max(2*time.Millisecond, lease/50+time.Millisecond)
}
