package watchlock

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// stints are bursts of clients, by the client's number, in order.
type stints struct {
	mu   sync.Mutex
	list []stint
}

type stint struct {
	client   int
	from, to time.Time
}

// add notes that a section of a client ends.
func (s *stints) add(client int, from time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.list); n > 0 && s.list[n-1].client == client {
		s.list[n-1].to = time.Now()
		return
	}
	s.list = append(s.list, stint{client, from, time.Now()})
}

// crowdOfClients has each client's goroutines lock again and again until d has passed.
func crowdOfClients(t *testing.T, clients []*Client, goroutines int, section, d time.Duration) []stint {
	t.Helper()
	var seen stints
	var all sync.WaitGroup
	end := time.Now().Add(d)
	for i, c := range clients {
		m := newTestMutex(c, "k")
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
					mustUnlock(t, l)
				}
			})
		}
	}
	all.Wait()
	return seen.list
}

func TestClientsThatAllWaitGoRound(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		const number, window = 4, 2 * time.Millisecond
		var clients []*Client
		for range number {
			clients = append(clients, virtualClient(t, v, WithLocalHandoff(window)))
		}
		list := crowdOfClients(t, clients, 8, 100*time.Microsecond, time.Second)
		// Once each has been inside, nobody is before everybody else has been again.
		list = list[2*number : len(list)-number]
		if len(list) < 100 {
			t.Fatalf("only %d bursts", len(list))
		}
		last := map[int]int{}
		for n, s := range list {
			if before, ok := last[s.client]; ok && n-before != number {
				t.Fatalf("burst %d is of client %d, whose last was %d", n, s.client, before)
			}
			last[s.client] = n
			if n > 0 {
				if idle := s.from.Sub(list[n-1].to); idle > time.Millisecond {
					t.Errorf("burst %d began %v after the one before", n, idle)
				}
			}
		}
	})
}

func TestABurstIsTheShorterTheMoreWaitForTheirTurn(t *testing.T) {
	const section, window = 20 * time.Microsecond, 2 * time.Millisecond
	for number, share := range map[int]time.Duration{2: window, 3: window / 3, 4: window / 4, 6: window / 4} {
		inBubble(t, func(t *testing.T, v *redistest.Virtual) {
			var clients []*Client
			for range number {
				clients = append(clients, virtualClient(t, v, WithLocalHandoff(window)))
			}
			list := crowdOfClients(t, clients, 20, section, 200*time.Millisecond)
			list = list[4*number : len(list)-number]
			if len(list) < 10 {
				t.Fatalf("only %d bursts", len(list))
			}
			for n, s := range list {
				// It may be passed once more at the end of its share, and the first pass comes
				// after a section.
				if took := s.to.Sub(s.from); took > share+2*section || took < share {
					t.Errorf("of %d clients, burst %d took %v, want %v", number, n, took, share)
				}
			}
		})
	}
}

// deafSubscriber is told of releases and never asks for the lock.
func deafSubscriber(t *testing.T, v *redistest.Virtual) {
	t.Helper()
	sub := v.Client().Subscribe(context.Background(), channelOfTest("k"))
	if _, err := sub.Receive(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Close() })
}

func TestSubscribersThatNeverComeAreWaitedForOnceASecond(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		for range 2 {
			deafSubscriber(t, v)
		}
		const window = 2 * time.Millisecond
		clients := []*Client{virtualClient(t, v, WithLocalHandoff(window)), virtualClient(t, v, WithLocalHandoff(window))}
		const span = 3 * time.Second
		list := crowdOfClients(t, clients, 8, 100*time.Microsecond, span)
		pauses := 0
		for n, s := range list[1:] {
			idle := s.from.Sub(list[n].to)
			if idle > time.Millisecond {
				pauses++
			}
			if idle > yieldMost {
				t.Errorf("nobody was inside for %v", idle)
			}
		}
		// Each client finds out for itself, and again when what it knows is old: in so many
		// tries, of which the other wins some. Never to learn would cost hundreds.
		if most := 2 * absentTries * len(clients) * int(span/yieldHints); pauses == 0 || pauses > most {
			t.Errorf("%d pauses in %v, want some, and %d at most", pauses, span, most)
		}
	})
}

func TestWhoeverCannotWaitDoesNotLetOthersGoFirst(t *testing.T) {
	for name, lock := range map[string]func(m *Mutex) (*Lease, error){
		"one attempt": func(m *Mutex) (*Lease, error) { return m.TryLock(context.Background(), 0) },
		"a short wait": func(m *Mutex) (*Lease, error) {
			return m.TryLock(context.Background(), 2*yieldMost)
		},
		"a near deadline": func(m *Mutex) (*Lease, error) {
			ctx, cancel := context.WithTimeout(context.Background(), 2*yieldMost)
			defer cancel()
			return m.Lock(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, v *redistest.Virtual) {
				deafSubscriber(t, v)
				m := newTestMutex(virtualClient(t, v), "k")
				mustUnlock(t, mustLock(t, m)) // others were told
				start := time.Now()
				l, err := lock(m)
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(start); took != 0 {
					t.Errorf("it let others go first for %v", took)
				}
				mustUnlock(t, l)
				start = time.Now()
				mustUnlock(t, mustLock(t, m))
				if took := time.Since(start); took < yieldPause || took > yieldPause+yieldJitter {
					t.Errorf("whoever has time let others go first for %v, want %v and a little", took, yieldPause)
				}
			})
		})
	}
}

func TestTheReleaseOfTheOnlyOtherEndsYielding(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		a, b := newTestMutex(virtualClient(t, v), "k"), newTestMutex(virtualClient(t, v), "k")
		first := mustLock(t, a)
		other := goLock(func() (*Lease, error) { return b.Lock(context.Background()) })
		time.Sleep(10 * time.Millisecond)
		mustUnlock(t, first)
		second := goLock(func() (*Lease, error) { return a.Lock(context.Background()) })
		<-other.done
		time.Sleep(time.Millisecond)
		start := time.Now()
		mustUnlock(t, other.lease)
		<-second.done
		if took := time.Since(start); took != 0 {
			t.Errorf("it went on yielding for %v after the other's turn", took)
		}
		mustUnlock(t, second.lease)
	})
}

// foreigner locks and unlocks as Redisson does: it tells of a release by a "0", and reads
// what it hears of others as a number.
type foreigner struct {
	t     *testing.T
	v     *redistest.Virtual
	heard chan struct{}
}

func newForeigner(t *testing.T, v *redistest.Virtual) *foreigner {
	t.Helper()
	f := &foreigner{t, v, make(chan struct{}, 1)}
	sub := v.Client().Subscribe(context.Background(), channelOfTest("k"))
	if _, err := sub.Receive(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Close() })
	go func() {
		for {
			msg, err := sub.ReceiveMessage(context.Background())
			if err != nil {
				return
			}
			if n, err := strconv.Atoi(msg.Payload); err == nil && n == 0 {
				select {
				case f.heard <- struct{}{}:
				default:
				}
			}
		}
	}()
	return f
}

// section takes the lock, stays for d and gives it back.
func (f *foreigner) section(d time.Duration) {
	f.t.Helper()
	rdb := f.v.Client()
	defer rdb.Close()
	for {
		got, err := rdb.HSetNX(context.Background(), "k", "stranger:1", "1").Result()
		if err != nil {
			f.t.Fatal(err)
		}
		if n, _ := rdb.HLen(context.Background(), "k").Result(); got && n == 1 {
			break
		}
		rdb.HDel(context.Background(), "k", "stranger:1")
		<-f.heard
	}
	time.Sleep(d)
	rdb.HDel(context.Background(), "k", "stranger:1")
	if err := rdb.Publish(context.Background(), channelOfTest("k"), wire.ForeignPayload).Err(); err != nil {
		f.t.Error(err)
	}
}

func TestWhileAClientOfAnotherKindTakesPartEachTurnIsOneSection(t *testing.T) {
	if kindOfTest() == "setnx" {
		return // foreign clients of that form publish nothing
	}
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		const section = 50 * time.Microsecond
		c := virtualClient(t, v, WithLocalHandoff(2*time.Millisecond))
		f := newForeigner(t, v)
		var all sync.WaitGroup
		var seen stints
		end := time.Now().Add(200 * time.Millisecond)
		left := time.Now().Add(100 * time.Millisecond) // when the other has had enough
		m := newTestMutex(c, "k")
		var mu sync.Mutex
		ours, passes := 0, map[bool]int{}
		owners := map[*burst]bool{}
		for range 8 {
			all.Go(func() {
				for time.Now().Before(end) {
					l := mustLock(t, m)
					from := time.Now()
					time.Sleep(section)
					mu.Lock()
					if from.Before(left) {
						ours++
					}
					if owners[l.hold.burst] {
						passes[from.Before(left)]++
					}
					owners[l.hold.burst] = true
					mu.Unlock()
					seen.add(0, from)
					mustUnlock(t, l)
				}
			})
		}
		theirs := 0
		all.Go(func() {
			for time.Now().Before(left) {
				f.section(section)
				theirs++
			}
		})
		all.Wait()
		if share := float64(theirs) / float64(ours+theirs); share < 0.25 || share > 0.75 {
			t.Errorf("the other had %d sections and we %d", theirs, ours)
		}
		if passes[false] < 100 {
			t.Errorf("%d sections were passed after it had gone", passes[false])
		}
	})
}

func TestAShortWaitBehindALocalHolderLetsNobodyGoFirst(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		deafSubscriber(t, v)
		m := newTestMutex(virtualClient(t, v, WithLocalHandoff(0)), "k")
		held := mustLock(t, m)
		start := time.Now()
		got := goLock(func() (*Lease, error) { return m.TryLock(context.Background(), 10*time.Millisecond) })
		virtualUntil(start, 8*time.Millisecond)
		mustUnlock(t, held)
		<-got.done
		if got.err != nil {
			t.Fatalf("free for %v, and yet: %v", time.Since(start)-8*time.Millisecond, got.err)
		}
		mustUnlock(t, got.lease)
	})
}

func TestAWaitThatIsNearlyOverLetsNobodyGoFirst(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		deafSubscriber(t, v)
		m := newTestMutex(virtualClient(t, v, WithLocalHandoff(0)), "k")
		held := mustLock(t, m)
		start := time.Now()
		got := goLock(func() (*Lease, error) { return m.TryLock(context.Background(), 100*time.Millisecond) })
		virtualUntil(start, 98*time.Millisecond)
		mustUnlock(t, held)
		<-got.done
		if errors.Is(got.err, ErrNotAcquired) {
			t.Fatalf("free for %v, and yet: %v", time.Since(start)-98*time.Millisecond, got.err)
		}
		if got.err != nil {
			t.Fatal(got.err)
		}
		mustUnlock(t, got.lease)
	})
}

func TestOneAttemptDuringAReleaseIsNotLate(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		deafSubscriber(t, v)
		c, w := virtualWired(t, v)
		m := c.NewMutex("k")
		held := mustLock(t, m)
		w.On(redistest.Runs(wire.ReleaseScript.Source), redistest.DelayReply(5*time.Millisecond))
		start := time.Now()
		released := goLock(func() (*Lease, error) { return nil, held.Unlock(context.Background()) })
		virtualUntil(start, 2*time.Millisecond)
		l, err := m.TryLock(context.Background(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 5*time.Millisecond {
			t.Errorf("got it %v after the answer of the release", took-5*time.Millisecond)
		}
		<-released.done
		mustUnlock(t, l)
	})
}

func TestTwoClientsThatLoopHandOverAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		clients := []*Client{virtualClient(t, v), virtualClient(t, v)}
		list := crowdOfClients(t, clients, 1, 100*time.Microsecond, 100*time.Millisecond)
		idle := time.Duration(0)
		late := 0
		for n, s := range list[1:] {
			d := s.from.Sub(list[n].to)
			idle += d
			if d > time.Millisecond {
				late++
			}
		}
		if late > 3 {
			t.Errorf("%d of %d hand-overs took more than 1 ms, nobody was inside for %v", late, len(list), idle)
		}
	})
}

func TestATurnThatWasTakenUnheardIsNoAbsence(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := virtualClient(t, v)
		a, b := newTestMutex(c, "k"), newTestMutex(virtualClient(t, v), "k")
		first := mustLock(t, a)
		got := goLock(func() (*Lease, error) { return b.Lock(context.Background()) })
		time.Sleep(10 * time.Millisecond)
		mustUnlock(t, first)
		<-got.done
		time.Sleep(20 * time.Millisecond)
		mustUnlock(t, got.lease)
		time.Sleep(time.Millisecond)
		l := mustLock(t, a)
		g, _ := c.gate(&a.keys)
		g.mu.Lock()
		absent := g.yielding.tries > 0
		g.mu.Unlock()
		g.unref()
		if absent {
			t.Error("the other had its turn, and is taken to be absent")
		}
		mustUnlock(t, l)
	})
}
