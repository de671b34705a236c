package release_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// forcedKind is a lock of one kind by its name.
type forcedKind struct {
	lock  locktest.LockOfKind
	force func(context.Context) error
}

// forcedKinds are a lock of each kind, under the name of its kind.
func forcedKinds(c *watchlock.Client) map[string]forcedKind {
	kinds := make(map[string]forcedKind)
	force := map[string]func(context.Context) error{
		"mutex":  c.NewMutex("mutex").ForceUnlock,
		"setnx":  c.NewSetNXMutex("setnx").ForceUnlock,
		"fenced": c.NewFencedMutex("fenced").ForceUnlock,
	}
	for kind, lock := range locktest.LocksOfKinds(c) {
		kinds[kind] = forcedKind{lock, force[kind]}
	}
	return kinds
}

func TestForceUnlockOfAFreeNameIsErrNotHeld(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		for kind, m := range forcedKinds(locktest.NewTestClient(t, s.Client())) {
			if err := m.force(context.Background()); !errors.Is(err, watchlock.ErrNotHeld) {
				t.Errorf("%s: %v", kind, err)
			}
			l, err := m.lock(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			locktest.MustUnlock(t, l)
			if err := m.force(context.Background()); !errors.Is(err, watchlock.ErrNotHeld) {
				t.Errorf("%s, after a hold: %v", kind, err)
			}
		}
	})
}

func TestForceUnlockEndsALocalHolderBeforeTheLockIsFree(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		for kind := range forcedKinds(locktest.NewTestClient(t, v.Client())) {
			c, wire := locktest.VirtualWired(t, v)
			m := forcedKinds(c)[kind]
			l, err := m.lock(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			inner, err := m.lock(l.Context(context.Background()))
			if err != nil {
				t.Fatal(err)
			}
			ctx, start := inner.Context(context.Background()), time.Now()
			var before error
			ran := false
			wire.On(locktest.ReleasesOfAnyKind, redistest.Call(func() { before, ran = context.Cause(ctx), true }))
			if err := m.force(context.Background()); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
			if !ran || !errors.Is(before, watchlock.ErrLost) {
				t.Errorf("%s: when the release left, the holder's context said %v", kind, before)
			}
			if time.Since(start) != 0 || v.Mini().Exists(kind) || !locktest.VirtualClosed(l.Done()) {
				t.Errorf("%s: after %v, key there %v", kind, time.Since(start), v.Mini().Exists(kind))
			}
			for _, x := range []*watchlock.Lease{inner, l} {
				if err := x.Unlock(context.Background()); !errors.Is(err, watchlock.ErrLost) {
					t.Errorf("%s: Unlock of a forced lease: %v", kind, err)
				}
			}
		}
	})
}

func TestAHolderElsewhereLearnsOfForceUnlockAtItsNextContact(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		holder, operator := locktest.NewTestClient(t, v.Client()), locktest.NewTestClient(t, v.Client())
		for kind, m := range forcedKinds(operator) {
			l, err := locktest.LocksOfKinds(holder)[kind](context.Background())
			if err != nil {
				t.Fatal(err)
			}
			start, done := time.Now(), l.Done()
			time.Sleep(3 * time.Second)
			if err := m.force(context.Background()); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
			<-done
			if took := time.Since(start); took > 10*time.Second+time.Millisecond || !errors.Is(l.Err(), watchlock.ErrLost) {
				t.Errorf("%s: told %v after the grant: %v", kind, took, l.Err())
			}
		}
	})
}

func TestAHolderElsewhereWithWaitersLearnsOfForceUnlockAtOnce(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		holder, operator := locktest.NewTestClient(t, v.Client()), locktest.NewTestClient(t, v.Client())
		for kind, m := range forcedKinds(operator) {
			lock := locktest.LocksOfKinds(holder)[kind]
			l, err := lock(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			next := make(chan *watchlock.Lease)
			go func() {
				l, err := lock(context.Background())
				if err != nil {
					t.Errorf("%s: the waiter: %v", kind, err)
				}
				next <- l
			}()
			time.Sleep(3 * time.Second)
			start, done := time.Now(), l.Done()
			if err := m.force(context.Background()); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
			<-done
			if took := time.Since(start); took > locktest.BetweenVerifications {
				t.Errorf("%s: told after %v", kind, took)
			}
			locktest.MustUnlock(t, <-next)
		}
	})
}

func TestForceUnlockWhoseReplyIsLostNeverDeletesALaterOwner(t *testing.T) {
	for _, family := range redistest.Families() {
		t.Run(string(family), func(t *testing.T) {
			s := redistest.Start(t, redistest.On(family))
			ctx := context.Background()
			for kind := range locktest.LocksOfKinds(locktest.NewTestClient(t, s.Client())) {
				old, later := locktest.NewTestClient(t, s.Client()), locktest.NewTestClient(t, s.Client())
				wire := redistest.NewWire()
				operator := locktest.NewTestClient(t, s.Client(wire.Options()))
				held, err := locktest.LocksOfKinds(old)[kind](ctx)
				if err != nil {
					t.Fatal(err)
				}
				// It learns how to talk to this server, which learns the scripts.
				locktest.MustUnlock(t, locktest.MustLock(t, operator.NewSetNXMutex("other")))
				locktest.MustUnlock(t, locktest.MustLock(t, operator.NewMutex("another")))
				next := make(chan *watchlock.Lease, 1)
				wire.On(locktest.ReleasesOfAnyKind, redistest.All(redistest.CallReply(func() {
					l, err := locktest.LocksOfKinds(later)[kind](ctx)
					if err != nil {
						t.Errorf("%s: the later owner: %v", kind, err)
					}
					next <- l
				}), redistest.DropReply))
				again := wire.On(locktest.ReleasesOfAnyKind, redistest.Call(func() {}))
				if err := forcedKinds(operator)[kind].force(ctx); err != nil {
					t.Errorf("%s: %v", kind, err)
				}
				if again.Hits() == 0 {
					t.Errorf("%s: the release was not sent again", kind)
				}
				if info, err := infoOf(later, kind); err != nil || !info.Mine {
					t.Errorf("%s: the later owner's lock became %+v, %v", kind, info, err)
				}
				locktest.MustUnlock(t, <-next)
				_ = held.Unlock(ctx) // it has not heard yet
			}
		})
	}
}

// infoOf asks about the lock of a kind.
func infoOf(c *watchlock.Client, kind string) (watchlock.LockInfo, error) {
	m := c.NewMutex(kind)
	switch kind {
	case "setnx":
		m = c.NewSetNXMutex(kind)
	case "fenced":
		m = locktest.PlainMutexOf(c.NewFencedMutex(kind))
	}
	return m.Info(context.Background())
}

func TestForceUnlockLeavesAnOwnerAloneWhoCameAfterItLooked(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		for kind, lock := range locktest.LocksOfKinds(locktest.NewTestClient(t, v.Client())) {
			first, err := lock(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			operator, wire := locktest.VirtualWired(t, v)
			var second *watchlock.Lease
			wire.On(locktest.ReleasesOfAnyKind, redistest.Call(func() {
				locktest.MustUnlock(t, first)
				if second, err = lock(context.Background()); err != nil {
					t.Errorf("%s: %v", kind, err)
				}
			}))
			if err := forcedKinds(operator)[kind].force(context.Background()); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
			time.Sleep(time.Minute)
			if second == nil || second.Err() != nil {
				t.Fatalf("%s: the second owner lost the lock", kind)
			}
			locktest.MustUnlock(t, second)
		}
	})
}

func TestForceUnlockOfAForeignHolderRemovesItAndTellsWaiters(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		c, waiter := locktest.NewTestClient(t, s.Client()), locktest.NewTestClient(t, s.Client())
		for kind, m := range forcedKinds(c) {
			if kind == "setnx" {
				locktest.MustDo(t, s, "SET", kind, "somebody's value")
			} else {
				locktest.MustDo(t, s, "HSET", kind, locktest.Stranger, "3")
			}
			waiting := make(chan *watchlock.Lease)
			go func() {
				l, err := locktest.LocksOfKinds(waiter)[kind](context.Background())
				if err != nil {
					t.Errorf("%s: %v", kind, err)
				}
				waiting <- l
			}()
			channel := locktest.ChannelKeys(kind)
			locktest.Eventually(t, 5*time.Second, "the waiter subscribes", func() bool {
				subs, err := s.Client().PubSubNumSub(context.Background(), channel).Result()
				return err == nil && subs[channel] == 1
			})
			start := time.Now()
			if err := m.force(context.Background()); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
			l := <-waiting
			if took := time.Since(start); took > 200*time.Millisecond {
				t.Errorf("%s: the waiter got in after %v", kind, took)
			}
			locktest.MustUnlock(t, l)
		}
	})
}

func TestForceUnlockOfWhatIsNoLockOfTheKindIsErrWrongTypeAndDeletesNothing(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		for kind, m := range forcedKinds(locktest.NewTestClient(t, s.Client())) {
			locktest.MustDo(t, s, "FLUSHALL")
			if kind == "setnx" {
				locktest.MustDo(t, s, "HSET", kind, locktest.Stranger, "1")
			} else {
				locktest.MustDo(t, s, "SET", kind, locktest.Stranger)
			}
			if err := m.force(context.Background()); !errors.Is(err, watchlock.ErrWrongType) {
				t.Errorf("%s, another kind's lock: %v", kind, err)
			}
			if kind != "setnx" {
				locktest.MustDo(t, s, "DEL", kind)
				locktest.MustDo(t, s, "HSET", kind, locktest.Stranger, "1", "x:1", "1")
				if err := m.force(context.Background()); !errors.Is(err, watchlock.ErrWrongType) {
					t.Errorf("%s, more than one owner: %v", kind, err)
				}
			}
			if n := locktest.MustDo(t, s, "EXISTS", kind); n != int64(1) {
				t.Errorf("%s: the key is gone", kind)
			}
		}
	})
}

func TestForceUnlockOfAFencedLockKeepsTheCounter(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		m := locktest.NewTestClient(t, v.Client()).NewFencedMutex("k")
		old := locktest.MustFence(t, m)
		if err := m.ForceUnlock(context.Background()); err != nil {
			t.Fatal(err)
		}
		if !v.Mini().Exists(locktest.CounterOf("k")) {
			t.Error("the counter has gone")
		}
		if next := locktest.MustFence(t, m); next.Token() <= old.Token() {
			t.Errorf("token %d after %d", next.Token(), old.Token())
		}
	})
}

func TestForceUnlockIsBoundedWhileTheServerHangs(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, wire := locktest.VirtualWired(t, v)
		m := c.NewMutex("k")
		locktest.VirtualTake(v, "k", time.Hour)
		wire.On(locktest.ReleasesOfAnyKind, redistest.Call(v.Freeze)) // it has answered who holds
		for _, within := range []time.Duration{100 * time.Millisecond, time.Hour} {
			ctx, cancel := context.WithTimeout(context.Background(), within)
			start := time.Now()
			err := m.ForceUnlock(ctx)
			if took := time.Since(start); err == nil || took > min(within, locktest.UnlockTimeoutByDefault)+50*time.Millisecond {
				t.Errorf("within %v: %v after %v", within, err, took)
			}
			cancel()
		}
		v.Thaw()
		synctest.Wait()
	})
}
