package string_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// scriptCommands are what a user who may not run scripts may not send.
var scriptCommands = []string{"eval", "evalsha", "eval_ro", "evalsha_ro", "script", "fcall", "fcall_ro", "function"}

// ranScripts returns the lines of MONITOR that run a script.
func ranScripts(lines []string) (ran []string) {
	for _, line := range lines {
		for _, name := range scriptCommands {
			if strings.Contains(strings.ToLower(line), `"`+name+`"`) {
				ran = append(ran, line)
			}
		}
	}
	return ran
}

// tourOfSetNX goes through what a lock of the string form can do.
func tourOfSetNX(t *testing.T, s *redistest.Server, scripts bool, opts ...func(*redis.Options)) {
	ctx := context.Background()
	wire := redistest.NewWire()
	quick := watchlock.WithWatchdogTimeout(locktest.TourTTL)
	a := locktest.NewTestClient(t, s.Client(append(opts, wire.Options())...), quick)
	b := locktest.NewTestClient(t, s.Client(opts...), quick)
	m, other := a.NewSetNXMutex("k"), b.NewSetNXMutex("k")

	l := locktest.MustLock(t, m)
	if got := locktest.MustDo(t, s, "GET", "k"); got != locktest.OwnerOf(l) {
		t.Errorf("the value is %v, the owner %v", got, locktest.OwnerOf(l))
	}
	var busy *watchlock.LockError
	if _, err := other.TryLock(ctx, 0); !errors.Is(err, watchlock.ErrNotAcquired) || !errors.As(err, &busy) || busy.TTL <= 0 || busy.TTL > locktest.TourTTL {
		t.Errorf("TryLock of a held lock: %v", err)
	}
	if info, err := other.Info(ctx); err != nil || !info.Held || info.Mine || info.TTL <= 0 {
		t.Errorf("Info elsewhere: %+v, %v", info, err)
	}
	taken := time.Now()
	locktest.Eventually(t, time.Minute, "its first TTL is over", func() bool { return time.Since(taken) > locktest.TourTTL+locktest.TourTTL/10 })
	if l.Err() != nil || locktest.MustDo(t, s, "EXISTS", "k") != int64(1) {
		t.Errorf("after its first TTL: %v", l.Err())
	}
	inner := locktest.MustReenter(t, m, l)
	locktest.MustUnlock(t, inner)
	// A waiter elsewhere is told of the release.
	waiting := make(chan time.Time, 1)
	go func() {
		l, err := other.Lock(ctx)
		if err != nil {
			t.Errorf("the waiter: %v", err)
			return
		}
		waiting <- time.Now()
		_ = l.Unlock(ctx) // the next lines see whether it did
	}()
	channel := locktest.ChannelKeys("setnx")
	channel = strings.Replace(channel, "{setnx}", "{k}", 1)
	locktest.Eventually(t, 5*time.Second, "the waiter subscribes", func() bool {
		subs, err := s.Client().PubSubNumSub(ctx, channel).Result()
		return err == nil && subs[channel] == 1
	})
	released := time.Now()
	locktest.MustUnlock(t, l)
	if took := (<-waiting).Sub(released); took > 200*time.Millisecond {
		t.Errorf("the waiter was told after %v", took)
	}
	// Lost replies: of the acquire, then of the release.
	wire.On(locktest.AcquiresString, redistest.DropReply)
	l = locktest.MustLock(t, m, watchlock.WithLeaseTime(10*time.Second))
	wire.On(locktest.ReleasesOfAnyKind, redistest.DropReply)
	locktest.MustUnlock(t, l)
	locktest.Eventually(t, 5*time.Second, "the lock is free", func() bool { return locktest.MustDo(t, s, "EXISTS", "k") == int64(0) })
	// Extended, forced.
	l = locktest.MustLock(t, m, watchlock.WithLeaseTime(10*time.Second))
	ends := l.ExpiresAt()
	switch err := l.Extend(ctx, time.Minute); {
	case scripts && (err != nil || !l.ExpiresAt().After(ends)):
		t.Errorf("Extend: %v, the lease ends at %v, before at %v", err, l.ExpiresAt(), ends)
	case !scripts && (!errors.Is(err, errors.ErrUnsupported) || l.Err() != nil || l.ExpiresAt().Sub(ends) > time.Second):
		// A SET that comes late could lower the TTL of a later extension.
		t.Errorf("Extend without scripts: %v, the lease is %v and ends at %v, before at %v", err, l.Err(), l.ExpiresAt(), ends)
	}
	if err := m.ForceUnlock(ctx); err != nil || !errors.Is(l.Err(), watchlock.ErrLost) {
		t.Errorf("ForceUnlock: %v, the lease %v", err, l.Err())
	}
	// Taken by somebody else: the lease is lost and nothing of theirs is touched.
	l = locktest.MustLock(t, m)
	locktest.MustDo(t, s, "SET", "k", "somebody", "PX", 20000)
	<-l.Done()
	if err := l.Unlock(ctx); !errors.Is(err, watchlock.ErrLost) || locktest.MustDo(t, s, "GET", "k") != "somebody" {
		t.Errorf("Unlock of a lost lease: %v, the value is %v", err, locktest.MustDo(t, s, "GET", "k"))
	}
}

func TestTheStringFormRunsNoScriptWhereTheServerComparesValues(t *testing.T) {
	s := redistest.Start(t, redistest.On(redistest.Redis86))
	as := locktest.Scriptless(t, s)
	if err := s.Client(as).Eval(context.Background(), "return 1", nil).Err(); err == nil {
		t.Fatal("the user may run scripts")
	}
	locktest.MustDo(t, s, "ACL", "LOG", "RESET")
	lines := s.Monitor()
	tourOfSetNX(t, s, false, as)
	seen := lines()
	if ran := ranScripts(seen); len(ran) > 0 || len(seen) == 0 {
		t.Errorf("%d of %d lines run a script: %q", len(ran), len(seen), ran)
	}
	// Each client may try once whether it may, by name and with the source: renewals rather go by script.
	denials := 0
	for _, entry := range locktest.MustDo(t, s, "ACL", "LOG").([]any) {
		n, _ := entry.(map[any]any)["count"].(int64)
		denials += int(n)
	}
	if denials > 4 {
		t.Errorf("%d commands were denied to two clients", denials)
	}
}

func TestTheStringFormRenewsByScriptWhereTheUserMay(t *testing.T) {
	s := redistest.Start(t, redistest.On(redistest.Redis86))
	tourOfSetNX(t, s, true)
}

func TestTheStringFormRunsScriptsWhereTheServerDoesNotCompareValues(t *testing.T) {
	for _, family := range []redistest.Family{redistest.Redis70, redistest.Valkey9} {
		t.Run(string(family), func(t *testing.T) {
			tourOfSetNX(t, redistest.Start(t, redistest.On(family)), true)
		})
	}
}

func TestOnceItHasLearnedTheStringFormSendsNothingInVain(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		wire := redistest.NewWire()
		m := locktest.NewTestClient(t, s.Client(wire.Options())).NewSetNXMutex("k")
		for range 2 {
			locktest.MustUnlock(t, locktest.MustLock(t, m))
		}
		wire.Reset()
		const pairs = 20
		for range pairs {
			locktest.MustUnlock(t, locktest.MustLock(t, m))
		}
		want := map[string]int{"EVALSHA": 2 * pairs}
		if s.Family() == redistest.Redis86 {
			want = map[string]int{"SET": pairs, "DELEX": pairs, "PUBLISH": pairs}
		}
		for name, n := range want {
			if got := wire.Count(redistest.Is(name)); got != n {
				t.Errorf("%s was sent %d times, want %d", name, got, n)
			}
			delete(want, name)
		}
		for _, c := range wire.Seen() {
			switch c.Name {
			case "EVALSHA", "SET", "DELEX", "PUBLISH", "PING", "HELLO":
			default:
				t.Errorf("sent %v", c)
			}
		}
	})
}

// replaceable is a dialer to one of several servers, the one that is chosen.
type replaceable struct {
	to atomic.Pointer[redistest.Server]
}

func (r *replaceable) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	s := r.to.Load()
	var d net.Dialer
	return d.DialContext(ctx, s.Network(), s.Addr())
}

func TestTheStringFormForgetsWhatItLearnedWhenTheServerIsAnother(t *testing.T) {
	old := redistest.Start(t)
	young := redistest.Start(t, redistest.On(redistest.Redis86))
	as := locktest.Scriptless(t, young)
	locktest.MustDo(t, old, "ACL", "SETUSER", "u", "reset", "on", ">p", "~*", "&*", "+@all")
	var r replaceable
	r.to.Store(old)
	wire := redistest.NewWire()
	rdb := old.Client(as, func(o *redis.Options) { o.Dialer = r.dial }, wire.Options())
	m := locktest.NewTestClient(t, rdb).NewSetNXMutex("k")
	locktest.MustUnlock(t, locktest.MustLock(t, m))

	// Scripts were the way; the new server forbids them and needs none. Where
	// it says so, the call fails, and the next goes another way.
	r.to.Store(young)
	wire.Cut()
	ctx := context.Background()
	failed := 0
	locktest.Eventually(t, 10*time.Second, "it locks on the new server", func() bool {
		l, err := m.TryLock(ctx, 0)
		if err != nil {
			failed++
			return false
		}
		locktest.MustUnlock(t, l)
		return true
	})
	if failed > 5 {
		t.Errorf("it took %d failures to learn anew", failed)
	}

	// And back: the old one does not know the commands.
	r.to.Store(old)
	wire.Cut()
	locktest.Eventually(t, 10*time.Second, "it locks on the old server", func() bool {
		l, err := m.TryLock(ctx, time.Second)
		if err != nil {
			return false
		}
		return l.Unlock(ctx) == nil && locktest.MustDo(t, old, "EXISTS", "k") == int64(0)
	})
}
