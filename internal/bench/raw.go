package main

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
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

// rawAdapter is what a lock costs in Redis and nothing else: it has no waiting.
func rawAdapter() adapter {
	return rawScripts(rawName, "the two scripts of watchlock by EVALSHA, prepared once; no renewal, no check of time, "+
		"no waiting: refused, it asks again at once", false)
}

// pausingAdapter is the same for those who want to spare the server.
func pausingAdapter() adapter {
	return rawScripts(pausingName, "the same, but refused it asks again after a pause, "+
		"which doubles from 1 ms to 64 ms, less a random part of up to half", true)
}

func rawScripts(name, about string, pauses bool) adapter {
	return adapter{
		name:   name,
		about:  about,
		inside: scriptCommands,
		polls:  true,
		open: func(c conditions) (session, error) {
			rdb := newRedis(c)
			s := &rawSession{rdb: rdb, ttl: c.ttl.Milliseconds(), pauses: pauses, id: strconv.FormatInt(rawSessions.Add(1), 10)}
			var err error
			if s.acquire, err = rdb.ScriptLoad(context.Background(), rawAcquire).Result(); err == nil {
				s.release, err = rdb.ScriptLoad(context.Background(), rawRelease).Result()
			}
			return s, err
		},
	}
}

// rawOwner is the process in the owners of raw go-redis; as long as that of a library.
var (
	rawOwner    = uuid.NewString()
	rawSessions atomic.Int64
)

type rawSession struct {
	rdb              *redis.Client
	acquire, release string
	ttl              int64
	pauses           bool
	id               string
	owners           atomic.Int64
}

func (s *rawSession) close() { _ = s.rdb.Close() }

func (s *rawSession) mutex(name string) mutex {
	return &rawMutex{
		s:       s,
		keys:    []string{name},
		owner:   fmt.Sprintf("%s:%s:%d", rawOwner, s.id, s.owners.Add(1)),
		channel: "redisson_lock__channel:{" + name + "}",
	}
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
		if ctx.Err() != nil {
			return nil, ctx.Err()
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
