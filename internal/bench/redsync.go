package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

func redsyncAdapter() adapter {
	return adapter{
		name:   "redsync",
		about:  "one pool; polls with the pauses of raw go-redis, pausing (WithRetryDelayFunc) and does not give up (WithTries); does not renew",
		inside: []string{"get", "del"},
		polls:  true,
		open: func(c conditions) (session, error) {
			rdb := newRedis(c)
			return &redsyncSession{rdb, redsync.New(goredis.NewPool(rdb)), c.ttl}, nil
		},
	}
}

type redsyncSession struct {
	rdb *redis.Client
	rs  *redsync.Redsync
	ttl time.Duration
}

func (s *redsyncSession) close() { _ = s.rdb.Close() }

func (s *redsyncSession) mutex(name string) mutex {
	m := &redsyncMutex{}
	m.m = s.rs.NewMutex(name, redsync.WithExpiry(s.ttl), redsync.WithTries(math.MaxInt32),
		redsync.WithRetryDelayFunc(func(int) time.Duration { return m.backoff.NextBackoff() }))
	return m
}

// redsyncMutex is its own lease: redsync's is not to be shared.
type redsyncMutex struct {
	m       *redsync.Mutex
	backoff backoff
}

func (m *redsyncMutex) lock(ctx context.Context) (lease, error) {
	m.backoff = backoff{}
	if err := m.m.LockContext(ctx); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *redsyncMutex) Unlock(ctx context.Context) error {
	ok, err := m.m.UnlockContext(ctx)
	if err == nil && !ok {
		err = errors.New("was not held")
	}
	return err
}
