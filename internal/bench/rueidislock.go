package main

import (
	"context"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

func rueidislockAdapter() adapter {
	return adapter{
		name: "rueidislock",
		about: "its own client; one key (KeyMajority 1), NoLoopTracking, renewed each third of the TTL; " +
			"waits for the server's invalidation messages; a try may take 1 s (TryNextAfter)",
		inside: []string{"get", "set", "del", "pexpireat"},
		open: func(c conditions) (session, error) {
			locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
				ClientOption:   rueidis.ClientOption{InitAddress: []string{c.addr}},
				KeyMajority:    1,
				NoLoopTracking: true,
				KeyValidity:    c.ttl,
				ExtendInterval: c.ttl / 3,
				TryNextAfter:   time.Second,
			})
			if err != nil {
				return session{}, err
			}
			return session{close: locker.Close, mutex: func(name string) mutex {
				return func(ctx context.Context) (lease, error) {
					_, cancel, err := locker.WithContext(ctx, name)
					return rueidislockLease(cancel), err
				}
			}}, nil
		},
	}
}

// rueidislockLease waits for the release, as the others do.
type rueidislockLease context.CancelFunc

func (l rueidislockLease) Unlock(context.Context) error {
	l()
	return nil
}
