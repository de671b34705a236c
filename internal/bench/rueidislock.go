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
		renews: true,
		shared: true,
		open: func(c conditions) (session, error) {
			locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
				ClientOption:   rueidis.ClientOption{InitAddress: []string{c.addr}},
				KeyMajority:    1,
				NoLoopTracking: true,
				KeyValidity:    c.ttl,
				ExtendInterval: c.ttl / 3,
				TryNextAfter:   time.Second,
			})
			return rueidislockSession{locker}, err
		},
	}
}

type rueidislockSession struct{ locker rueidislock.Locker }

func (s rueidislockSession) close() { s.locker.Close() }

func (s rueidislockSession) mutex(name string) mutex { return rueidislockMutex{s.locker, name} }

type rueidislockMutex struct {
	locker rueidislock.Locker
	name   string
}

func (m rueidislockMutex) lock(ctx context.Context) (lease, error) {
	_, cancel, err := m.locker.WithContext(ctx, m.name)
	if err != nil {
		return nil, err
	}
	return rueidislockLease(cancel), nil
}

// rueidislockLease waits for the release, as the others do.
type rueidislockLease context.CancelFunc

func (l rueidislockLease) Unlock(context.Context) error {
	l()
	return nil
}
