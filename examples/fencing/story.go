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

// leaseTime is that of worker A, who is stopped for longer. A lease that the
// watchdog renews ends too when its process is stopped, after 30 s.
const leaseTime = 500 * time.Millisecond

// story is what the acts share.
type story struct {
	*timeline.Timeline
	rdb    *redis.Client
	prefix string // of every key of this run
	store  *storage.Store

	// write is how a worker writes a row. The tests break it to see that the acts
	// notice.
	write func(ctx context.Context, order, status string, token int64) error
}

func newStory(rdb *redis.Client, store *storage.Store, out io.Writer) *story {
	return &story{
		Timeline: timeline.New(out),
		rdb:      rdb,
		prefix:   "watchlock-fencing:" + uuid.NewString()[:8] + ":",
		store:    store,
		write:    store.Write,
	}
}

// tell plays the acts.
func (s *story) tell(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, s.cleanUp(ctx)) }()
	for _, act := range []func(context.Context) error{s.withoutTokens, s.withTokens, s.fence, s.times} {
		if err := act(ctx); err != nil {
			return err
		}
	}
	return s.Finish("The statements are in examples/fencing/storage/storage.go, to be copied.")
}

// handover is a lock that worker A held and worker B holds.
type handover struct {
	first, second *watchlock.FencedLease
	end           func()
}

// handOver lets worker A take the lock and do something, and stops it until its
// lease has ended and worker B has been granted the lock.
func (s *story) handOver(ctx context.Context, name string, first func(lease *watchlock.FencedLease) error) (h handover, err error) {
	var ends []func()
	h.end = func() {
		for _, end := range ends {
			end()
		}
	}
	defer func() {
		if err != nil {
			h.end()
		}
	}()
	lock := func() (*watchlock.FencedMutex, error) {
		client, err := watchlock.New(s.rdb, watchlock.WithKeyPrefix(s.prefix))
		if err != nil {
			return nil, err
		}
		ends = append(ends, func() { _ = client.Close() })
		return client.NewFencedMutex(name), nil
	}
	a, err := lock()
	if err != nil {
		return h, err
	}
	if h.first, err = a.Lock(ctx, watchlock.WithLeaseTime(leaseTime)); err != nil {
		return h, err
	}
	s.Say("worker A", "holds %s for %s, token %d", name, timeline.MS(leaseTime), h.first.Token())
	if err := first(h.first); err != nil {
		return h, err
	}
	s.Say("worker A", "is stopped, as by a garbage collector or a machine that is moved")
	b, err := lock()
	if err != nil {
		return h, err
	}
	if h.second, err = b.Lock(ctx); err != nil { // waits until A's lease has ended
		return h, err
	}
	ends = append([]func(){func() { _ = h.second.Unlock(ctx) }}, ends...)
	s.Say("worker B", "holds %s, token %d", name, h.second.Token())
	return h, nil
}

// cleanUp removes the counters of the tokens, which outlive their locks so that
// tokens rise.
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
