package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// The library's own two scripts; a test compares them.
var (
	//go:embed lua/acquire.lua
	rawAcquire string
	//go:embed lua/release.lua
	rawRelease string
)

// scriptCommands are those of the library's scripts.
var scriptCommands = []string{"hdel", "hlen", "hset", "hexists", "pttl", "pexpire", "publish", "get", "set", "time", "pubsub|numsub"}

// rawAdapter is what a lock costs in Redis and nothing else.
func rawAdapter(name, about string, pauses bool) adapter {
	return adapter{
		name:   name,
		about:  about,
		inside: scriptCommands,
		polls:  true,
		open: func(c conditions) (session, error) {
			rdb := redis.NewClient(clientOptions(c.addr))
			s := &rawSession{rdb: rdb, ttl: c.ttl.Milliseconds(), pauses: pauses, id: uuid.NewString()}
			var err1, err2 error
			s.acquire, err1 = rdb.ScriptLoad(context.Background(), rawAcquire).Result()
			s.release, err2 = rdb.ScriptLoad(context.Background(), rawRelease).Result()
			return session{mutex: s.mutex, close: func() { _ = rdb.Close() }}, errors.Join(err1, err2)
		},
	}
}

type rawSession struct {
	rdb              *redis.Client
	acquire, release string
	ttl              int64
	pauses           bool
	id               string // of owners; as long as those of a library
	owners           atomic.Int64
}

func (s *rawSession) mutex(name string) mutex {
	m := &rawMutex{
		s:       s,
		keys:    []string{name},
		owner:   fmt.Sprintf("%s:1:%d", s.id, s.owners.Add(1)),
		channel: "redisson_lock__channel:{" + name + "}",
	}
	return m.lock
}

// rawMutex is its own lease: it is one goroutine's.
type rawMutex struct {
	s              *rawSession
	keys           []string
	owner, channel string
}

func (m *rawMutex) lock(ctx context.Context) (lease, error) {
	var b backoff
	for {
		reply, err := m.s.rdb.EvalSha(ctx, m.s.acquire, m.keys, m.s.ttl, m.owner).Slice()
		if err != nil {
			return nil, err
		}
		if reply[0] == int64(1) {
			return m, nil
		}
		if m.s.pauses {
			pause(b.NextBackoff())
		}
	}
}

func (m *rawMutex) Unlock(ctx context.Context) error {
	reply, err := m.s.rdb.EvalSha(ctx, m.s.release, m.keys, m.owner, m.channel).Slice()
	if err == nil && reply[0] != int64(1) {
		err = fmt.Errorf("%q was not held", m.keys[0])
	}
	return err
}
