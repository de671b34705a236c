package watchlock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

func TestSetNXExtendThatComesLateDoesNotLowerTheTTL(t *testing.T) {
	s := redistest.Start(t, redistest.On(redistest.Redis86))
	w := redistest.NewWire()
	a := newTestClient(t, s.Client(w.Options()))
	b := newTestClient(t, s.Client())
	l := mustLock(t, a.NewSetNXMutex("job"), WithLeaseTime(3*time.Second))
	go1 := make(chan struct{})
	w.On(func(c redistest.Command) bool { return c.Name == "SET" || redistest.Runs(wire.RenewStringSource)(c) }, redistest.HoldRequest(go1))
	err := l.Extend(context.Background(), 4*time.Second)
	t.Logf("first Extend: %v", err)
	if err := l.Extend(context.Background(), time.Minute); err != nil {
		t.Fatal(err)
	}
	close(go1)
	<-time.After(100 * time.Millisecond)
	ttl, _ := s.Do("pttl", "job")
	t.Logf("TTL %v, trusted for %v", ttl, time.Until(l.ExpiresAt()))
	other, err := b.NewSetNXMutex("job").TryLock(context.Background(), 6*time.Second)
	if err == nil && l.Err() == nil {
		t.Errorf("two leases are trusted at once: until %v and %v", l.ExpiresAt(), other.ExpiresAt())
	}
}

func TestSetNXRenewalsSurviveFullMemory(t *testing.T) {
	s := redistest.Start(t, redistest.On(redistest.Redis86))
	a := newTestClient(t, s.Client(), WithWatchdogTimeout(900*time.Millisecond))
	hash, str := mustLock(t, a.NewMutex("hash")), mustLock(t, a.NewSetNXMutex("string"))
	s.Config("maxmemory", "1")
	<-time.After(1200 * time.Millisecond)
	if hash.Err() != nil || str.Err() != nil {
		t.Errorf("hash: %v, string: %v", hash.Err(), str.Err())
	}
}

func TestAStringReleaseOfALostLockYieldsToNobody(t *testing.T) {
	s := redistest.Start(t, redistest.On(redistest.Redis86))
	c := newTestClient(t, s.Client(), WithLocalHandoff(0))
	other := newTestClient(t, s.Client())
	m := c.NewSetNXMutex("k")
	mustUnlock(t, mustLock(t, m)) // it knows the server now
	l := mustLock(t, m)
	waits := lockSoon(other.NewSetNXMutex("k"))
	eventually(t, 5*time.Second, "other listens", func() bool { e, _ := other.subs.Hears(m.keys.Channel); return e == 1 })
	rdb := s.Client()
	if err := rdb.Set(context.Background(), "k", "stranger", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(context.Background()); !errors.Is(err, ErrLost) {
		t.Fatal(err)
	}
	g, _ := c.gate(&m.keys)
	g.mu.Lock()
	turns := g.othersLocked().turns
	g.mu.Unlock()
	g.unref()
	if turns != 0 {
		t.Errorf("%d turns are given after a release of nothing", turns)
	}
	rdb.Del(context.Background(), "k")
	mustUnlock(t, (<-waits).lease)
}
