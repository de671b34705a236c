package main

import (
	"context"

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
			rdb := redis.NewClient(clientOptions(c.addr))
			client := redislock.New(rdb)
			return session{close: func() { _ = rdb.Close() }, mutex: func(name string) mutex {
				pauses := new(backoff)
				opts := &redislock.Options{RetryStrategy: pauses}
				return func(ctx context.Context) (lease, error) {
					*pauses = backoff{}
					l, err := client.Obtain(ctx, name, c.ttl, opts)
					return (*redislockLease)(l), err
				}
			}}, nil
		},
	}
}

type redislockLease redislock.Lock

func (l *redislockLease) Unlock(ctx context.Context) error { return (*redislock.Lock)(l).Release(ctx) }
