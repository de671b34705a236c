package interop

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

const (
	shortTimeout = 3 * time.Second // of the watchdogs of those who die
	lateEntry    = 5 * time.Second // how long after a dead holder's TTL a waiter may enter
)

// expiry is when the lock runs out if nobody renews it.
func expiry(t testing.TB, s *redistest.Server, name string) time.Time {
	t.Helper()
	began := time.Now()
	ttl := s.Client().PTTL(t.Context(), name).Val()
	if ttl < 0 || ttl > shortTimeout {
		t.Fatalf("the dead holder's lock has a TTL of %v, want at most %v", ttl, shortTimeout)
	}
	return began.Add(ttl)
}

// afterTheTTL fails the test unless the waiter entered when the lock had run
// out, and notes how much later.
func afterTheTTL(t testing.TB, who string, entered, expired time.Time) {
	t.Helper()
	late := entered.Sub(expired)
	woke(t, max(late, 0))
	if late < -10*time.Millisecond || late > lateEntry {
		t.Errorf("%s entered %v after the TTL, want at most %v", who, late, lateEntry)
	}
}

func TestTheJVMEntersAfterTheTTLOfAKilledHolderInGo(t *testing.T) {
	onEachPeerAtOnce(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		peer := j.open(t, s)
		h := startHolder(t, s, "order:1", shortTimeout)
		waiting := asleep(t, s, "order:1", 2, func() <-chan reply { return peer.start("lock", "main", "order:1") })
		h.kill()
		expired := expiry(t, s, "order:1")
		r := await(t, waiting)
		value[any](t, r)
		afterTheTTL(t, "the JVM", r.ended(), expired)
		peer.must("unlock", "main", "order:1")
	})
}

// heldByTheJVM has the JVM hold the lock on each server and a waiter in Go
// sleep before it.
func heldByTheJVM(t *testing.T, sides []side) []<-chan entry {
	t.Helper()
	var entered []<-chan entry
	for _, x := range sides {
		m := newClient(t, x.server).NewMutex("order:1")
		x.peer.must("lock", "main", "order:1")
		entered = append(entered, asleep(t, x.server, "order:1", 1, func() <-chan entry { return startLock(t, m) }))
	}
	for _, e := range entered {
		mustStillWait(t, e, "Go")
	}
	return entered
}

func expiries(t *testing.T, sides []side) []time.Time {
	t.Helper()
	var expired []time.Time
	for _, x := range sides {
		expired = append(expired, expiry(t, x.server, "order:1"))
	}
	return expired
}

func TestGoEntersAfterTheTTLOfAKilledJVM(t *testing.T) {
	onEachVictim(t, shortTimeout, func(t *testing.T, j *jvm, sides []side) {
		entered := heldByTheJVM(t, sides)
		j.mustBeQuiet(t)
		j.kill()
		expired := expiries(t, sides)
		for i, x := range sides {
			x.judge(t, func(t *testing.T) {
				e := mustEnter(t, entered[i])
				afterTheTTL(t, "Go", e.at, expired[i])
				mustUnlock(t, e.lease)
			})
		}
	})
}

func TestAStoppedJVMTouchesNothingOfWhoCameAfterItsTTL(t *testing.T) {
	onEachVictim(t, shortTimeout, func(t *testing.T, j *jvm, sides []side) {
		waiters := heldByTheJVM(t, sides)
		j.stop()
		expired := expiries(t, sides)
		var entries []entry
		var hashes []map[string]string
		for i, x := range sides {
			entries = append(entries, mustEnter(t, waiters[i]))
			hashes = append(hashes, x.server.Client().HGetAll(t.Context(), "order:1").Val())
		}
		j.cont()
		// The JVM's watchdog ticks before its holders do anything.
		var pauses []<-chan reply
		for _, x := range sides {
			pauses = append(pauses, x.peer.start("pause", "main", "", "millis", shortTimeout.Milliseconds()/3+100))
		}
		for i, x := range sides {
			x.judge(t, func(t *testing.T) {
				afterTheTTL(t, "Go", entries[i].at, expired[i])
				value[any](t, await(t, pauses[i]))
				mustRaise(t, x.peer, notHeldOnJVM, "unlock", "main", "order:1")
				rdb := x.server.Client()
				if now := rdb.HGetAll(t.Context(), "order:1").Val(); len(now) != 1 || !maps.Equal(now, hashes[i]) {
					t.Errorf("Go's hold was %v and is %v", hashes[i], now)
				}
				if ttl := rdb.PTTL(t.Context(), "order:1").Val(); ttl <= shortTimeout {
					t.Errorf("the TTL of Go's hold is %v, as the JVM's watchdog would set it", ttl)
				}
				if err := entries[i].lease.Err(); err != nil {
					t.Errorf("Go's lease: %v", err)
				}
				mustUnlock(t, entries[i].lease)
				mustBe(t, x.peer, true, "tryLock", "main", "order:1")
				x.peer.must("unlock", "main", "order:1")
				j.mustBeQuiet(t)
			})
		}
	})
}

// The mirror: Go's lease has run out, and its holder finds out late.
func TestALeaseInGoThatRanOutTouchesNothingOfTheJVMsHold(t *testing.T) {
	const leaseTime = 500 * time.Millisecond
	onEachPeerAtOnce(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		m, peer, rdb := newClient(t, s).NewMutex("order:1"), j.open(t, s), s.Client()
		lease := mustLock(t, m, watchlock.WithLeaseTime(leaseTime))
		expired := time.Now().Add(rdb.PTTL(t.Context(), "order:1").Val())
		r := peer.must("lock", "main", "order:1")
		afterTheTTL(t, "the JVM", r.ended(), expired)
		held := map[string]string{peer.owner("main"): "1"}
		if err := lease.Extend(t.Context(), time.Minute); !errors.Is(err, watchlock.ErrLost) {
			t.Errorf("Extend: %v", err)
		}
		if err := lease.Unlock(t.Context()); !errors.Is(err, watchlock.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
		if now := rdb.HGetAll(t.Context(), "order:1").Val(); !maps.Equal(now, held) {
			t.Errorf("the JVM's hold was %v and is %v", held, now)
		}
		ttlIs(t, "Redis", rdb.PTTL(t.Context(), "order:1").Val(), 30*time.Second)
		peer.must("unlock", "main", "order:1")
	})
}

// Two threads of the JVM and one goroutine bounce each of many locks, so that
// the kill meets the JVM in the middle of everything it does with one.
func TestAJVMKilledInTheMiddleOfAnythingDelaysGoByItsTTLAtMost(t *testing.T) {
	const names = 8
	onEachVictim(t, shortTimeout, func(t *testing.T, j *jvm, sides []side) {
		killed := make(chan struct{})
		var bouncers []*bouncer
		for _, x := range sides {
			c := newClient(t, x.server)
			for i := range names {
				name := fmt.Sprintf("order:%d", i)
				counter := filepath.Join(t.TempDir(), name)
				if err := os.WriteFile(counter, []byte("0"), 0o600); err != nil {
					t.Fatal(err)
				}
				x.peer.start("sections", "", name, "threads", 2, "until", 1<<40, "counter", counter, "hold", i%3)
				bouncers = append(bouncers, bounce(t, c.NewMutex(name), counter, killed))
			}
		}
		for _, b := range bouncers {
			until(t, "both sides have had "+b.counter+" 20 times", func() bool {
				return b.grants.Load() >= 20 && b.onJVM() >= 20
			})
		}
		j.mustBeQuiet(t)
		j.kill()
		at := time.Now()
		close(killed)
		for i, x := range sides {
			x.judge(t, func(t *testing.T) {
				for _, b := range bouncers[i*names : (i+1)*names] {
					e := mustEnter(t, b.last)
					woke(t, max(0, e.at.Sub(at)))
					if late := e.at.Sub(at) - shortTimeout; late > lateEntry {
						t.Errorf("Go entered %v after the dead JVM's TTL, want at most %v", late, lateEntry)
					}
				}
			})
		}
	})
}

// bouncer takes and gives back a lock that others take too.
type bouncer struct {
	counter string       // the file in which the JVM counts its sections
	grants  atomic.Int64 // of the bouncer itself
	last    <-chan entry // the first after the JVM was killed, or what ended it before
}

// bounce starts a bouncer, which ends with the first entry after killed is
// closed.
func bounce(t testing.TB, m *watchlock.Mutex, counter string, killed <-chan struct{}) *bouncer {
	last := make(chan entry, 1)
	b := &bouncer{counter: counter, last: last}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	go func() {
		defer close(ended)
		for {
			lease, err := m.Lock(ctx)
			e := entry{lease, time.Now(), err}
			if err == nil {
				e.err = lease.Unlock(ctx)
				b.grants.Add(1)
			}
			over := e.err != nil
			select {
			case <-killed:
				over = true
			default:
			}
			if over {
				last <- e
				return
			}
		}
	}()
	return b
}

// onJVM is how many sections the JVM has counted, 0 while it writes.
func (b *bouncer) onJVM() int {
	text, _ := os.ReadFile(b.counter)
	n, _ := strconv.Atoi(string(text))
	return n
}
