package watchlock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// forcedKind is a lock of one kind by its name.
type forcedKind struct {
	lock  lockOfKind
	force func(context.Context) error
}

// forcedKinds are a lock of each kind, under the name of its kind.
func forcedKinds(c *Client) map[string]forcedKind {
	kinds := make(map[string]forcedKind)
	force := map[string]func(context.Context) error{
		"mutex":  c.NewMutex("mutex").ForceUnlock,
		"setnx":  c.NewSetNXMutex("setnx").ForceUnlock,
		"fenced": c.NewFencedMutex("fenced").ForceUnlock,
	}
	for kind, lock := range locksOfKinds(c) {
		kinds[kind] = forcedKind{lock, force[kind]}
	}
	return kinds
}

func TestForceUnlockOfAFreeNameIsErrNotHeld(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		for kind, m := range forcedKinds(newTestClient(t, s.Client())) {
			if err := m.force(context.Background()); !errors.Is(err, ErrNotHeld) {
				t.Errorf("%s: %v", kind, err)
			}
			l, err := m.lock(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			mustUnlock(t, l)
			if err := m.force(context.Background()); !errors.Is(err, ErrNotHeld) {
				t.Errorf("%s, after a hold: %v", kind, err)
			}
		}
	})
}

func TestForceUnlockEndsALocalHolderBeforeTheLockIsFree(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		for kind := range forcedKinds(newTestClient(t, v.Client())) {
			c, wire := virtualWired(t, v)
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
			wire.On(releasesOfAnyKind, redistest.Call(func() { before, ran = context.Cause(ctx), true }))
			if err := m.force(context.Background()); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
			if !ran || !errors.Is(before, ErrLost) {
				t.Errorf("%s: when the release left, the holder's context said %v", kind, before)
			}
			if time.Since(start) != 0 || v.Mini().Exists(kind) || !virtualClosed(l.Done()) {
				t.Errorf("%s: after %v, key there %v", kind, time.Since(start), v.Mini().Exists(kind))
			}
			for _, x := range []*Lease{inner, l} {
				if err := x.Unlock(context.Background()); !errors.Is(err, ErrLost) {
					t.Errorf("%s: Unlock of a forced lease: %v", kind, err)
				}
			}
		}
	})
}

// releasesOfAnyKind matches what releases a lock of any kind.
func releasesOfAnyKind(c redistest.Command) bool {
	return redistest.Runs(wire.ReleaseSource)(c) || redistest.Runs(wire.ReleaseStringSource)(c) || redistest.Is("DELEX")(c)
}

func TestAHolderElsewhereLearnsOfForceUnlockAtItsNextContact(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		holder, operator := newTestClient(t, v.Client()), newTestClient(t, v.Client())
		for kind, m := range forcedKinds(operator) {
			l, err := locksOfKinds(holder)[kind](context.Background())
			if err != nil {
				t.Fatal(err)
			}
			start, done := time.Now(), l.Done()
			time.Sleep(3 * time.Second)
			if err := m.force(context.Background()); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
			<-done
			if took := time.Since(start); took > 10*time.Second+time.Millisecond || !errors.Is(l.Err(), ErrLost) {
				t.Errorf("%s: told %v after the grant: %v", kind, took, l.Err())
			}
		}
	})
}

func TestAHolderElsewhereWithWaitersLearnsOfForceUnlockAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		holder, operator := newTestClient(t, v.Client()), newTestClient(t, v.Client())
		for kind, m := range forcedKinds(operator) {
			lock := locksOfKinds(holder)[kind]
			l, err := lock(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			next := make(chan *Lease)
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
			if took := time.Since(start); took > verifyGap {
				t.Errorf("%s: told after %v", kind, took)
			}
			mustUnlock(t, <-next)
		}
	})
}

func TestForceUnlockWhoseReplyIsLostNeverDeletesALaterOwner(t *testing.T) {
	for _, family := range redistest.Families() {
		t.Run(string(family), func(t *testing.T) {
			s := redistest.Start(t, redistest.On(family))
			ctx := context.Background()
			for kind := range locksOfKinds(newTestClient(t, s.Client())) {
				old, later := newTestClient(t, s.Client()), newTestClient(t, s.Client())
				wire := redistest.NewWire()
				operator := newTestClient(t, s.Client(wire.Options()))
				held, err := locksOfKinds(old)[kind](ctx)
				if err != nil {
					t.Fatal(err)
				}
				// It learns how to talk to this server, which learns the scripts.
				mustUnlock(t, mustLock(t, operator.NewSetNXMutex("other")))
				mustUnlock(t, mustLock(t, operator.NewMutex("another")))
				next := make(chan *Lease, 1)
				wire.On(releasesOfAnyKind, redistest.All(redistest.CallReply(func() {
					l, err := locksOfKinds(later)[kind](ctx)
					if err != nil {
						t.Errorf("%s: the later owner: %v", kind, err)
					}
					next <- l
				}), redistest.DropReply))
				again := wire.On(releasesOfAnyKind, redistest.Call(func() {}))
				if err := forcedKinds(operator)[kind].force(ctx); err != nil {
					t.Errorf("%s: %v", kind, err)
				}
				if again.Hits() == 0 {
					t.Errorf("%s: the release was not sent again", kind)
				}
				if info, err := infoOf(later, kind); err != nil || !info.Mine {
					t.Errorf("%s: the later owner's lock became %+v, %v", kind, info, err)
				}
				mustUnlock(t, <-next)
				_ = held.Unlock(ctx) // it has not heard yet
			}
		})
	}
}

// infoOf asks about the lock of a kind.
func infoOf(c *Client, kind string) (LockInfo, error) {
	m := c.NewMutex(kind)
	switch kind {
	case "setnx":
		m = c.NewSetNXMutex(kind)
	case "fenced":
		m = c.NewFencedMutex(kind).m
	}
	return m.Info(context.Background())
}

func TestForceUnlockLeavesAnOwnerAloneWhoCameAfterItLooked(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		for kind, lock := range locksOfKinds(newTestClient(t, v.Client())) {
			first, err := lock(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			operator, wire := virtualWired(t, v)
			var second *Lease
			wire.On(releasesOfAnyKind, redistest.Call(func() {
				mustUnlock(t, first)
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
			mustUnlock(t, second)
		}
	})
}

func TestForceUnlockOfAForeignHolderRemovesItAndTellsWaiters(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		c, waiter := newTestClient(t, s.Client()), newTestClient(t, s.Client())
		for kind, m := range forcedKinds(c) {
			if kind == "setnx" {
				mustDo(t, s, "SET", kind, "somebody's value")
			} else {
				mustDo(t, s, "HSET", kind, stranger, "3")
			}
			waiting := make(chan *Lease)
			go func() {
				l, err := locksOfKinds(waiter)[kind](context.Background())
				if err != nil {
					t.Errorf("%s: %v", kind, err)
				}
				waiting <- l
			}()
			channel := channelKeys(kind)
			eventually(t, 5*time.Second, "the waiter subscribes", func() bool {
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
			mustUnlock(t, l)
		}
	})
}

// channelKeys is the channel of the lock of a kind.
func channelKeys(kind string) string {
	if kind == "setnx" {
		return "watchlock_setnx__channel:{setnx}"
	}
	return "redisson_lock__channel:{" + kind + "}"
}

func TestForceUnlockOfWhatIsNoLockOfTheKindIsErrWrongTypeAndDeletesNothing(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		for kind, m := range forcedKinds(newTestClient(t, s.Client())) {
			mustDo(t, s, "FLUSHALL")
			if kind == "setnx" {
				mustDo(t, s, "HSET", kind, stranger, "1")
			} else {
				mustDo(t, s, "SET", kind, stranger)
			}
			if err := m.force(context.Background()); !errors.Is(err, ErrWrongType) {
				t.Errorf("%s, another kind's lock: %v", kind, err)
			}
			if kind != "setnx" {
				mustDo(t, s, "DEL", kind)
				mustDo(t, s, "HSET", kind, stranger, "1", "x:1", "1")
				if err := m.force(context.Background()); !errors.Is(err, ErrWrongType) {
					t.Errorf("%s, more than one owner: %v", kind, err)
				}
			}
			if n := mustDo(t, s, "EXISTS", kind); n != int64(1) {
				t.Errorf("%s: the key is gone", kind)
			}
		}
	})
}

func TestForceUnlockOfAFencedLockKeepsTheCounter(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		m := newTestClient(t, v.Client()).NewFencedMutex("k")
		old := mustFence(t, m)
		if err := m.ForceUnlock(context.Background()); err != nil {
			t.Fatal(err)
		}
		if !v.Mini().Exists(counterOf("k")) {
			t.Error("the counter has gone")
		}
		if next := mustFence(t, m); next.Token() <= old.Token() {
			t.Errorf("token %d after %d", next.Token(), old.Token())
		}
	})
}

func TestForceUnlockIsBoundedWhileTheServerHangs(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, wire := virtualWired(t, v)
		m := c.NewMutex("k")
		virtualTake(v, "k", time.Hour)
		wire.On(releasesOfAnyKind, redistest.Call(v.Freeze)) // it has answered who holds
		for _, within := range []time.Duration{100 * time.Millisecond, time.Hour} {
			ctx, cancel := context.WithTimeout(context.Background(), within)
			start := time.Now()
			err := m.ForceUnlock(ctx)
			if took := time.Since(start); err == nil || took > min(within, defaultUnlockTimeout)+50*time.Millisecond {
				t.Errorf("within %v: %v after %v", within, err, took)
			}
			cancel()
		}
		v.Thaw()
		synctest.Wait()
	})
}
