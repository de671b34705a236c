package handoff_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// writeLog counts the writes of scripts to the connections that it dials, and
// the scripts in them.
type writeLog struct {
	mu              sync.Mutex
	writes, scripts int
}

func (l *writeLog) option() func(*redis.Options) {
	return func(o *redis.Options) {
		next := o.Dialer
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := next(ctx, network, addr)
			return &loggedConn{conn, l}, err
		}
	}
}

func (l *writeLog) counts() (writes, scripts int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.writes, l.scripts
}

type loggedConn struct {
	net.Conn
	log *writeLog
}

func (c *loggedConn) Write(p []byte) (int, error) {
	if n := bytes.Count(p, []byte("evalsha")) + bytes.Count(p, []byte("EVALSHA")); n > 0 {
		c.log.mu.Lock()
		c.log.writes++
		c.log.scripts += n
		c.log.mu.Unlock()
	}
	return c.Conn.Write(p)
}

// laneClient is a client of a server that is trip away, with its wire.
func laneClient(t testing.TB, v *redistest.Virtual, trip time.Duration, opts ...func(*redis.Options)) (*watchlock.Client, *redistest.Wire) {
	t.Helper()
	locktest.VirtualLoad(t, v)
	wire := redistest.NewWire()
	if trip > 0 {
		wire.On(func(c redistest.Command) bool { return c.Name == "EVALSHA" || c.Name == "EVAL" }, redistest.DelayReply(trip)).Times(0)
	}
	c := locktest.NewTestClient(t, v.Client(append([]func(*redis.Options){wire.Options()}, opts...)...))
	return c, wire
}

// mustLockAll locks n names at the same time, each with a context that can end.
func mustLockAll(t testing.TB, c *watchlock.Client, prefix string, n int) []*watchlock.Lease {
	t.Helper()
	leases := make([]*watchlock.Lease, n)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			l, err := c.NewMutex(fmt.Sprint(prefix, i)).Lock(ctx)
			if err != nil {
				t.Errorf("Lock %d: %v", i, err)
			}
			leases[i] = l
		})
	}
	all.Wait()
	return leases
}

func TestALoneCallLeavesAtOnceAndAlone(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		const trip = 7 * time.Millisecond
		var log writeLog
		c, _ := laneClient(t, v, trip, log.option())
		for i, ctx := range []context.Context{context.Background(), t.Context()} {
			start := time.Now()
			l, err := c.NewMutex("k").Lock(ctx)
			if err != nil {
				t.Fatal(err)
			}
			locked := time.Since(start)
			locktest.MustUnlock(t, l)
			if both := time.Since(start); locked != trip || both != 2*trip {
				t.Errorf("Lock took %v, with Unlock %v, for round trips of %v", locked, both, trip)
			}
			if writes, scripts := log.counts(); writes != 2*(i+1) || scripts != writes {
				t.Errorf("%d writes of %d scripts", writes, scripts)
			}
		}
	})
}

func TestCallsThatComeDuringAFlightLeaveTogetherInTheNext(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		const n, trip = 100, 5 * time.Millisecond
		var log writeLog
		c, _ := laneClient(t, v, trip, log.option())
		start := time.Now()
		leases := mustLockAll(t, c, "k", n)
		// One flight with the first, one with all others.
		if writes, scripts := log.counts(); writes != 2 || scripts != n {
			t.Errorf("%d locks left in %d writes of %d scripts", n, writes, scripts)
		}
		if took := time.Since(start); took > (n+1)*trip { // the wire delays reply by reply
			t.Errorf("they took %v", took)
		}
		var all sync.WaitGroup
		for _, l := range leases {
			all.Go(func() {
				if err := l.Unlock(context.Background()); err != nil {
					t.Errorf("Unlock: %v", err)
				}
			})
		}
		all.Wait()
		if writes, scripts := log.counts(); writes > 2+2 || scripts != 2*n {
			t.Errorf("with the unlocks: %d writes of %d scripts", writes, scripts)
		}
		if keys := v.Mini().Keys(); len(keys) != 0 {
			t.Errorf("keys left: %q", keys)
		}
	})
}

func TestEachCallerInAFlightGetsItsOwnAnswer(t *testing.T) {
	for _, known := range []bool{true, false} {
		t.Run(fmt.Sprintf("scripts known %v", known), func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				const n, trip = 200, time.Millisecond
				var log writeLog
				c, _ := laneClient(t, v, trip, log.option())
				if !known {
					if err := v.Client().ScriptFlush(context.Background()).Err(); err != nil {
						t.Fatal(err)
					}
				}
				base := time.Now().Add(time.Hour).UnixMicro()
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				var all sync.WaitGroup
				for i := range n {
					name := fmt.Sprint("k", i)
					switch i % 5 {
					case 1:
						locktest.VirtualTake(v, name, time.Hour+time.Duration(i)*time.Minute)
					case 2:
						_ = v.Mini().Set(name, "text")
					case 3:
						_ = v.Mini().Set(locktest.CounterOf(name), fmt.Sprint(base+int64(i)*1000))
					case 4:
						_ = v.Mini().Set(locktest.CounterOf(name), "junk")
					}
					all.Go(func() { wantOwnAnswer(t, ctx, c, v, i, base) })
				}
				all.Wait()
				if writes, scripts := log.counts(); writes > 10 {
					t.Errorf("%d scripts in %d writes: they did not fly together", scripts, writes)
				}
			})
		})
	}
}

// wantOwnAnswer tries lock i, and fails unless the answer is the one that i has.
func wantOwnAnswer(t testing.TB, ctx context.Context, c *watchlock.Client, v *redistest.Virtual, i int, base int64) {
	name := fmt.Sprint("k", i)
	switch i % 5 {
	case 0:
		l, err := c.NewMutex(name).TryLock(ctx, time.Minute)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		if owners, _ := v.Mini().HKeys(name); len(owners) != 1 || owners[0] != locktest.OwnerOf(l) {
			t.Errorf("%s: Redis has owners %v, the lease is %v's", name, owners, locktest.OwnerOf(l))
		}
	case 1:
		_, err := c.NewMutex(name).TryLock(ctx, 0)
		var busy *watchlock.LockError
		if !errors.Is(err, watchlock.ErrNotAcquired) || !errors.As(err, &busy) || busy.Name != name {
			t.Errorf("%s: %v, want it refused", name, err)
		} else if want := time.Hour + time.Duration(i)*time.Minute; busy.TTL > want || busy.TTL < want-2*time.Second {
			t.Errorf("%s: told %v, want about %v", name, busy.TTL, want)
		}
	case 2:
		// Miniredis puts words before the code of an error in a script.
		if _, err := c.NewMutex(name).TryLock(ctx, 0); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
			t.Errorf("%s: %v, want the wrong type", name, err)
		}
	case 3:
		l, err := c.NewFencedMutex(name).TryLock(ctx, time.Minute)
		if err != nil || l.Token() != base+int64(i)*1000+1 {
			t.Errorf("%s: token %d, %v, want %d", name, l.Token(), err, base+int64(i)*1000+1)
		}
	case 4:
		if _, err := c.NewFencedMutex(name).TryLock(ctx, 0); !errors.Is(err, watchlock.ErrTokenRange) {
			t.Errorf("%s: %v, want the token range", name, err)
		}
	}
}

func TestAFlightWithoutAnswerHoldsTheOthersBackForFourRoundTripsOr50ms(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, wire := laneClient(t, v, 0)
		locktest.MustUnlock(t, locktest.MustLock(t, c.NewMutex("warm")))
		release := make(chan struct{})
		held := wire.On(redistest.Is("EVALSHA").Mentions("stuck"), redistest.HoldReply(release))
		stuck, cancel := context.WithCancel(context.Background())
		var all sync.WaitGroup
		all.Go(func() {
			l, err := c.NewMutex("stuck").Lock(stuck)
			if err == nil {
				t.Errorf("the stuck call was granted %v", l.Name())
			}
		})
		synctest.Wait()
		start := time.Now()
		mustUnlockAll(t, mustLockAll(t, c, "k", 20))
		if took := time.Since(start); held.Hits() == 0 || took > locktest.FlightPatience+time.Millisecond {
			t.Errorf("the others took %v", took)
		}
		// Nobody is held back any more.
		start = time.Now()
		mustUnlockAll(t, mustLockAll(t, c, "l", 20))
		if took := time.Since(start); took > 0 {
			t.Errorf("those after them took %v", took)
		}
		cancel()
		all.Wait()
		close(release)
		time.Sleep(2 * time.Minute)
		if v.Mini().Exists("stuck") {
			t.Error("what the stuck call took is left")
		}
	})
}

func mustUnlockAll(t testing.TB, leases []*watchlock.Lease) {
	t.Helper()
	var all sync.WaitGroup
	for _, l := range leases {
		all.Go(func() {
			if err := l.Unlock(context.Background()); err != nil {
				t.Errorf("Unlock: %v", err)
			}
		})
	}
	all.Wait()
}

func TestAFlightIsGivenFourRoundTripsOnASlowNetwork(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		const trip = 40 * time.Millisecond
		c, wire := laneClient(t, v, trip)
		for range 60 { // until the lane knows how long a round trip is
			locktest.MustUnlock(t, locktest.MustLock(t, c.NewMutex("warm")))
		}
		wire.Clear()
		release := make(chan struct{})
		wire.On(redistest.Is("EVALSHA").Mentions("stuck"), redistest.HoldReply(release))
		go func() { _, _ = c.NewMutex("stuck").TryLock(t.Context(), 500*time.Millisecond) }()
		synctest.Wait()
		start := time.Now()
		l, err := c.NewMutex("k").TryLock(t.Context(), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < 3*trip || took > 4*trip+trip/2 {
			t.Errorf("it was held back for %v, round trips take %v", took, trip)
		}
		locktest.MustUnlock(t, l)
		close(release)
		time.Sleep(2 * time.Minute)
	})
}

func TestTheEndOfOneCallersContextDisturbsNoOther(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		const n, leavers = 40, 10
		c, wire := laneClient(t, v, 0)
		release := make(chan struct{})
		wire.On(redistest.Is("EVALSHA"), redistest.HoldReply(release)) // the first; all others gather behind it
		var all sync.WaitGroup
		leases := make([]*watchlock.Lease, n)
		cancels := make([]context.CancelFunc, n)
		left := make(chan time.Time, leavers)
		for i := range n {
			ctx, cancel := context.WithCancel(context.Background())
			cancels[i] = cancel
			all.Go(func() {
				var err error
				leases[i], err = c.NewMutex(fmt.Sprint("k", i)).Lock(ctx)
				switch {
				case i%4 == 1 && errors.Is(err, context.Canceled):
					left <- time.Now()
				case i%4 == 1 || err != nil:
					t.Errorf("caller %d: %v", i, err)
				}
			})
		}
		time.Sleep(10 * time.Millisecond)
		at := time.Now()
		for i := 1; i < n; i += 4 {
			cancels[i]()
		}
		for range leavers {
			if gone := <-left; !gone.Equal(at) {
				t.Errorf("a caller left %v after its context", gone.Sub(at))
			}
		}
		close(release)
		all.Wait()
		for i, l := range leases {
			if i%4 != 1 && (l == nil || l.Err() != nil) {
				t.Errorf("caller %d has no lease", i)
			}
		}
		time.Sleep(time.Minute)
		for i := 1; i < n; i += 4 {
			if name := fmt.Sprint("k", i); v.Mini().Exists(name) {
				t.Errorf("%s, whose caller had left, is held", name)
			}
		}
		for i, cancel := range cancels {
			cancel()
			if i%4 != 1 {
				locktest.MustUnlock(t, leases[i])
			}
		}
	})
}

func TestDeadlinesAreStrictWhileTheServerIsFrozen(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, _ := laneClient(t, v, 0)
		locktest.MustUnlock(t, locktest.MustLock(t, c.NewMutex("warm")))
		v.Freeze()
		var all sync.WaitGroup
		for i := range 60 {
			limit := time.Duration(5+i*37) * time.Millisecond
			all.Go(func() {
				start := time.Now()
				m := c.NewMutex(fmt.Sprint("k", i))
				var err error
				if i%2 == 0 {
					_, err = m.TryLock(t.Context(), limit)
				} else {
					ctx, cancel := context.WithTimeout(context.Background(), limit)
					defer cancel()
					_, err = m.Lock(ctx)
				}
				if took := time.Since(start); took < limit || took > limit+5*time.Millisecond {
					t.Errorf("caller %d returned after %v, its limit was %v", i, took, limit)
				}
				if !watchlock.IsUnavailable(err) || errors.Is(err, watchlock.ErrNotAcquired) {
					t.Errorf("caller %d: %v", i, err)
				}
			})
		}
		all.Wait()
		v.Thaw()
		time.Sleep(3 * time.Minute)
		if keys := v.Mini().Keys(); len(keys) != 0 {
			t.Errorf("keys left: %q", keys)
		}
	})
}

func TestCallersInAFlightGetErrClosedAtOnceWhenTheClientCloses(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, wire := laneClient(t, v, 0)
		release := make(chan struct{})
		wire.On(redistest.Is("EVALSHA"), redistest.HoldReply(release))
		var all sync.WaitGroup
		start := time.Now()
		for i := range 20 {
			all.Go(func() {
				if _, err := c.NewMutex(fmt.Sprint("k", i)).Lock(t.Context()); !errors.Is(err, watchlock.ErrClosed) {
					t.Errorf("caller %d: %v", i, err)
				}
				if took := time.Since(start); took > 10*time.Millisecond {
					t.Errorf("caller %d left %v after Close", i, took)
				}
			})
		}
		synctest.Wait()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		all.Wait()
		if took := time.Since(start); took > locktest.UnlockTimeoutByDefault+2*transport.AttemptTimeout {
			t.Errorf("Close took %v", took)
		}
		close(release)
		time.Sleep(time.Minute) // what was in flight has its TTL at most
		if keys := v.Mini().Keys(); len(keys) != 0 {
			t.Errorf("keys left: %q", keys)
		}
	})
}

func TestAFlightWhoseRepliesAreLostIsTriedAgainForEachCaller(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		const n = 30
		c, wire := laneClient(t, v, 0)
		lost := wire.On(redistest.Is("EVALSHA"), redistest.DropReply).Skip(3).Times(5)
		leases := mustLockAll(t, c, "k", n)
		if lost.Hits() == 0 {
			t.Error("no reply was lost")
		}
		for i, l := range leases {
			owners, _ := v.Mini().HKeys(fmt.Sprint("k", i))
			if l == nil || len(owners) != 1 || owners[0] != locktest.OwnerOf(l) {
				t.Errorf("caller %d: Redis has %v", i, owners)
			}
		}
		mustUnlockAll(t, leases)
		time.Sleep(2 * time.Minute)
		if keys := v.Mini().Keys(); len(keys) != 0 {
			t.Errorf("keys left: %q", keys)
		}
	})
}
