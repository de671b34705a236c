package main

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// adapter is one way to lock.
type adapter struct {
	name string
	// about tells how it is set up and how it waits.
	about string
	// inside are the commands that reach the server from its scripts only.
	inside []string
	polls  bool // it has no other way to wait than to ask again
	renews bool // it renews what it holds
	shared bool // one of its mutexes serves any number of goroutines
	jvm    bool // it is in a JVM, which measures itself; it has no sessions
	open   func(c conditions) (session, error)
}

// conditions are the same for all.
type conditions struct {
	addr string
	ttl  time.Duration // of locks; those who renew do so each third of it
}

// session is one client of an adapter, with connections of its own.
type session interface {
	// mutex is a lock by name, for one goroutine at a time unless the adapter says
	// that it is shared.
	mutex(name string) mutex
	close()
}

type mutex interface {
	lock(ctx context.Context) (lease, error)
}

type lease interface {
	Unlock(ctx context.Context) error
}

// reentrant is a lease that the same work can take again.
type reentrant interface {
	Context(parent context.Context) context.Context
}

// adapters are in the order of the tables. The first counts as 1. Redisson is
// among them where it is built.
func adapters() []adapter {
	list := []adapter{
		rawAdapter(),
		pausingAdapter(),
		watchlockAdapter("watchlock", "as it comes"),
		watchlockNoPassing(),
		watchlockFenced(),
		redislockAdapter(),
		redsyncAdapter(),
		rueidislockAdapter(),
	}
	if _, err := findRedisson(); err == nil {
		list = append(list, redissonAdapter())
	}
	return list
}

// mutexes are n locks of one name, for a goroutine each.
func (a adapter) mutexes(s session, name string, n int) []mutex {
	list := make([]mutex, n)
	for i := range list {
		if i == 0 || !a.shared {
			list[i] = s.mutex(name)
		} else {
			list[i] = list[0]
		}
	}
	return list
}

// poolSize is how many connections each client may have.
const poolSize = 64

// clientOptions are those of all clients on go-redis: its defaults, but for as
// many connections as the largest scenario of independent goroutines needs, no
// talk at the start, and a patience that a crowd does not wear out.
func clientOptions(addr string) *redis.Options {
	return &redis.Options{
		Addr:                     addr,
		PoolSize:                 poolSize,
		ReadTimeout:              10 * time.Second,
		PoolTimeout:              30 * time.Second,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		DisableIdentity:          true,
	}
}

// newRedis is a client of go-redis for an adapter.
func newRedis(c conditions) *redis.Client { return redis.NewClient(clientOptions(c.addr)) }
