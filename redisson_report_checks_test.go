package watchlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// handOverBound is how long a waiter may take after the release that frees its
// lock.
const handOverBound = 500 * time.Millisecond

// oneAttempt is how long an attempt may go unanswered.
const oneAttempt = time.Second

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

// warmClient is newTestClient on a server that knows the scripts, to which it has a connection.
func warmClient(t testing.TB, rdb redis.UniversalClient, opts ...Option) *Client {
	t.Helper()
	loadScripts(t, rdb)
	err := rdb.Do(context.Background(), "SET", "nothing", "x", "IFEQ", "nobody", "PX", 1).Err()
	c := newTestClient(t, rdb, opts...)
	if _, err := newTestMutex(c, "warm").Info(context.Background()); err != nil {
		t.Fatalf("Info: %v", err)
	}
	return knowServer(c, err != nil && !errors.Is(err, redis.Nil))
}

// checkNextEnters fails unless somebody who tries now gets the lock within the
// bound, and gives it back.
func checkNextEnters(t testing.TB, m *Mutex) {
	t.Helper()
	l, err := m.TryLock(context.Background(), handOverBound)
	if err != nil {
		t.Fatalf("the next waiter: %v", err)
	}
	mustUnlock(t, l)
}

// poolOf is the caller's client, as far as its pool goes.
func poolOf(c *Client) redis.UniversalClient {
	rdb, _ := poolsOfTests.Load(c)
	return rdb.(redis.UniversalClient)
}

// closeAll closes the clients and their pools.
func closeAll(t testing.TB, clients []*Client) {
	t.Helper()
	for _, c := range clients {
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	for _, c := range clients {
		_ = poolOf(c).Close() // two may share one
	}
}

// checkBubbleEmpty closes the clients and their pools and fails if the server
// then has a key, a subscription or a connection. The bubble itself fails when a
// goroutine is left.
func checkBubbleEmpty(t testing.TB, v *redistest.Virtual, clients ...*Client) {
	t.Helper()
	closeAll(t, clients)
	time.Sleep(time.Millisecond) // the server hears of closed connections
	if keys := withoutCounters(v.Mini().Keys()); len(keys) != 0 {
		t.Errorf("keys left: %q", keys)
	}
	if topics := v.Mini().PubSubChannels("*"); len(topics) != 0 {
		t.Errorf("subscriptions left: %q", topics)
	}
	if n := v.Conns(); n != 0 {
		t.Errorf("%d connections left", n)
	}
}

// checkServerEmpty closes the clients and their pools and fails if the server
// then has a key, a subscription or a connection but the one that asks.
func checkServerEmpty(t testing.TB, s *redistest.Server, clients ...*Client) {
	t.Helper()
	if n := serverKeys(t, s); n != 0 {
		t.Errorf("%d keys left", n)
	}
	closeAll(t, clients)
	var topics, list any
	eventually(t, 2*time.Second, "only the connection that asks is left", func() bool {
		topics, _ = s.Do("PUBSUB", "CHANNELS")
		list, _ = s.Do("CLIENT", "LIST", "TYPE", "normal")
		left, ok := topics.([]any)
		return ok && len(left) == 0 && strings.Count(fmt.Sprint(list), "id=") == 1
	})
}

// serverKeys is how many keys the server has, counters of tokens left out.
func serverKeys(t testing.TB, s *redistest.Server) int64 {
	t.Helper()
	keys, err := s.Do("KEYS", "*")
	if err != nil {
		t.Fatalf("KEYS: %v", err)
	}
	n := int64(0)
	for _, k := range keys.([]any) {
		n += int64(len(withoutCounters([]string{k.(string)})))
	}
	return n
}

// serverTTL is the key's PTTL: -2 ms without the key, -1 ms without an end.
func serverTTL(t testing.TB, s *redistest.Server, key string) time.Duration {
	t.Helper()
	ms, err := s.Do("PTTL", key)
	if err != nil {
		t.Fatalf("PTTL %s: %v", key, err)
	}
	return time.Duration(ms.(int64)) * time.Millisecond
}

// virtualRenewals is how many renewals the server has read since the last Reset.
func virtualRenewals(v *redistest.Virtual) int {
	return v.CountIf(renews())
}

// fieldOf is the owner of a lock in the virtual server, "" when it is free.
func fieldOf(t testing.TB, v *redistest.Virtual, key string) string {
	t.Helper()
	if !v.Mini().Exists(key) {
		return ""
	}
	if kindOfTest() == "setnx" {
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

// lockCall is a call of Lock or TryLock on a goroutine of its own and what came of it.
type lockCall struct {
	lease *Lease
	err   error
	took  time.Duration
	done  chan struct{}
}

// goLock calls lock on a goroutine of its own.
func goLock(lock func() (*Lease, error)) *lockCall {
	c := &lockCall{done: make(chan struct{})}
	start := time.Now()
	go func() {
		defer close(c.done)
		c.lease, c.err = lock()
		c.took = time.Since(start)
	}()
	return c
}

// wait returns when the call has. One that hangs ends the test.
func (c *lockCall) wait(t testing.TB) {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(2 * time.Minute):
		t.Fatal("a call has not come back for two minutes")
	}
}

// mustErr fails unless err matches want.
func mustErr(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: %v, want one that matches %q", what, err, want)
	}
}
