package main

import (
	"context"
	"math/rand/v2"
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
	jvm    bool // it is in a JVM, which measures itself; it has no sessions
	open   func(c conditions) (session, error)
}

// conditions are the same for all.
type conditions struct {
	addr string
	ttl  time.Duration // of locks; those who renew do so each third of it
}

// lockTTL is that of all locks: watchlock's and Redisson's default.
const lockTTL = 30 * time.Second

// session is one client of an adapter, with connections of its own.
type session struct {
	mutex func(name string) mutex // a lock by name, for one goroutine at a time
	close func()
}

// mutex takes its lock.
type mutex func(ctx context.Context) (lease, error)

type lease interface {
	Unlock(ctx context.Context) error
}

const (
	rawName       = "raw go-redis"
	pausingName   = "raw go-redis, pausing"
	plainName     = "watchlock"
	noPassingName = "watchlock, no passing"
	fencedName    = "watchlock, fenced"
)

// adapters are in the order of the tables. The first counts as 1. Redisson is
// among them where it is built.
func adapters() []adapter {
	list := []adapter{
		rawAdapter(rawName, "the two scripts of watchlock by EVALSHA, prepared once; no renewal, no check of time, "+
			"no waiting: refused, it asks again at once", false),
		rawAdapter(pausingName, "the same, but refused it asks again after a pause, "+
			"which doubles from 1 ms to 64 ms, less a random part of up to half", true),
		watchlockAdapter(plainName, "as it comes", plainMutex),
		watchlockAdapter(noPassingName, "WithLocalHandoff(0): every Unlock releases in Redis", plainMutex, withoutPassing),
		watchlockAdapter(fencedName, "FencedMutex: every lease has a token", fencedMutex),
		redislockAdapter(),
		redsyncAdapter(),
		rueidislockAdapter(),
	}
	if _, err := findRedisson(); err == nil {
		list = append(list, redissonAdapter())
	}
	return list
}

// clientOptions are those of all clients on go-redis: its defaults, but for as
// many connections as the largest scenario of independent goroutines needs, no
// talk at the start, and a patience that a crowd does not wear out.
func clientOptions(addr string) *redis.Options {
	return &redis.Options{
		Addr:                     addr,
		PoolSize:                 64,
		ReadTimeout:              10 * time.Second,
		PoolTimeout:              30 * time.Second,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		DisableIdentity:          true,
	}
}

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
