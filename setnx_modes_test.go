package watchlock

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// scriptCommands are what a user who may not run scripts may not send.
var scriptCommands = []string{"eval", "evalsha", "eval_ro", "evalsha_ro", "script", "fcall", "fcall_ro", "function"}

// scriptless makes a user with every right but those to run scripts, and returns
// an option of clients that log in as that user.
func scriptless(t testing.TB, s *redistest.Server) func(*redis.Options) {
	t.Helper()
	rules := []any{"ACL", "SETUSER", "u", "reset", "on", ">p", "~*", "&*", "+@all", "-@scripting"}
	mustDo(t, s, rules...)
	return func(o *redis.Options) { o.Username, o.Password = "u", "p" }
}

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

// tourTTL is long enough for renewals on a busy machine.
const tourTTL = 2 * time.Second

// tourOfSetNX goes through what a lock of the string form can do.
func tourOfSetNX(t *testing.T, s *redistest.Server, scripts bool, opts ...func(*redis.Options)) {
	ctx := context.Background()
	wire := redistest.NewWire()
	quick := WithWatchdogTimeout(tourTTL)
	a := newTestClient(t, s.Client(append(opts, wire.Options())...), quick)
	b := newTestClient(t, s.Client(opts...), quick)
	m, other := a.NewSetNXMutex("k"), b.NewSetNXMutex("k")

	l := mustLock(t, m)
	if got := mustDo(t, s, "GET", "k"); got != l.hold.burst.owner {
		t.Errorf("the value is %v, the owner %v", got, l.hold.burst.owner)
	}
	var busy *LockError
	if _, err := other.TryLock(ctx, 0); !errors.Is(err, ErrNotAcquired) || !errors.As(err, &busy) || busy.TTL <= 0 || busy.TTL > tourTTL {
		t.Errorf("TryLock of a held lock: %v", err)
	}
	if info, err := other.Info(ctx); err != nil || !info.Held || info.Mine || info.TTL <= 0 {
		t.Errorf("Info elsewhere: %+v, %v", info, err)
	}
	taken := time.Now()
	eventually(t, time.Minute, "its first TTL is over", func() bool { return time.Since(taken) > tourTTL+tourTTL/10 })
	if l.Err() != nil || mustDo(t, s, "EXISTS", "k") != int64(1) {
		t.Errorf("after its first TTL: %v", l.Err())
	}
	inner := mustReenter(t, m, l)
	mustUnlock(t, inner)
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
	channel := channelKeys("setnx")
	channel = strings.Replace(channel, "{setnx}", "{k}", 1)
	eventually(t, 5*time.Second, "the waiter subscribes", func() bool {
		subs, err := s.Client().PubSubNumSub(ctx, channel).Result()
		return err == nil && subs[channel] == 1
	})
	released := time.Now()
	mustUnlock(t, l)
	if took := (<-waiting).Sub(released); took > 200*time.Millisecond {
		t.Errorf("the waiter was told after %v", took)
	}
	// Lost replies: of the acquire, then of the release.
	wire.On(acquiresString, redistest.DropReply)
	l = mustLock(t, m, WithLeaseTime(10*time.Second))
	wire.On(releasesOfAnyKind, redistest.DropReply)
	mustUnlock(t, l)
	eventually(t, 5*time.Second, "the lock is free", func() bool { return mustDo(t, s, "EXISTS", "k") == int64(0) })
	// Extended, forced.
	l = mustLock(t, m, WithLeaseTime(10*time.Second))
	ends := l.ExpiresAt()
	switch err := l.Extend(ctx, time.Minute); {
	case scripts && (err != nil || !l.ExpiresAt().After(ends)):
		t.Errorf("Extend: %v, the lease ends at %v, before at %v", err, l.ExpiresAt(), ends)
	case !scripts && (!errors.Is(err, errors.ErrUnsupported) || l.Err() != nil || l.ExpiresAt().Sub(ends) > time.Second):
		// A SET that comes late could lower the TTL of a later extension.
		t.Errorf("Extend without scripts: %v, the lease is %v and ends at %v, before at %v", err, l.Err(), l.ExpiresAt(), ends)
	}
	if err := m.ForceUnlock(ctx); err != nil || !errors.Is(l.Err(), ErrLost) {
		t.Errorf("ForceUnlock: %v, the lease %v", err, l.Err())
	}
	// Taken by somebody else: the lease is lost and nothing of theirs is touched.
	l = mustLock(t, m)
	mustDo(t, s, "SET", "k", "somebody", "PX", 20000)
	<-l.Done()
	if err := l.Unlock(ctx); !errors.Is(err, ErrLost) || mustDo(t, s, "GET", "k") != "somebody" {
		t.Errorf("Unlock of a lost lease: %v, the value is %v", err, mustDo(t, s, "GET", "k"))
	}
}

// acquiresString matches what acquires a lock of the string form.
func acquiresString(c redistest.Command) bool {
	return redistest.Runs(wire.AcquireStringSource)(c) || c.Name == "SET" && c.Arg(2) == "NX"
}

func TestTheStringFormRunsNoScriptWhereTheServerComparesValues(t *testing.T) {
	s := redistest.Start(t, redistest.On(redistest.Redis86))
	as := scriptless(t, s)
	if err := s.Client(as).Eval(context.Background(), "return 1", nil).Err(); err == nil {
		t.Fatal("the user may run scripts")
	}
	mustDo(t, s, "ACL", "LOG", "RESET")
	lines := s.Monitor()
	tourOfSetNX(t, s, false, as)
	seen := lines()
	if ran := ranScripts(seen); len(ran) > 0 || len(seen) == 0 {
		t.Errorf("%d of %d lines run a script: %q", len(ran), len(seen), ran)
	}
	// Each client may try once whether it may, by name and with the source: renewals rather go by script.
	denials := 0
	for _, entry := range mustDo(t, s, "ACL", "LOG").([]any) {
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
		m := newTestClient(t, s.Client(wire.Options())).NewSetNXMutex("k")
		for range 2 {
			mustUnlock(t, mustLock(t, m))
		}
		wire.Reset()
		const pairs = 20
		for range pairs {
			mustUnlock(t, mustLock(t, m))
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
	as := scriptless(t, young)
	mustDo(t, old, "ACL", "SETUSER", "u", "reset", "on", ">p", "~*", "&*", "+@all")
	var r replaceable
	r.to.Store(old)
	wire := redistest.NewWire()
	rdb := old.Client(as, func(o *redis.Options) { o.Dialer = r.dial }, wire.Options())
	m := newTestClient(t, rdb).NewSetNXMutex("k")
	mustUnlock(t, mustLock(t, m))

	// Scripts were the way; the new server forbids them and needs none. Where
	// it says so, the call fails, and the next goes another way.
	r.to.Store(young)
	wire.Cut()
	ctx := context.Background()
	failed := 0
	eventually(t, 10*time.Second, "it locks on the new server", func() bool {
		l, err := m.TryLock(ctx, 0)
		if err != nil {
			failed++
			return false
		}
		mustUnlock(t, l)
		return true
	})
	if failed > 5 {
		t.Errorf("it took %d failures to learn anew", failed)
	}

	// And back: the old one does not know the commands.
	r.to.Store(old)
	wire.Cut()
	eventually(t, 10*time.Second, "it locks on the old server", func() bool {
		l, err := m.TryLock(ctx, time.Second)
		if err != nil {
			return false
		}
		return l.Unlock(ctx) == nil && mustDo(t, old, "EXISTS", "k") == int64(0)
	})
}
