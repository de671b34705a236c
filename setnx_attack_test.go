package watchlock

import (
	"context"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestSetNXExtendThatComesLateDoesNotLowerTheTTL(t *testing.T) {
	s := redistest.Start(t, redistest.On(redistest.Redis86))
	w := redistest.NewWire()
	a := newTestClient(t, s.Client(w.Options()))
	b := newTestClient(t, s.Client())
	l := mustLock(t, a.NewSetNXMutex("job"), WithLeaseTime(3*time.Second))
	go1 := make(chan struct{})
	w.On(func(c redistest.Command) bool { return c.Name == "SET" || redistest.Runs(renewStringSource)(c) }, redistest.HoldRequest(go1))
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
