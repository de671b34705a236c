package sentinel_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// movesBy is how long after another primary is named nothing is left at the former
// one: an ask each second, and what it takes.
const movesBy = 1500 * time.Millisecond

// kindsOfLocks are what mutexOf makes.
func kindsOfLocks() []string { return []string{"mutex", "fenced", "string"} }

// ownerAt is who has the lock on one server; empty when nobody has.
func ownerAt(t testing.TB, s *redistest.Server, m *watchlock.Mutex) string {
	t.Helper()
	command := "HKEYS"
	if locktest.KeysOf(m).Kind.Traits().Form == wire.FormString {
		command = "GET"
	}
	reply, err := s.Do(command, locktest.KeysOf(m).Key)
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatalf("%s at %s: %v", command, s.Addr(), err)
	}
	switch r := reply.(type) {
	case string:
		return r
	case []any:
		return strings.Trim(fmt.Sprint(r...), "[]")
	}
	return ""
}

// move is a primary and a replica, and a sentinel that names one of them.
type move struct {
	testing.TB
	sentinel      *redistest.FakeSentinel
	first, second *redistest.Server
	how           howMoved
}

// howMoved is of which type the clients are, and how they can hear of the move.
type howMoved struct {
	name        string
	family      redistest.Family
	clusterType bool
	silent      bool // the message of the sentinel is lost
}

// onMoves runs f for each way, in parallel: it is time that they take.
func onMoves(t *testing.T, f func(m *move)) {
	for _, how := range []howMoved{
		{name: "told", family: redistest.Redis70},
		{name: "asked", family: redistest.Redis86, silent: true},
		{name: "cluster type told", family: redistest.Redis86, clusterType: true},
		{name: "cluster type asked", family: redistest.Valkey9, clusterType: true, silent: true},
	} {
		t.Run(how.name, func(t *testing.T) {
			t.Parallel()
			m := &move{TB: t, how: how}
			start := func() *redistest.Server {
				return redistest.Start(t, redistest.On(how.family), redistest.WithTCP(),
					redistest.WithArgs("--repl-diskless-sync-delay", "0"))
			}
			m.first, m.second = start(), start()
			host, port, _ := strings.Cut(m.first.Addr(), ":")
			m.do(m.second, "REPLICAOF", host, port)
			locktest.Eventually(t, 10*time.Second, "the replica follows", func() bool {
				info, _ := m.do(m.second, "INFO", "replication").(string)
				return strings.Contains(info, "master_link_status:up")
			})
			m.sentinel = redistest.NewFakeSentinel(t, m.first.Addr())
			f(m)
		})
	}
}

func (m *move) do(s *redistest.Server, args ...any) any {
	m.Helper()
	reply, err := s.Do(args...)
	if err != nil {
		m.Fatalf("%v: %v", args, err)
	}
	return reply
}

// client is a client with connections of its own. Its Close does not wait long for
// what the test leaves locked.
func (m *move) client(opts ...watchlock.Option) *watchlock.Client {
	m.Helper()
	opts = append(opts, watchlock.WithUnlockTimeout(time.Second))
	if m.how.clusterType {
		return locktest.NewTestClient(m, m.sentinel.ClusterTypeClient(), opts...)
	}
	return locktest.NewTestClient(m, m.sentinel.Client(), opts...)
}

// promote ends the replication: what is done at the first server from now on, the
// second one does not know. Both serve.
func (m *move) promote() {
	m.Helper()
	m.do(m.first, "SET", "last", "1")
	if n := m.do(m.first, "WAIT", "1", "5000"); n != int64(1) {
		m.Fatalf("%v replicas have all", n)
	}
	m.do(m.second, "REPLICAOF", "NO", "ONE")
}

// nameSecond is the naming.
func (m *move) nameSecond() time.Time {
	if m.how.silent {
		m.sentinel.Name(m.second.Addr())
	} else {
		m.sentinel.SetPrimary(m.second.Addr())
	}
	return time.Now()
}

// listeners is how many connections hear of a release at one server.
func listeners(t testing.TB, s *redistest.Server, m *watchlock.Mutex) int64 {
	t.Helper()
	rdb := s.Client()
	defer rdb.Close()
	classic, err := rdb.PubSubNumSub(context.Background(), locktest.KeysOf(m).Channel).Result()
	if err != nil {
		t.Fatal(err)
	}
	sharded, err := rdb.PubSubShardNumSub(context.Background(), locktest.KeysOf(m).Channel).Result()
	if err != nil {
		t.Fatal(err)
	}
	return classic[locktest.KeysOf(m).Channel] + sharded[locktest.KeysOf(m).Channel]
}

// mentions counts the commands about a lock.
func mentions(lines []string, l *watchlock.Lease) int {
	n := 0
	for _, line := range lines {
		if strings.Contains(line, l.Name()) {
			n++
		}
	}
	return n
}

// lockEachKind takes a lock of each kind.
func lockEachKind(c *watchlock.Client, t testing.TB, prefix string) []*watchlock.Lease {
	var leases []*watchlock.Lease
	for _, kind := range kindsOfLocks() {
		leases = append(leases, locktest.MustLock(t, locktest.MutexOf(c, kind, prefix+"-"+kind)))
	}
	return leases
}

// mutexOfLease is the lock of a lease of lockEachKind.
func mutexOfLease(c *watchlock.Client, l *watchlock.Lease) *watchlock.Mutex {
	return locktest.MutexOf(c, l.Name()[strings.LastIndex(l.Name(), "-")+1:], l.Name())
}

func TestRenewalsGoToThePrimaryThatIsNamed(t *testing.T) {
	t.Parallel() // it is time that it takes
	onMoves(t, func(m *move) {
		c := m.client(watchlock.WithWatchdogTimeout(3 * time.Second))
		leases := lockEachKind(c, m, "renewed")
		<-time.After(1200 * time.Millisecond) // the connection for renewals is open, and has renewed
		m.promote()
		m.nameSecond()
		<-time.After(movesBy)
		atFirst, atSecond := m.first.Monitor(), m.second.Monitor()
		<-time.After(2200 * time.Millisecond)
		former, now := atFirst(), atSecond()
		for _, l := range leases {
			if n := mentions(former, l); n > 0 {
				m.Errorf("%s: %d commands at the former primary", l.Name(), n)
			}
			if n := mentions(now, l); n == 0 {
				m.Errorf("%s: no renewal at the primary", l.Name())
			}
			if err := l.Err(); err != nil {
				m.Errorf("%s: lost though the new primary had it: %v", l.Name(), err)
			}
			if got := ownerAt(m, m.second, mutexOfLease(c, l)); got != locktest.OwnerOf(l) {
				m.Errorf("%s: the new primary has owner %q, want %q", l.Name(), got, locktest.OwnerOf(l))
			}
		}
	})
}

func TestGrantsAndReleasesGoToThePrimaryThatIsNamed(t *testing.T) {
	t.Parallel() // it is time that it takes
	onMoves(t, func(m *move) {
		c := m.client(watchlock.WithWatchdogTimeout(9 * time.Second))
		held := lockEachKind(c, m, "held")
		m.promote()
		m.nameSecond()
		<-time.After(movesBy)
		atFirst, atSecond := m.first.Monitor(), m.second.Monitor()
		taken := lockEachKind(c, m, "taken")
		for _, l := range taken {
			if got := ownerAt(m, m.second, mutexOfLease(c, l)); got != locktest.OwnerOf(l) {
				m.Errorf("%s: the new primary has owner %q, want %q", l.Name(), got, locktest.OwnerOf(l))
			}
		}
		leases := append(held, taken...)
		for _, l := range leases {
			if err := l.Unlock(context.Background()); err != nil {
				m.Errorf("%s: Unlock: %v", l.Name(), err)
			}
		}
		former, now := atFirst(), atSecond()
		for _, l := range leases {
			if n := mentions(former, l); n > 0 {
				m.Errorf("%s: %d commands at the former primary", l.Name(), n)
			}
			if n := mentions(now, l); n == 0 {
				m.Errorf("%s: no command at the primary", l.Name())
			}
			if got := ownerAt(m, m.second, mutexOfLease(c, l)); got != "" {
				m.Errorf("%s: after Unlock the new primary has owner %q", l.Name(), got)
			}
		}
	})
}

func TestAGrantOfTheNamedPrimaryIsNotAskedForAtTheFormer(t *testing.T) {
	t.Parallel() // it is time that it takes
	onMoves(t, func(m *move) {
		c := m.client(watchlock.WithWatchdogTimeout(3 * time.Second))
		before := lockEachKind(c, m, "before") // keeps the connection for renewals where it is
		<-time.After(1200 * time.Millisecond)
		m.promote()
		m.nameSecond()
		<-time.After(movesBy)
		after := lockEachKind(c, m, "after")
		<-time.After(2500 * time.Millisecond)
		for _, l := range append(before, after...) {
			if err := l.Err(); err != nil {
				m.Errorf("%s: lost though the new primary has it: %v", l.Name(), err)
			}
		}
	})
}

func TestWhatOnlyTheFormerPrimarySaysKeepsNoLease(t *testing.T) {
	t.Parallel() // it is time that it takes
	onMoves(t, func(m *move) {
		c := m.client(watchlock.WithWatchdogTimeout(9 * time.Second))
		warm := lockEachKind(c, m, "warm")
		m.promote()
		leases := lockEachKind(c, m, "unknown") // to the second server
		named := m.nameSecond()
		for _, l := range leases {
			select {
			case <-l.Done():
				if err := l.Err(); !errors.Is(err, watchlock.ErrLost) {
					m.Errorf("%s: %v", l.Name(), err)
				}
			case <-time.After(time.Until(named.Add(movesBy))):
				m.Errorf("%s: believed %v after another primary was named, which does not have it", l.Name(), movesBy)
			}
		}
		for _, l := range warm {
			if err := l.Err(); err != nil {
				m.Errorf("%s: lost though the new primary has it: %v", l.Name(), err)
			}
		}
	})
}

func TestMessagesAreHeardAtThePrimaryThatIsNamed(t *testing.T) {
	t.Parallel() // it is time that it takes
	onMoves(t, func(m *move) {
		a, b := m.client(watchlock.WithWatchdogTimeout(9*time.Second)), m.client(watchlock.WithWatchdogTimeout(9*time.Second))
		held := lockEachKind(a, m, "waited")
		var entered []<-chan locktest.LockEntry
		for _, l := range held {
			w := mutexOfLease(b, l)
			entered = append(entered, locktest.LockSoon(w))
			locktest.Eventually(m, 5*time.Second, "the waiter is subscribed", func() bool { return listeners(m, m.first, w) > 0 })
		}
		<-time.After(2 * time.Second) // whoever only polls does so each 2 s by then, each 0.5 s in the string form
		m.promote()
		m.nameSecond()
		<-time.After(movesBy)
		for i, l := range held {
			w := mutexOfLease(b, l)
			if n := listeners(m, m.second, w); n == 0 {
				m.Errorf("%s: nobody listens at the primary", l.Name())
			}
			if n := listeners(m, m.first, w); n > 0 {
				m.Errorf("%s: %d connections listen at the former primary", l.Name(), n)
			}
			if err := l.Unlock(context.Background()); err != nil {
				m.Errorf("%s: Unlock: %v", l.Name(), err)
			}
			released := time.Now()
			select {
			case got := <-entered[i]:
				if got.Err != nil {
					m.Errorf("%s: %v", l.Name(), got.Err)
					continue
				}
				if d := got.At.Sub(released); d > locktest.WakesLate {
					m.Errorf("%s: entered %v after the release: not by message", l.Name(), d)
				}
				if at := ownerAt(m, m.second, w); at != locktest.OwnerOf(got.Lease) {
					m.Errorf("%s: granted by the former primary; the new one has owner %q", l.Name(), at)
				}
			case <-time.After(5 * time.Second):
				m.Errorf("%s: not entered 5 s after the release", l.Name())
			}
		}
	})
}

func TestALockReleasedAtTheFormerPrimaryIsFreeAtTheNamedOne(t *testing.T) {
	t.Parallel() // it is time that it takes
	onMoves(t, func(m *move) {
		a, b := m.client(watchlock.WithWatchdogTimeout(9*time.Second)), m.client(watchlock.WithWatchdogTimeout(9*time.Second))
		again, idle := lockEachKind(a, m, "again"), lockEachKind(a, m, "idle")
		kept := lockEachKind(b, m, "kept") // so that b has something to ask about
		m.promote()
		for _, l := range append(again, idle...) {
			locktest.MustUnlock(m, l)
		}
		named := m.nameSecond()
		<-time.After(movesBy)
		for _, l := range again { // its own client waits for it
			began := time.Now()
			got, err := mutexOfLease(a, l).TryLock(context.Background(), 3*time.Second)
			if err != nil {
				m.Errorf("%s: who released it waits for itself: %v after %v", l.Name(), err, time.Since(began))
				continue
			}
			if d := time.Since(began); d > 500*time.Millisecond {
				m.Errorf("%s: who released it got it after %v", l.Name(), d)
			}
			locktest.MustUnlock(m, got)
		}
		<-time.After(time.Until(named.Add(2 * time.Second)))
		for _, l := range idle { // nobody asks
			if got := ownerAt(m, m.second, mutexOfLease(a, l)); got != "" {
				m.Errorf("%s: it stays taken by %q, who released it", l.Name(), got)
			}
		}
		for _, l := range kept {
			if err := l.Err(); err != nil {
				m.Errorf("%s: lost though the new primary has it: %v", l.Name(), err)
			}
		}
	})
}
