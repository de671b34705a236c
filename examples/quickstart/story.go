package main

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/examples/fencing/storage"
	"github.com/seed-8c25f305/watchlock/examples/internal/timeline"
)

// story is what the acts share.
type story struct {
	*timeline.Timeline
	rdb     *redis.Client
	prefix  string        // of every key of this run
	apiTime time.Duration // that the logistics API takes for a request

	// orderLock is what a worker puts around an order in the act "with a lock".
	// The tests break it to see that the act notices.
	orderLock func(client *watchlock.Client, name string) section

	// write is how a worker writes a row in the act about the late write. The
	// tests break it too.
	write func(ctx context.Context, rows *storage.Store, order, status string, token int64) error
}

// section runs a function, alone or not: a *watchlock.Mutex does it alone.
type section interface {
	Do(ctx context.Context, f func(context.Context) error) error
}

func newStory(rdb *redis.Client, out io.Writer) *story {
	return &story{
		Timeline: timeline.New(out),
		rdb:      rdb,
		prefix:   "watchlock-quickstart:" + uuid.NewString()[:8] + ":",
		apiTime:  200 * time.Millisecond,
		orderLock: func(client *watchlock.Client, name string) section {
			return client.NewMutex(name)
		},
		write: func(ctx context.Context, rows *storage.Store, order, status string, token int64) error {
			return rows.Write(ctx, order, status, token)
		},
	}
}

// tell plays the acts. An act returns an error only when it cannot go on;
// claims that do not hold are counted.
func (s *story) tell(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, s.cleanUp(ctx)) }()
	for _, act := range []func(context.Context) error{
		s.withoutLock,
		s.withLock,
		s.longJob,
		s.busy,
		s.explicitLease,
		s.lateWrite,
	} {
		if err := act(ctx); err != nil {
			return err
		}
	}
	return s.Finish("Each act is a file to read in examples/quickstart. README.md tells the rest.")
}

// client makes what one server of the shop would make at its start. Each worker
// has a client of its own: to Redis, and to each other, they are strangers, as if
// they ran on different machines.
func (s *story) client(opts ...watchlock.Option) (*watchlock.Client, error) {
	return watchlock.New(s.rdb, append(opts, watchlock.WithKeyPrefix(s.prefix))...)
}

// cleanUp removes what a failed run may have left, and the counter of a fenced
// lock's tokens, which outlives the lock so that they rise. Locks that were
// unlocked or have expired are gone already.
func (s *story) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	keys := s.rdb.Scan(ctx, 0, "*"+s.prefix+"*", 1000).Iterator()
	for keys.Next(ctx) {
		if err := s.rdb.Del(ctx, keys.Val()).Err(); err != nil {
			return err
		}
	}
	return keys.Err()
}

// pass lets d pass, as work would, and returns early when ctx ends.
func pass(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
