package main

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

func redislockAdapter() adapter {
	return adapter{
		name:   "bsm/redislock",
		about:  "polls with the pauses of raw go-redis, pausing (a RetryStrategy); does not renew",
		inside: []string{"msetnx", "mset", "mget", "getrange", "pexpire", "del", "pttl"},
		polls:  true,
		open: func(c conditions) (session, error) {
			rdb := newRedis(c)
			return &redislockSession{rdb, redislock.New(rdb), c.ttl}, nil
		},
	}
}

type redislockSession struct {
	rdb    *redis.Client
	client *redislock.Client
	ttl    time.Duration
}

func (s *redislockSession) close() { _ = s.rdb.Close() }

func (s *redislockSession) mutex(name string) mutex {
	m := &redislockMutex{s: s, name: name}
	m.opts.RetryStrategy = &m.backoff
	return m
}

type redislockMutex struct {
	s       *redislockSession
	name    string
	backoff backoff
	opts    redislock.Options
}

func (m *redislockMutex) lock(ctx context.Context) (lease, error) {
	m.backoff = backoff{}
	l, err := m.s.client.Obtain(ctx, m.name, m.s.ttl, &m.opts)
	if err != nil {
		return nil, err
	}
	return (*redislockLease)(l), nil
}

type redislockLease redislock.Lock

func (l *redislockLease) Unlock(ctx context.Context) error { return (*redislock.Lock)(l).Release(ctx) }
