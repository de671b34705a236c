package string_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// The plain recipe, as services write it by hand: SET NX PX with a random value,
// deleted when the value is still the same.
var (
	errRecipeBusy = errors.New("busy")
	recipeUnlock  = redis.NewScript(`
if redis.call("GET", KEYS[1]) == ARGV[1] then
  return redis.call("DEL", KEYS[1])
end
return 0`)
)

func recipeLock(ctx context.Context, rdb *redis.Client, key string, ttl time.Duration) (unlock func() (int64, error), err error) {
	value := uuid.NewString()
	ok, err := rdb.SetNX(ctx, key, value, ttl).Result()
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, errRecipeBusy
	}
	return func() (int64, error) {
		return recipeUnlock.Run(context.WithoutCancel(ctx), rdb, []string{key}, value).Int64()
	}, nil
}

// recipeWithLock runs job under the recipe, or says that the lock is busy.
func recipeWithLock(ctx context.Context, rdb *redis.Client, key string, ttl time.Duration, job func() error) (err error) {
	unlock, err := recipeLock(ctx, rdb, key, ttl)
	if err != nil {
		return err
	}
	defer func() {
		if n, unlockErr := unlock(); unlockErr != nil || n != 1 {
			err = errors.Join(err, fmt.Errorf("unlocked %d: %w", n, unlockErr))
		}
	}()
	return job()
}

func TestTheStringFormAndThePlainRecipeExcludeEachOther(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		const ours, theirs = 2, 2
		each := locktest.FullCount(2000) / (ours + theirs)
		ctx := context.Background()
		var shared locktest.Counter
		var all sync.WaitGroup
		for range ours {
			m := locktest.NewTestClient(t, s.Client(), watchlock.WithMaxPollInterval(10*time.Millisecond)).NewSetNXMutex("k")
			all.Go(func() {
				for range each {
					if err := m.Do(ctx, func(context.Context) error { shared.Section(0); return nil }); err != nil {
						t.Errorf("Do: %v", err)
					}
				}
			})
		}
		for range theirs {
			rdb := s.Client()
			all.Go(func() {
				for done := 0; done < each; {
					switch err := recipeWithLock(ctx, rdb, "k", 30*time.Second, func() error { shared.Section(0); return nil }); {
					case err == nil:
						done++
					case errors.Is(err, errRecipeBusy):
						<-time.After(time.Millisecond)
					default:
						t.Errorf("the recipe: %v", err)
						done++
					}
				}
			})
		}
		all.Wait()
		shared.Check(t, each*(ours+theirs))
		if n := locktest.MustDo(t, s, "EXISTS", "k"); n != int64(0) {
			t.Error("the key is left")
		}
	})
}

func TestTheStringFormAndThePlainRecipeNeverDeleteEachOthersKey(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb := context.Background(), s.Client()
		m := locktest.NewTestClient(t, s.Client()).NewSetNXMutex("k")

		// Ours ran out, theirs is held.
		l := locktest.MustLock(t, m, watchlock.WithLeaseTime(20*time.Millisecond))
		var unlock func() (int64, error)
		locktest.Eventually(t, 5*time.Second, "the recipe gets in", func() bool {
			var err error
			unlock, err = recipeLock(ctx, rdb, "k", time.Minute)
			return err == nil
		})
		if err := l.Unlock(ctx); !errors.Is(err, watchlock.ErrLost) {
			t.Errorf("Unlock after the lease's end: %v", err)
		}
		if _, err := m.TryLock(ctx, 0); !errors.Is(err, watchlock.ErrNotAcquired) {
			t.Errorf("TryLock while the recipe holds: %v", err)
		}
		if n, err := unlock(); n != 1 || err != nil {
			t.Errorf("the recipe's key had gone: %d, %v", n, err)
		}

		// Theirs ran out, ours is held.
		late, err := recipeLock(ctx, rdb, "k", 20*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		l = locktest.MustLock(t, m)
		if n, err := late(); n != 0 || err != nil {
			t.Errorf("the recipe released %d of ours, %v", n, err)
		}
		if err := recipeWithLock(ctx, rdb, "k", time.Minute, func() error { return nil }); !errors.Is(err, errRecipeBusy) {
			t.Errorf("the recipe while we hold: %v", err)
		}
		locktest.MustUnlock(t, l)
	})
}

func TestAWaiterForTheStringFormPollsForHoldersThatPublishNothing(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		m := locktest.NewTestClient(t, v.Client(), watchlock.WithMaxPollInterval(time.Minute)).NewSetNXMutex("k")
		for _, held := range []time.Duration{100 * time.Millisecond, 3 * time.Second, 2 * time.Minute} {
			if err := v.Mini().Set("k", "somebody"); err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(held, func() { v.Mini().Del("k") })
			start := time.Now()
			l := locktest.MustLock(t, m)
			if took := time.Since(start); took < held || took > held+wire.ForeignPoll+wire.ForeignPoll/10 {
				t.Errorf("freed after %v, taken after %v", held, took)
			}
			locktest.MustUnlock(t, l)
		}
	})
}

func TestALockOfAnotherKindIsErrWrongTypeAndStays(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		ctx := context.Background()
		holder, c := locktest.NewTestClient(t, s.Client()), locktest.NewTestClient(t, s.Client())
		for held, others := range map[string][]string{"setnx": {"mutex", "fenced"}, "mutex": {"setnx"}, "fenced": {"setnx"}} {
			l, err := locktest.LockNamed(holder, held, "k")(ctx)
			if err != nil {
				t.Fatal(err)
			}
			before := locktest.MustDo(t, s, "DUMP", "k")
			for _, kind := range others {
				for what, try := range map[string]func() (*watchlock.Lease, error){
					"Lock":         func() (*watchlock.Lease, error) { return locktest.LockNamed(c, kind, "k")(ctx) },
					"the holder's": func() (*watchlock.Lease, error) { return locktest.LockNamed(holder, kind, "k")(ctx) },
					"Lock, a moment": func() (*watchlock.Lease, error) {
						return locktest.LockNamed(c, kind, "k")(ctx, watchlock.WithLeaseTime(time.Second))
					},
				} {
					if l, err := try(); l != nil || !errors.Is(err, watchlock.ErrWrongType) || errors.Is(err, watchlock.ErrNotAcquired) {
						t.Errorf("%s: %s as a %s: %v", held, what, kind, err)
					}
				}
			}
			if after := locktest.MustDo(t, s, "DUMP", "k"); after != before {
				t.Errorf("%s: the key was changed", held)
			}
			locktest.MustUnlock(t, l)
		}
	})
}

func TestALeaseWhoseKeyBecameAnotherKindsIsLostAndTouchesNothing(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		quick := watchlock.WithWatchdogTimeout(locktest.TourTTL)
		for kind, lock := range locktest.LocksOfKinds(locktest.NewTestClient(t, s.Client(), quick)) {
			l, err := lock(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			locktest.MustDo(t, s, "DEL", kind)
			if kind == "setnx" {
				locktest.MustDo(t, s, "HSET", kind, "f", "1")
			} else {
				locktest.MustDo(t, s, "SET", kind, "v")
			}
			before := locktest.MustDo(t, s, "DUMP", kind)
			select {
			case <-l.Done():
			case <-time.After(5 * time.Second):
				t.Errorf("%s: not told", kind)
			}
			if err := l.Unlock(context.Background()); !errors.Is(err, watchlock.ErrLost) {
				t.Errorf("%s: Unlock: %v", kind, err)
			}
			if after := locktest.MustDo(t, s, "DUMP", kind); after != before || locktest.MustDo(t, s, "PTTL", kind) != int64(-1) {
				t.Errorf("%s: the key was changed", kind)
			}
		}
	})
}
