package bootclock

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// bootHand is a boot clock that a test sets.
type bootHand struct {
	offset atomic.Int64
	looks  atomic.Int64
}

func (b *bootHand) read() time.Duration {
	b.looks.Add(1)
	return time.Duration(b.offset.Load())
}

func (b *bootHand) set(d time.Duration) { b.offset.Store(int64(d)) }

func TestClockIsTimeSinceStartPlusTimeSlept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bootHand{}
		b.set(40 * time.Hour) // a machine that has slept before
		c := New(b.read)
		if got := c.Now(); got != 0 {
			t.Errorf("a new clock says %v", got)
		}
		time.Sleep(time.Second)
		if got := c.Now(); got != time.Second {
			t.Errorf("after a second it says %v", got)
		}
		b.set(41 * time.Hour)
		time.Sleep(time.Second)
		if got, want := c.Now(), time.Hour+2*time.Second; got != want {
			t.Errorf("after an hour of sleep it says %v, want %v", got, want)
		}
		b.set(42 * time.Hour)
		time.Sleep(time.Second)
		if got, want := c.Now(), 2*time.Hour+3*time.Second; got != want {
			t.Errorf("after another it says %v, want %v", got, want)
		}
	})
}

func TestClockTakesGrowthFromAMillisecondOn(t *testing.T) {
	for grown, counts := range map[time.Duration]bool{
		-time.Hour:                         false,
		-time.Millisecond:                  false,
		time.Microsecond:                   false,
		time.Millisecond - time.Nanosecond: false,
		time.Millisecond:                   true,
		time.Hour:                          true,
	} {
		synctest.Test(t, func(t *testing.T) {
			b := &bootHand{}
			c := New(b.read)
			b.set(grown)
			time.Sleep(time.Second)
			want := time.Second
			if counts {
				want += grown
			}
			if got := c.Now(); got != want {
				t.Errorf("grown by %v, the clock says %v, want %v", grown, got, want)
			}
		})
	}
}

func TestClockAddsUpGrowthTooSmallToCountAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bootHand{}
		c := New(b.read)
		for i := range 10 {
			b.set(time.Duration(i+1) * 300 * time.Microsecond)
			time.Sleep(time.Second)
			slept := c.Now() - time.Duration(i+1)*time.Second
			if behind := time.Duration(b.offset.Load()) - slept; behind < 0 || behind >= time.Millisecond {
				t.Errorf("grown by %v in small steps, %v of it counts", time.Duration(b.offset.Load()), slept)
			}
		}
	})
}

func TestClockKeepsTheLargestGrowth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bootHand{}
		c := New(b.read)
		for _, step := range []struct{ boot, slept time.Duration }{
			{time.Minute, time.Minute},
			{time.Second, time.Minute}, // an unlucky reading
			{-time.Hour, time.Minute},
			{time.Minute + 500*time.Microsecond, time.Minute},
			{time.Hour, time.Hour},
			{0, time.Hour},
		} {
			b.set(step.boot)
			time.Sleep(time.Second)
			if got := c.Now() - time.Since(c.start); got != step.slept {
				t.Errorf("boot clock at %v: %v slept, want %v", step.boot, got, step.slept)
			}
		}
	})
}

func TestClockLooksAtTheBootClockEveryTwoMilliseconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bootHand{}
		c := New(b.read)
		time.Sleep(10 * time.Millisecond)
		c.Now()
		looks := b.looks.Load()
		b.set(time.Hour)
		for range 19 {
			time.Sleep(100 * time.Microsecond)
			if got := c.Now(); got != time.Since(c.start) {
				t.Fatalf("%v: looked before 2 ms were over", got)
			}
		}
		if got := b.looks.Load(); got != looks {
			t.Errorf("%d looks within 2 ms", got-looks)
		}
		time.Sleep(100 * time.Microsecond)
		if got, want := c.Now(), time.Hour+12*time.Millisecond; got != want {
			t.Errorf("after 2 ms the clock says %v, want %v", got, want)
		}
		if got := b.looks.Load(); got != looks+1 {
			t.Errorf("%d looks after 2 ms, want 1", got-looks)
		}
	})
}

func TestClockIsMonotoneForEveryGoroutine(t *testing.T) {
	var hand atomic.Int64
	c := New(func() time.Duration {
		// Readings that jump ahead and fall back, as they do on a busy machine.
		n := hand.Add(1)
		return time.Duration(n)*100*time.Microsecond - time.Duration(n%3)*5*time.Millisecond
	})
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			last := time.Duration(0)
			for begin := time.Now(); time.Since(begin) < 100*time.Millisecond; {
				now := c.Now()
				if now < last {
					t.Errorf("the clock went from %v back to %v", last, now)
					return
				}
				last = now
			}
		})
	}
	workers.Wait()
	if hand.Load() < 10 {
		t.Errorf("%d looks at the boot clock: hardly tried", hand.Load())
	}
	if c.slept.Load() < int64(bootNoise) {
		t.Errorf("slept %v: the growth was never taken", time.Duration(c.slept.Load()))
	}
}

func TestClockWaitEndsAtItsInstantOrWhenDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(func() time.Duration { return 0 })
		begin := time.Now()
		c.Wait(nil, c.Now()+time.Minute)
		if took := time.Since(begin); took != time.Minute {
			t.Errorf("waited %v, want 1m", took)
		}
		c.Wait(nil, c.Now()-time.Minute)
		if took := time.Since(begin); took != time.Minute {
			t.Errorf("waited for an instant that had passed")
		}
		done := make(chan struct{})
		time.AfterFunc(time.Second, func() { close(done) })
		c.Wait(done, c.Now()+time.Hour)
		if took := time.Since(begin); took != time.Minute+time.Second {
			t.Errorf("waited until %v, want 1m1s", took)
		}
	})
}

func TestClockTellsInstantsToPeople(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(func() time.Duration { return 0 })
		time.Sleep(3 * time.Second)
		if got, want := c.Wall(c.Now()+5*time.Second), time.Now().Add(5*time.Second); !got.Equal(want) {
			t.Errorf("in 5 s is %v, want %v", got, want)
		}
	})
}

func TestMarginIsOnePercentAndMoreForShortLeases(t *testing.T) {
	const ms = time.Millisecond
	for lease, want := range map[time.Duration]time.Duration{
		10 * ms:                    2 * ms,
		50 * ms:                    2 * ms,
		51 * ms:                    2*ms + 20*time.Microsecond,
		100 * ms:                   3 * ms,
		300 * ms:                   7 * ms,
		time.Second:                21 * ms,
		4999 * ms:                  100*ms + 980*time.Microsecond,
		5 * time.Second:            100 * ms,
		10 * time.Second:           150 * ms,
		30 * time.Second:           350 * ms,
		time.Hour:                  36*time.Second + 50*ms,
		100 * 365 * 24 * time.Hour: 365*24*time.Hour + 50*ms,
	} {
		if got := Margin(lease); got != want {
			t.Errorf("margin of %v is %v, want %v", lease, got, want)
		}
	}
}

func TestBootOffsetIsSteady(t *testing.T) {
	first := Offset()
	// It may be read too small by the time between its two readings.
	if first <= -bootNoise || runtime.GOOS != "linux" && first != 0 {
		t.Errorf("offset %v", first)
	}
	worst := time.Duration(0)
	for range 2000 {
		worst = max(worst, Offset()-first)
	}
	// Nobody suspended this machine meanwhile: growth would cost a lease.
	if worst >= bootNoise {
		t.Errorf("the offset grew by %v", worst)
	}
}
