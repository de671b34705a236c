package renew_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

func TestVirtualSingleLockIsRenewedExactlyEveryTenSeconds(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.VirtualClient(t, v)
		start := time.Now()
		l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"))
		if ttl := v.Mini().TTL("job"); ttl != 30*time.Second {
			t.Errorf("TTL after the grant is %v, want 30s", ttl)
		}
		var want []time.Duration
		for n := time.Duration(1); n <= 30; n++ {
			locktest.VirtualUntil(start, n*10*time.Second-time.Millisecond)
			if ttl := v.Mini().TTL("job"); ttl != 20*time.Second+time.Millisecond {
				t.Errorf("TTL just before renewal %d is %v", n, ttl)
			}
			locktest.VirtualUntil(start, n*10*time.Second)
			want = append(want, n*10*time.Second)
			if ttl := v.Mini().TTL("job"); ttl != 30*time.Second {
				t.Errorf("TTL after renewal %d is %v, want 30s", n, ttl)
			}
			if at, want := l.ExpiresAt(), time.Now().Add(29650*time.Millisecond); !at.Equal(want) {
				t.Errorf("trusted until %v after renewal %d, want %v", at, n, want)
			}
		}
		if got := locktest.VirtualTimes(v.Commands(), start, locktest.Renews()); !slices.Equal(got, want) {
			t.Errorf("renewals at %v, want %v", got, want)
		}
		locktest.MustUnlock(t, l)
		if v.Mini().Exists("job") {
			t.Error("the key is there after Unlock")
		}
		locktest.VirtualUntil(start, 10*time.Minute)
		if got := v.CountIf(locktest.Renews()); got != len(want) {
			t.Errorf("%d renewals after Unlock", got-len(want))
		}
	})
}

func TestVirtualDueTimesDoNotDriftWhenRepliesAreSlow(t *testing.T) {
	delays := map[string]func(time.Duration) redistest.Action{
		"replies": redistest.DelayReply, "requests": redistest.Delay,
	}
	for name, delay := range delays {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				c, w := locktest.VirtualWired(t, v)
				w.On(locktest.Renews(), delay(900*time.Millisecond)).Times(0)
				w.On(redistest.Any, delay(300*time.Millisecond)).Times(0)
				start := time.Now()
				l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"))
				if took := time.Since(start); took < 300*time.Millisecond {
					t.Errorf("Lock took %v: nothing was slow", took)
				}
				var want []time.Duration
				for n := time.Duration(1); n <= 60; n++ {
					want = append(want, n*10*time.Second)
				}
				locktest.VirtualUntil(start, 602*time.Second)
				got := locktest.VirtualTimes(w.Seen(), start, locktest.Renews())
				if !slices.Equal(got, want) {
					t.Errorf("renewals left at %v, want %v", got, want)
				}
				if err := l.Err(); err != nil {
					t.Error(err)
				}
				locktest.MustUnlock(t, l)
			})
		})
	}
}

func TestVirtualRoundTakesWhatIsDueWithinAThirtiethOfTheTimeout(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.VirtualClient(t, v)
		start := time.Now()
		due := map[string]time.Duration{
			"first": 0, "soon": 999 * time.Millisecond, "later": 1001 * time.Millisecond, "other": 5 * time.Second,
		}
		names := []string{"first", "soon", "later", "other"}
		for _, name := range names {
			locktest.VirtualUntil(start, due[name])
			locktest.MustLock(t, locktest.NewTestMutex(c, name)).Done()
		}
		locktest.VirtualUntil(start, 99*time.Second)
		rounds := 0
		for _, cmd := range v.Commands() {
			if !locktest.Renews()(cmd) {
				continue
			}
			rounds++
			at := cmd.Time.Sub(start)
			joined := redistest.Match(redistest.Any).Mentions("first")(cmd) && redistest.Match(redistest.Any).Mentions("soon")(cmd)
			if at%(10*time.Second) == 0 && !joined {
				t.Errorf("the round at %v did not take what was due 999 ms later: %.200v", at, cmd)
			}
			for _, name := range names {
				if !redistest.Match(redistest.Any).Mentions(name)(cmd) {
					continue
				}
				early := (due[name] - at%(10*time.Second) + 10*time.Second) % (10 * time.Second)
				if early > time.Second {
					t.Errorf("%q was renewed at %v, %v before its time", name, at, early)
				}
			}
		}
		if want := 9 * 3; rounds != want {
			t.Errorf("%d rounds in 99 s, want %d", rounds, want)
		}
		for _, name := range names {
			if ttl := v.Mini().TTL(name); ttl < 20*time.Second || ttl > 30*time.Second {
				t.Errorf("%q has a TTL of %v", name, ttl)
			}
		}
	})
}

func TestVirtual250LocksTakeThreeScriptsARound(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.VirtualClient(t, v)
		start := time.Now()
		leases := locktest.VirtualLockMany(t, c, 250)
		for round := time.Duration(1); round <= 5; round++ {
			v.Reset()
			locktest.VirtualUntil(start, round*10*time.Second)
			var keys []string
			for _, cmd := range v.Commands() {
				if locktest.Renews()(cmd) {
					keys = append(keys, cmd.Arg(1))
				}
			}
			slices.Sort(keys)
			if want := []string{"100", "100", "50"}; !slices.Equal(keys, want) {
				t.Errorf("round %d renewed %v keys a script, want %v", round, keys, want)
			}
			for _, l := range leases {
				if ttl := v.Mini().TTL(l.Name()); ttl != 30*time.Second {
					t.Fatalf("TTL of %q is %v after round %d", l.Name(), ttl, round)
				}
			}
		}
	})
}

func TestVirtualOneBadBatchDelaysNoOther(t *testing.T) {
	faults := map[string]redistest.Action{
		"its reply is lost":        redistest.Swallow,
		"its reply is slow":        redistest.DelayReply(950 * time.Millisecond),
		"its request is lost":      redistest.LoseRequest,
		"its connection is closed": redistest.DropRequest,
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				c, w := locktest.VirtualWired(t, v)
				start := time.Now()
				leases := locktest.VirtualLockMany(t, c, 250)
				locktest.VirtualUntil(start, 9*time.Second)
				bad := w.On(locktest.Renews(), fault)
				// The others wait for its answer as long as a pipeline is waited for, no longer.
				locktest.VirtualUntil(start, 10*time.Second+locktest.FlightPatience)
				if bad.Hits() != 1 {
					t.Fatalf("%d batches met the fault, want 1", bad.Hits())
				}
				good := 0
				for _, l := range leases {
					if at := l.ExpiresAt().Sub(start); at >= 39650*time.Millisecond && at <= 39650*time.Millisecond+locktest.FlightPatience {
						good++
					}
				}
				if good < 150 {
					t.Errorf("%d of 250 leases were extended %v after their due time, want all but one batch", good, locktest.FlightPatience)
				}
				locktest.VirtualUntil(start, 13*time.Second)
				for _, l := range leases {
					if at := l.ExpiresAt(); at.Before(start.Add(39650 * time.Millisecond)) {
						t.Errorf("%q is trusted until %v only: the bad batch was not tried again", l.Name(), at.Sub(start))
					}
					if err := l.Err(); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

func TestVirtualFourBadBatchesOfSevenDelayNoOther(t *testing.T) {
	defer locktest.VirtualPurge()
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, w := locktest.VirtualWired(t, v)
		start := time.Now()
		leases := locktest.VirtualLockMany(t, c, 650)
		locktest.VirtualUntil(start, 9*time.Second)
		w.On(locktest.Renews(), redistest.Swallow).Times(4)
		locktest.VirtualUntil(start, 10*time.Second+locktest.FlightPatience)
		if n := v.CountIf(locktest.Renews()); n != 7 {
			t.Errorf("%d of 7 batches reached Redis %v after their due time", n, locktest.FlightPatience)
		}
		locktest.VirtualUntil(start, 13*time.Second)
		for _, l := range leases {
			if at := l.ExpiresAt(); at.Before(start.Add(39650 * time.Millisecond)) {
				t.Errorf("%q is trusted until %v only", l.Name(), at.Sub(start))
			}
		}
	})
}

func TestVirtualKeyOfAnotherTypeCostsTheOthersOfItsBatchNothing(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.VirtualClient(t, v)
		start := time.Now()
		leases := locktest.VirtualLockMany(t, c, 20)
		v.Mini().Del(leases[7].Name())
		if err := v.Mini().Set(leases[7].Name(), "a string now"); err != nil {
			t.Fatal(err)
		}
		locktest.VirtualUntil(start, 10*time.Second)
		for i, l := range leases {
			switch err := l.Err(); {
			case i == 7 && !errors.Is(err, watchlock.ErrLost):
				t.Errorf("the lease of the overwritten key says %v, want ErrLost", err)
			case i != 7 && (err != nil || v.Mini().TTL(l.Name()) != 30*time.Second):
				t.Errorf("%q: %v, TTL %v", l.Name(), err, v.Mini().TTL(l.Name()))
			}
		}
	})
}

func TestVirtualFailedRenewalIsTriedAgainEveryTenthOfTheInterval(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, w := locktest.VirtualWired(t, v)
		start := time.Now()
		l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"))
		locktest.VirtualUntil(start, 5*time.Second)
		w.On(locktest.Renews(), redistest.DropRequest).Times(0)
		locktest.VirtualUntil(start, 25*time.Second)
		times := locktest.VirtualTimes(w.Seen(), start, locktest.Renews())
		if len(times) < 10 || times[0] != 10*time.Second {
			t.Fatalf("attempts at %v, want one at 10 s and then about one a second", times)
		}
		for i := 1; i < len(times); i++ {
			if gap := times[i] - times[i-1]; gap < 500*time.Millisecond || gap > 1500*time.Millisecond {
				t.Errorf("%v between two attempts, want about 1 s", gap)
			}
		}
		w.Clear()
		locktest.VirtualUntil(start, 27*time.Second)
		if ttl := v.Mini().TTL("job"); ttl < 28*time.Second {
			t.Errorf("TTL is %v 2 s after the fault ended", ttl)
		}
		locktest.VirtualUntil(start, 60*time.Second)
		if err := l.Err(); err != nil {
			t.Error(err)
		}
		locktest.MustUnlock(t, l)
	})
}

func TestVirtualLeaseSurvivesAServerFrozenForLessThanItsTrust(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.VirtualClient(t, v)
		start := time.Now()
		l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"))
		locktest.VirtualUntil(start, 9*time.Second)
		v.Freeze()
		locktest.VirtualUntil(start, 26*time.Second)
		v.Thaw()
		locktest.VirtualUntil(start, 29600*time.Millisecond)
		if err := l.Err(); err != nil || l.ExpiresAt().Before(start.Add(50*time.Second)) {
			t.Errorf("%v, trusted until %v: not renewed in the 3.6 s before its end", err, l.ExpiresAt().Sub(start))
		}
		locktest.VirtualUntil(start, 2*time.Minute)
		if err := l.Err(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		locktest.MustUnlock(t, l)
	})
}

func TestVirtualRenewalGoesOnWhenAllLocksWereGoneForLong(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := locktest.VirtualClient(t, v)
		for _, idle := range []time.Duration{0, 5 * time.Second, 10 * time.Second, time.Hour} {
			time.Sleep(idle)
			l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"))
			start := time.Now()
			locktest.VirtualUntil(start, time.Minute)
			if err := l.Err(); err != nil {
				t.Fatalf("after %v without a lock: %v", idle, err)
			}
			if err := l.Unlock(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// The watchdog takes what is due soon along with what is due. A lease that ends each few
// milliseconds must not have it renew each lock in a command of its own.
func TestLeasesThatEndDoNotTearTheRenewalsOfOthersApart(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		const others, span = 300, 10 * time.Second // one interval
		c := locktest.VirtualClient(t, v)
		for i := range others {
			l := locktest.MustLock(t, c.NewMutex(fmt.Sprint("other-", i)))
			defer locktest.MustUnlock(t, l)
			time.Sleep(span / others)
		}
		v.Reset()
		ended := 0
		for end := time.Now().Add(2 * span); time.Now().Before(end); ended++ {
			l := locktest.MustLock(t, c.NewMutex(fmt.Sprint("short-", ended)), watchlock.WithLeaseTime(20*time.Millisecond))
			<-l.Done()
		}
		// A command for each W/30, or for each hundred of those that are due by then.
		if n, most := v.CountIf(redistest.Runs(wire.RenewSource)), 2*12; n > most || ended < 500 {
			t.Errorf("%d renewals of %d locks in two intervals, in which %d leases ended, want %d at most", n, others, ended, most)
		}
	})
}
