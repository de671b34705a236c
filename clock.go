package watchlock

import (
	"math"
	"sync/atomic"
	"time"
)

const (
	bootFresh = 2 * time.Millisecond // how old a look at the boot clock may be
	bootNoise = time.Millisecond     // growth below this is not a suspend
	bootPace  = time.Second          // between two looks while something is held
)

// never is the end of what ends only by somebody's act.
const never = time.Duration(math.MaxInt64)

// clock measures trust. Go's monotonic clock stands still while the machine is
// suspended (golang/go#24595); Redis's does not. So an instant here is the time
// since the client was made plus the growth of CLOCK_BOOTTIME over
// CLOCK_MONOTONIC, which is the time slept. Instants are never compared with
// those of another client. Safe for concurrent use.
type clock struct {
	// immutable
	start time.Time
	boot  func() time.Duration // CLOCK_BOOTTIME - CLOCK_MONOTONIC, or a constant
	base  time.Duration        // boot() when the client was made

	// atomic
	slept  atomic.Int64 // the growth, which never shrinks
	looked atomic.Int64 // time since start of the newest look at boot
}

func newClock(boot func() time.Duration) *clock {
	return &clock{start: time.Now(), boot: boot, base: boot()}
}

// now is the present instant.
func (c *clock) now() time.Duration {
	mono := time.Since(c.start)
	if mono-time.Duration(c.looked.Load()) >= bootFresh {
		c.look(mono)
	}
	return mono + time.Duration(c.slept.Load())
}

// look reads the boot clock. Two looks at once may finish in any order, so the
// growth only ever rises.
func (c *clock) look(mono time.Duration) {
	c.looked.Store(int64(mono))
	grown := int64(c.boot() - c.base)
	for {
		old := c.slept.Load()
		if grown-old < int64(bootNoise) || c.slept.CompareAndSwap(old, grown) {
			return
		}
	}
}

// wait returns when done is closed or at the instant at, whichever is first.
func (c *clock) wait(done <-chan struct{}, at time.Duration) {
	timer := time.NewTimer(at - c.now())
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// wall turns an instant into a time.Time for people.
func (c *clock) wall(at time.Duration) time.Time {
	return time.Now().Add(at - c.now())
}

// margin is how long before the server's expiry a holder stops to trust its
// lease: 1 % and 50 ms for long leases, which covers a server clock that runs
// 1 % fast, twenty times the kernel's slew limit, and the delay of a timer.
func margin(lease time.Duration) time.Duration {
	if lease >= 5*time.Second {
		return lease/100 + 50*time.Millisecond
	}
	return max(2*time.Millisecond, lease/50+time.Millisecond)
}
