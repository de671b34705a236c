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
			rdb := redis.NewClient(clientOptions(c.addr))
			rs := redsync.New(goredis.NewPool(rdb))
			return session{close: func() { _ = rdb.Close() }, mutex: func(name string) mutex {
				var pauses backoff
				m := rs.NewMutex(name, redsync.WithExpiry(c.ttl), redsync.WithTries(math.MaxInt32),
					redsync.WithRetryDelayFunc(func(int) time.Duration { return pauses.NextBackoff() }))
				return func(ctx context.Context) (lease, error) {
					pauses = backoff{}
					return (*redsyncLease)(m), m.LockContext(ctx)
				}
			}}, nil
		},
	}
}

type redsyncLease redsync.Mutex

func (l *redsyncLease) Unlock(ctx context.Context) error {
	ok, err := (*redsync.Mutex)(l).UnlockContext(ctx)
	if err == nil && !ok {
		err = errors.New("was not held")
	}
	return err
}
