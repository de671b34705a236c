// Package mistakes is what not to do: locks as they are often written, each with
// the mistake that docs/mistakes.md shows. The tests run each of them, and then
// the same steps with watchlock, on the same server.
package mistakes

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// plainDel releases with DEL, whoever holds the lock by then.
type plainDel struct {
	rdb *redis.Client
	key string
}

func (l plainDel) tryLock(ctx context.Context, ttl time.Duration) (bool, error) {
	return setNX(ctx, l.rdb, l.key, "locked", ttl)
}

func (l plainDel) unlock(ctx context.Context) error {
	return l.rdb.Del(ctx, l.key).Err()
}

// twoSteps takes the lock with one command, and sets its end with another.
type twoSteps struct {
	rdb *redis.Client
	key string
}

func (l twoSteps) tryLock(ctx context.Context, ttl time.Duration) (bool, error) {
	taken, err := l.rdb.Do(ctx, "SETNX", l.key, "locked").Bool()
	if err != nil || !taken {
		return false, err
	}
	return true, l.rdb.PExpire(ctx, l.key, ttl).Err() // if the process lives to send it
}

// sharedHandle is one lock for all goroutines of a process. It remembers its
// token, and lets in whoever comes while the key has that.
type sharedHandle struct {
	rdb *redis.Client
	key string

	mu    sync.Mutex
	token string
}

func (l *sharedHandle) tryLock(ctx context.Context, ttl time.Duration) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.token == "" {
		l.token = uuid.NewString()
	}
	taken, err := setNX(ctx, l.rdb, l.key, l.token, ttl)
	if err != nil || taken {
		return taken, err
	}
	owner, err := l.rdb.Get(ctx, l.key).Result()
	return owner == l.token, err // "we hold it already"
}

// recipe does both commands right: one SET, and a release that compares. What goes
// wrong with it lies in how it is used.
type recipe struct {
	rdb   *redis.Client
	key   string
	token string
}

var release = redis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])`)

func newRecipe(rdb *redis.Client, key string) *recipe {
	return &recipe{rdb, key, uuid.NewString()}
}

func (l *recipe) tryLock(ctx context.Context, ttl time.Duration) (bool, error) {
	return setNX(ctx, l.rdb, l.key, l.token, ttl)
}

// unlock sends nothing when ctx has been cancelled, as that of a request whose
// client has gone.
func (l *recipe) unlock(ctx context.Context) error {
	return release.Run(ctx, l.rdb, []string{l.key}, l.token).Err()
}

// setNX reports whether it set the key.
func setNX(ctx context.Context, rdb *redis.Client, key, value string, ttl time.Duration) (bool, error) {
	answer, err := rdb.Do(ctx, "SET", key, value, "NX", "PX", ttl.Milliseconds()).Result()
	if err == redis.Nil { //nolint:errorlint // go-redis returns it as it is
		return false, nil
	}
	return answer == "OK", err
}
