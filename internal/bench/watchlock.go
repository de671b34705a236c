package main

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
)

func watchlockAdapter(name, about string, opts ...watchlock.Option) adapter {
	return adapter{
		name:   name,
		about:  about,
		inside: scriptCommands,
		renews: true,
		shared: true,
		open: func(c conditions) (session, error) {
			rdb := newRedis(c)
			client, err := watchlock.New(rdb, append(opts, watchlock.WithWatchdogTimeout(c.ttl))...)
			return &watchlockSession{rdb, client}, err
		},
	}
}

func watchlockNoPassing() adapter {
	return watchlockAdapter(noPassing, "WithLocalHandoff(0): every Unlock releases in Redis",
		watchlock.WithLocalHandoff(0))
}

func watchlockFenced() adapter {
	a := watchlockAdapter("watchlock, fenced", "FencedMutex: every lease has a token")
	open := a.open
	a.open = func(c conditions) (session, error) {
		s, err := open(c)
		if err != nil {
			return nil, err
		}
		return fencedSession{s.(*watchlockSession)}, nil
	}
	return a
}

type watchlockSession struct {
	rdb    *redis.Client
	client *watchlock.Client
}

func (s *watchlockSession) close() {
	_ = s.client.Close() // it names what is still held, which is then left to expire
	_ = s.rdb.Close()
}

func (s *watchlockSession) mutex(name string) mutex { return plainMutex{s.client.NewMutex(name)} }

type plainMutex struct{ m *watchlock.Mutex }

func (m plainMutex) lock(ctx context.Context) (lease, error) {
	l, err := m.m.Lock(ctx)
	if err != nil {
		return nil, err
	}
	return l, nil
}

type fencedSession struct{ *watchlockSession }

func (s fencedSession) mutex(name string) mutex { return fencedMutex{s.client.NewFencedMutex(name)} }

type fencedMutex struct{ m *watchlock.FencedMutex }

func (m fencedMutex) lock(ctx context.Context) (lease, error) {
	l, err := m.m.Lock(ctx)
	if err != nil {
		return nil, err
	}
	return l, nil
}
