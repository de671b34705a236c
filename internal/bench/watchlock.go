package main

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
)

var withoutPassing = watchlock.WithLocalHandoff(0)

func watchlockAdapter(name, about string, make func(*watchlock.Client, string) mutex, opts ...watchlock.Option) adapter {
	return adapter{
		name:   name,
		about:  about,
		inside: scriptCommands,
		open: func(c conditions) (session, error) {
			rdb := redis.NewClient(clientOptions(c.addr))
			client, err := watchlock.New(rdb, append(opts, watchlock.WithWatchdogTimeout(c.ttl))...)
			return session{
				mutex: func(name string) mutex { return make(client, name) },
				close: func() {
					_ = client.Close() // it names what is still held, which is then left to expire
					_ = rdb.Close()
				},
			}, err
		},
	}
}

func plainMutex(client *watchlock.Client, name string) mutex {
	m := client.NewMutex(name)
	return func(ctx context.Context) (lease, error) { return m.Lock(ctx) }
}

func fencedMutex(client *watchlock.Client, name string) mutex {
	m := client.NewFencedMutex(name)
	return func(ctx context.Context) (lease, error) { return m.Lock(ctx) }
}
