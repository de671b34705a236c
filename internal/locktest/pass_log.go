package locktest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// passed is one section of a waiter.
type passed struct {
	N         int // of the waiter
	From      time.Time
	Token     int64
	Burst     any
	UnlockErr error
}

// PassLog is what waiters did, in the order of their sections.
type PassLog struct {
	mu   sync.Mutex
	list []passed
	All  sync.WaitGroup
}

// Sections are those that were logged.
func (p *PassLog) Sections() []passed {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.list)
}

// Wait starts a waiter, that stays inside for section, and returns when it is
// queued.
func (p *PassLog) Wait(t testing.TB, n int, lock LockOfKind, section time.Duration, opts ...watchlock.LockOption) {
	t.Helper()
	p.All.Go(func() {
		l, err := lock(context.Background(), opts...)
		if err != nil {
			t.Errorf("waiter %d: %v", n, err)
			return
		}
		from := time.Now()
		p.mu.Lock()
		i := len(p.list)
		p.list = append(p.list, passed{N: n, From: from, Token: TokenOf(l), Burst: BurstOf(l)})
		p.mu.Unlock()
		time.Sleep(section)
		err = l.Unlock(context.Background())
		p.mu.Lock()
		p.list[i].UnlockErr = err
		p.mu.Unlock()
	})
	synctest.Wait()
}

// AcquireRuns matches the runs of the scripts that acquire a hash.
func AcquireRuns(c redistest.Command) bool {
	return redistest.Runs(wire.AcquireSource)(c) || redistest.Runs(wire.AcquireFencedSource)(c) || RelayRuns(c)
}

// RelayRuns matches the runs of the scripts that release a hash and acquire it again.
func RelayRuns(c redistest.Command) bool {
	return redistest.Runs(wire.RelayScript.Source)(c) || redistest.Runs(wire.RelayFencedScript.Source)(c)
}

// RelayKinds runs f for each kind whose locks are relayed.
func RelayKinds(t *testing.T, f func(t *testing.T, v *redistest.Virtual, kind string)) {
	for _, kind := range []string{"mutex", "fenced"} {
		t.Run(kind, func(t *testing.T) {
			InBubble(t, func(t *testing.T, v *redistest.Virtual) { f(t, v, kind) })
		})
	}
}

// RelayClient is a client of a server that knows all scripts.
func RelayClient(t *testing.T, v *redistest.Virtual, opts ...watchlock.Option) (*watchlock.Client, *redistest.Wire) {
	t.Helper()
	raw := v.Client()
	defer raw.Close()
	for _, source := range []string{wire.AcquireSource, wire.AcquireFencedSource, wire.ReleaseSource, wire.RenewSource, wire.RelayScript.Source, wire.RelayFencedScript.Source} {
		if err := raw.ScriptLoad(context.Background(), source).Err(); err != nil {
			t.Fatalf("SCRIPT LOAD: %v", err)
		}
	}
	v.Reset()
	w := redistest.NewWire()
	return NewTestClient(t, v.Client(w.Options()), opts...), w
}

// PlainReleases matches the runs of the script that only releases a hash.
var PlainReleases = redistest.Runs(wire.ReleaseSource)

// SectionsOf is how many sections a test of many has. The race detector makes
// them slow.
func SectionsOf(n int) int {
	if RaceEnabled {
		n /= 10
	}
	return FullCount(n)
}

// stints are bursts of clients, by the client's number, in order.
type stints struct {
	mu   sync.Mutex
	list []stint
}

type stint struct {
	Client   int
	from, to time.Time
}

// add notes that a section of a client ends.
func (s *stints) add(client int, from time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.list); n > 0 && s.list[n-1].Client == client {
		s.list[n-1].to = time.Now()
		return
	}
	s.list = append(s.list, stint{client, from, time.Now()})
}

// CrowdOfClients has each client's goroutines lock again and again until d has passed.
func CrowdOfClients(t *testing.T, clients []*watchlock.Client, goroutines int, section, d time.Duration) []stint {
	t.Helper()
	var seen stints
	var all sync.WaitGroup
	end := time.Now().Add(d)
	for i, c := range clients {
		m := NewTestMutex(c, "k")
		for range goroutines {
			all.Go(func() {
				for time.Now().Before(end) {
					l, err := m.Lock(context.Background())
					if err != nil {
						t.Errorf("client %d: %v", i, err)
						return
					}
					from := time.Now()
					time.Sleep(section)
					seen.add(i, from)
					MustUnlock(t, l)
				}
			})
		}
	}
	all.Wait()
	return seen.list
}
