package locktest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// HandOverBound is how long a waiter may take after the release that frees its
// lock.
const HandOverBound = 500 * time.Millisecond

// OneAttempt is how long an attempt may go unanswered.
const OneAttempt = time.Second

// loadScripts makes the server know all scripts, so that a call is one command
// and a fault meets a call that runs.
func loadScripts(t testing.TB, rdb redis.UniversalClient) {
	t.Helper()
	for _, source := range sourcesOfTest() {
		if err := rdb.ScriptLoad(context.Background(), source).Err(); err != nil {
			t.Fatalf("SCRIPT LOAD: %v", err)
		}
	}
}

// WarmClient is newTestClient on a server that knows the scripts, to which it has a connection.
func WarmClient(t testing.TB, rdb redis.UniversalClient, opts ...watchlock.Option) *watchlock.Client {
	t.Helper()
	loadScripts(t, rdb)
	err := rdb.Do(context.Background(), "SET", "nothing", "x", "IFEQ", "nobody", "PX", 1).Err()
	c := NewTestClient(t, rdb, opts...)
	if _, err := NewTestMutex(c, "warm").Info(context.Background()); err != nil {
		t.Fatalf("Info: %v", err)
	}
	return KnowServer(c, err != nil && !errors.Is(err, redis.Nil))
}

// CheckNextEnters fails unless somebody who tries now gets the lock within the
// bound, and gives it back.
func CheckNextEnters(t testing.TB, m *watchlock.Mutex) {
	t.Helper()
	l, err := m.TryLock(context.Background(), HandOverBound)
	if err != nil {
		t.Fatalf("the next waiter: %v", err)
	}
	MustUnlock(t, l)
}

// PoolOf is the caller's client, as far as its pool goes.
func PoolOf(c *watchlock.Client) redis.UniversalClient {
	rdb, _ := poolsOfTests.Load(c)
	return rdb.(redis.UniversalClient)
}

// closeAll closes the clients and their pools.
func closeAll(t testing.TB, clients []*watchlock.Client) {
	t.Helper()
	for _, c := range clients {
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	for _, c := range clients {
		_ = PoolOf(c).Close() // two may share one
	}
}

// CheckBubbleEmpty closes the clients and their pools and fails if the server
// then has a key, a subscription or a connection. The bubble itself fails when a
// goroutine is left.
func CheckBubbleEmpty(t testing.TB, v *redistest.Virtual, clients ...*watchlock.Client) {
	t.Helper()
	closeAll(t, clients)
	time.Sleep(time.Millisecond) // the server hears of closed connections
	if keys := WithoutCounters(v.Mini().Keys()); len(keys) != 0 {
		t.Errorf("keys left: %q", keys)
	}
	if topics := v.Mini().PubSubChannels("*"); len(topics) != 0 {
		t.Errorf("subscriptions left: %q", topics)
	}
	if n := v.Conns(); n != 0 {
		t.Errorf("%d connections left", n)
	}
}

// CheckServerEmpty closes the clients and their pools and fails if the server
// then has a key, a subscription or a connection but the one that asks.
func CheckServerEmpty(t testing.TB, s *redistest.Server, clients ...*watchlock.Client) {
	t.Helper()
	if n := ServerKeys(t, s); n != 0 {
		t.Errorf("%d keys left", n)
	}
	closeAll(t, clients)
	var topics, list any
	Eventually(t, 2*time.Second, "only the connection that asks is left", func() bool {
		topics, _ = s.Do("PUBSUB", "CHANNELS")
		list, _ = s.Do("CLIENT", "LIST", "TYPE", "normal")
		left, ok := topics.([]any)
		return ok && len(left) == 0 && strings.Count(fmt.Sprint(list), "id=") == 1
	})
}

// ServerKeys is how many keys the server has, counters of tokens left out.
func ServerKeys(t testing.TB, s *redistest.Server) int64 {
	t.Helper()
	keys, err := s.Do("KEYS", "*")
	if err != nil {
		t.Fatalf("KEYS: %v", err)
	}
	n := int64(0)
	for _, k := range keys.([]any) {
		n += int64(len(WithoutCounters([]string{k.(string)})))
	}
	return n
}

// ServerTTL is the key's PTTL: -2 ms without the key, -1 ms without an end.
func ServerTTL(t testing.TB, s *redistest.Server, key string) time.Duration {
	t.Helper()
	ms, err := s.Do("PTTL", key)
	if err != nil {
		t.Fatalf("PTTL %s: %v", key, err)
	}
	return time.Duration(ms.(int64)) * time.Millisecond
}

// VirtualRenewals is how many renewals the server has read since the last Reset.
func VirtualRenewals(v *redistest.Virtual) int {
	return v.CountIf(Renews())
}

// FieldOf is the owner of a lock in the virtual server, "" when it is free.
func FieldOf(t testing.TB, v *redistest.Virtual, key string) string {
	t.Helper()
	if !v.Mini().Exists(key) {
		return ""
	}
	if KindOfTest() == "setnx" {
		owner, err := v.Mini().Get(key)
		if err != nil {
			t.Fatalf("value of %s: %v", key, err)
		}
		return owner
	}
	fields, err := v.Mini().HKeys(key)
	if err != nil || len(fields) != 1 {
		t.Fatalf("fields of %s: %q, %v", key, fields, err)
	}
	return fields[0]
}

// LockCall is a call of Lock or TryLock on a goroutine of its own and what came of it.
type LockCall struct {
	Lease *watchlock.Lease
	Err   error
	Took  time.Duration
	Done  chan struct{}
}

// GoLock calls lock on a goroutine of its own.
func GoLock(lock func() (*watchlock.Lease, error)) *LockCall {
	c := &LockCall{Done: make(chan struct{})}
	start := time.Now()
	go func() {
		defer close(c.Done)
		c.Lease, c.Err = lock()
		c.Took = time.Since(start)
	}()
	return c
}

// Wait returns when the call has. One that hangs ends the test.
func (c *LockCall) Wait(t testing.TB) {
	t.Helper()
	select {
	case <-c.Done:
	case <-time.After(2 * time.Minute):
		t.Fatal("a call has not come back for two minutes")
	}
}

// MustErr fails unless err matches want.
func MustErr(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: %v, want one that matches %q", what, err, want)
	}
}

// RefusesNow fails unless m is held for a goroutine and a context of its own, in
// one attempt and in a wait.
func RefusesNow(t *testing.T, m *watchlock.Mutex) {
	t.Helper()
	for _, wait := range []time.Duration{0, 100 * time.Millisecond} {
		errs := make(chan error, 1)
		go func() {
			l, err := m.TryLock(context.Background(), wait)
			if err == nil {
				_ = l.Unlock(context.Background())
			}
			errs <- err
		}()
		if err := <-errs; !errors.Is(err, watchlock.ErrNotAcquired) {
			t.Errorf("a try of %v on a held lock: %v, want ErrNotAcquired", wait, err)
		}
	}
}

// RedisAnswered returns when the background releases of c are answered.
func RedisAnswered(t *testing.T, c *watchlock.Client) {
	t.Helper()
	Eventually(t, 5*time.Second, "the background releases are answered", func() bool { return len(OrphansOf(c).All()) == 0 })
}

// FirstCalls are the calls that meet a bad name or option first.
func FirstCalls(ctx context.Context, m *watchlock.Mutex) map[string]func() error {
	inside := func(context.Context) error { panic("the section ran") }
	return map[string]func() error{
		"lock":         func() error { _, err := m.Lock(ctx); return err },
		"try lock":     func() error { _, err := m.TryLock(ctx, time.Second); return err },
		"lock do":      func() error { return m.Do(ctx, inside) },
		"try lock do":  func() error { return m.TryDo(ctx, 0, inside) },
		"info":         func() error { _, err := m.Info(ctx); return err },
		"try lock now": func() error { _, err := m.TryLock(ctx, -1); return err },
	}
}

// Closes waits for a lease, or its context, to end.
func Closes(t *testing.T, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("the holder was not told")
	}
}

// MustDo sends one command to a server.
func MustDo(t testing.TB, s *redistest.Server, args ...any) any {
	t.Helper()
	reply, err := s.Do(args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return reply
}
