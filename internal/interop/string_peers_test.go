package interop

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// errBusy says that somebody else holds the lock.
var errBusy = errors.New("busy")

// stringPeer is one way to lock a string key.
type stringPeer struct {
	name string
	// lock makes one attempt. Busy is errBusy.
	lock func(ctx context.Context, key string, ttl time.Duration) (release, error)
	// do runs f under the lock, however long the wait.
	do func(ctx context.Context, key string, f func() error) error
}

// release gives a lock back and reports whether it was still the peer's.
type release func(ctx context.Context) (mine bool, err error)

// stringPeers are the peers that lock in Go, each on a client of its own.
func stringPeers(t testing.TB, s *redistest.Server) []stringPeer {
	t.Helper()
	return []stringPeer{watchlockPeer(newStringClient(t, s, watchlock.WithMaxPollInterval(10*time.Millisecond))), redislockPeer(s.Client()), recipePeer(s.Client())}
}

func newStringClient(t testing.TB, s *redistest.Server, opts ...watchlock.Option) *watchlock.Client {
	t.Helper()
	c, err := watchlock.New(s.Client(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // names leases that a failed test has left
	return c
}

func watchlockPeer(c *watchlock.Client) stringPeer {
	return stringPeer{
		name: "watchlock",
		lock: func(ctx context.Context, key string, ttl time.Duration) (release, error) {
			lease, err := c.NewSetNXMutex(key).TryLock(ctx, 0, watchlock.WithLeaseTime(ttl))
			if errors.Is(err, watchlock.ErrNotAcquired) {
				return nil, errBusy
			}
			return func(ctx context.Context) (bool, error) {
				err := lease.Unlock(ctx)
				if errors.Is(err, watchlock.ErrLost) {
					return false, nil
				}
				return err == nil, err
			}, err
		},
		do: func(ctx context.Context, key string, f func() error) error {
			return c.NewSetNXMutex(key).Do(ctx, func(context.Context) error { return f() })
		},
	}
}

func redislockPeer(rdb *redis.Client) stringPeer {
	return waiting(stringPeer{
		name: "redislock",
		lock: func(ctx context.Context, key string, ttl time.Duration) (release, error) {
			lock, err := redislock.Obtain(ctx, rdb, key, ttl, nil)
			if errors.Is(err, redislock.ErrNotObtained) {
				return nil, errBusy
			}
			return func(ctx context.Context) (bool, error) {
				err := lock.Release(ctx)
				if errors.Is(err, redislock.ErrLockNotHeld) {
					return false, nil
				}
				return err == nil, err
			}, err
		},
	})
}

// compareAndDelete is the recipe's release.
var compareAndDelete = redis.NewScript(`
local holder = redis.call('GET', KEYS[1])
if holder ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])`)

// recipePeer is the recipe as Go services write it by hand.
func recipePeer(rdb *redis.Client) stringPeer {
	return waiting(stringPeer{
		name: "recipe",
		lock: func(ctx context.Context, key string, ttl time.Duration) (release, error) {
			token := uuid.NewString()
			err := rdb.SetArgs(ctx, key, token, redis.SetArgs{Mode: "NX", TTL: ttl}).Err()
			if errors.Is(err, redis.Nil) {
				return nil, errBusy
			}
			return func(ctx context.Context) (bool, error) {
				return compareAndDelete.Run(ctx, rdb, []string{key}, token).Bool()
			}, err
		},
	})
}

// withLock is the recipe as one function: job runs under the lock, or the lock is
// busy. The release runs whatever became of ctx.
func withLock(ctx context.Context, p stringPeer, key string, ttl time.Duration, job func() error) (err error) {
	unlock, err := p.lock(ctx, key, ttl)
	if err != nil {
		return err
	}
	defer func() {
		mine, releaseErr := unlock(context.WithoutCancel(ctx))
		if !mine && releaseErr == nil {
			releaseErr = errors.New("the lock was lost")
		}
		err = errors.Join(err, releaseErr)
	}()
	return job()
}

// waiting gives a peer that only tries a do that tries each millisecond.
func waiting(p stringPeer) stringPeer {
	p.do = func(ctx context.Context, key string, f func() error) error {
		for {
			if err := withLock(ctx, p, key, 30*time.Second, f); !errors.Is(err, errBusy) {
				return err
			}
			if err := pause(ctx); err != nil {
				return err
			}
		}
	}
	return p
}

// pause lets a millisecond pass.
func pause(ctx context.Context) error {
	timer := time.NewTimer(time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// peer is the service as a peer of those in Go. Its sections are its own, so it
// has no do.
func (n *nest) peer() stringPeer {
	return stringPeer{
		name: "nest",
		lock: func(_ context.Context, key string, ttl time.Duration) (release, error) {
			token, err := n.lock(key, ttl)
			return func(context.Context) (bool, error) { return n.unlock(key, token) }, err
		},
	}
}
