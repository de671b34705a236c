package interop

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// channelOf is where the release of the lock with this key is published.
func channelOf(key string) string {
	if strings.Contains(key, "{") {
		return "redisson_lock__channel:" + key
	}
	return "redisson_lock__channel:{" + key + "}"
}

// waitsFor runs start, which makes one waiter for the lock with this key, and
// returns when it has been refused, listens, and has been refused again.
func waitsFor[T any](t testing.TB, s *redistest.Server, key string, start func() T) T {
	t.Helper()
	rdb, channel := s.Client(), channelOf(key)
	heard := func() int64 { return rdb.PubSubNumSub(t.Context(), channel).Val()[channel] }
	before := s.CommandCalls()["evalsha"]
	until(t, "nobody listens yet", func() bool { return heard() == 0 })
	started := start()
	until(t, "the waiter listens and sleeps", func() bool {
		return heard() == 1 && s.CommandCalls()["evalsha"] >= before+2
	})
	return started
}

// meet fails the test unless the lock that Go calls inGo and the JVM onJVM is
// one, at the Redis key: each excludes the other, and wakes it. Each has a new
// client, so that nobody listens but who waits.
func meet(t *testing.T, s *redistest.Server, c *watchlock.Client, peer *jvmClient, inGo, onJVM, key string) {
	t.Helper()
	m := c.NewMutex(inGo)
	rdb := s.Client()

	lease := mustLock(t, m)
	if n, err := rdb.HLen(t.Context(), key).Result(); n != 1 || err != nil {
		t.Errorf("Go holds, and %.64q has %d fields, %v", key, n, err)
	}
	mustBe(t, peer, true, "isLocked", "main", onJVM)
	mustBe(t, peer, false, "tryLock", "main", onJVM)
	waiting := waitsFor(t, s, key, func() <-chan reply { return peer.start("lock", "main", onJVM) })
	released := time.Now()
	mustUnlock(t, lease)
	r := await(t, waiting)
	value[any](t, r)
	soon(t, "the JVM", r.ended().Sub(released))

	if got := rdb.HGet(t.Context(), key, peer.owner("main")).Val(); got != "1" {
		t.Errorf("the JVM holds, and its field of %.64q is %q", key, got)
	}
	if _, err := m.TryLock(t.Context(), 0); !errors.Is(err, watchlock.ErrNotAcquired) {
		t.Errorf("TryLock while the JVM holds the lock: %v", err)
	}
	entered := waitsFor(t, s, key, func() <-chan entry { return startLock(t, m) })
	released = time.Now()
	peer.must("unlock", "main", onJVM)
	e := mustEnter(t, entered)
	soon(t, "Go", e.at.Sub(released))
	mustUnlock(t, e.lease)
	if left := rdb.Exists(t.Context(), key).Val(); left != 0 {
		t.Errorf("%.64q is left", key)
	}
}

// lockNames are names that both sides take, by what is odd in them.
var lockNames = []struct{ what, name string }{
	{"colons", "a:b::c:"},
	{"spaces", " order 1  "},
	{"a line break", "order\r\n1\t"},
	{"a zero byte", "order\x001"},
	{"quotes and backslashes", `'order' "1" \x\\`},
	{"glob characters", "order:*?[1]"},
	{"letters of many scripts", "заказ-注文-ऑर्डर-🔒"},
	{"two forms of one letter", "e\u0301\u00e9"},
	{"one byte", "x"},
	{"the longest name", strings.Repeat("k", 32<<10)},
	{"a prefix of Redisson's", "redisson_lock__channel"},
	{"a tag in front", "{order:1}:lock"},
	{"a tag at the end", "lock:{order:1}"},
	{"nothing but a tag", "{order:1}"},
	{"two tags", "{order}:{1}"},
	{"a brace in the tag", "{{order}1"},
	{"a brace after the tag", "{order}1}"},
}

func TestOddNamesAndNamesWithTagsMeetOnOneKey(t *testing.T) {
	onEachPeer(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		c, peer := newClient(t, s), j.open(t, s)
		// So long a name is slow on a JVM that has not seen one.
		warm(t, s, peer, c.NewMutex(strings.Repeat("w", 32<<10)))
		for _, n := range lockNames {
			meet(t, s, c, peer, n.name, n.name, n.name)
			if t.Failed() {
				t.Fatalf("the name with %s", n.what)
			}
		}
	})
}

func TestASharedPrefixMeetsANameMapperOnOneKey(t *testing.T) {
	onEachPeer(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		const prefix = "svc:prod:"
		mapped := j.open(t, s, jvmOptions{prefix: prefix})
		unmapped := j.open(t, s)
		byPrefix := newClient(t, s, watchlock.WithKeyPrefix(prefix))
		byMapper := newClient(t, s, watchlock.WithNameMapper(func(name string) string { return prefix + name }))
		plain := newClient(t, s)
		warm(t, s, unmapped, plain.NewMutex("warm"))

		for name, c := range map[string]*watchlock.Client{"order:1": byPrefix, "order:2": byMapper, "{order}:3": byPrefix, "order:{4}": byMapper} {
			meet(t, s, c, mapped, name, name, prefix+name)
		}
		// Either side alone may map: what counts is the key.
		meet(t, s, byPrefix, unmapped, "order:5", prefix+"order:5", prefix+"order:5")
		meet(t, s, plain, mapped, prefix+"order:6", "order:6", prefix+"order:6")

		// A prefix with a tag puts all locks of a service into one slot.
		tagged := "{svc}:"
		meet(t, s, newClient(t, s, watchlock.WithKeyPrefix(tagged)), j.open(t, s, jvmOptions{prefix: tagged}), "order:7", "order:7", tagged+"order:7")

		// Without the prefix it is another lock.
		lease := mustLock(t, byPrefix.NewMutex("order:8"))
		mustBe(t, unmapped, true, "tryLock", "main", "order:8")
		unmapped.must("unlock", "main", "order:8")
		mustUnlock(t, lease)
	})
}

func TestASharedPrefixMeetsANameMapperOnOneTokenCounter(t *testing.T) {
	onEachPeerAtOnce(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		const prefix = "svc:prod:"
		m, peer := newClient(t, s, watchlock.WithKeyPrefix(prefix)).NewFencedMutex("order:1"), j.open(t, s, jvmOptions{prefix: prefix})
		var tokens rising
		for range 3 {
			tokens.take(t, "the JVM", value[int64](t, peer.must("takeToken", "main", "order:1")))
			tokens.take(t, "Go", mustToken(t, m))
		}
		if got := do(t, s, "GET", "redisson_lock_token:{svc:prod:order:1}"); got != formatted(tokens.last) {
			t.Errorf("the counter is %v, want %d", got, tokens.last)
		}
	})
}

// refusedNames are names that Redisson takes and Go refuses, with the reason
// that Go gives: their keys would lie in different slots of a cluster, or
// Redisson and Redis would disagree which, or they are too long for an error.
var refusedNames = []struct{ name, reason string }{
	{"a}b{c}", `has a "}" before its first "{"`},
	{"}{", `has a "}" before its first "{"`},
	{"{}order:1", "has an empty hash tag"},
	{"order:{}:{1}", "has an empty hash tag"},
	{"order:{1", "has a brace without its partner"},
	{"order:1}", "has a brace without its partner"},
	{strings.Repeat("k", 32<<10+1), "name has 32769 bytes, more than 32768"},
}

func TestGoSaysWhyItRefusesANameThatRedissonTakes(t *testing.T) {
	onEachPeerAtOnce(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		ctx := t.Context()
		c, peer := newClient(t, s), j.open(t, s)
		for _, refused := range refusedNames {
			mustBe(t, peer, true, "tryLock", "main", refused.name)
			before := s.CommandCalls()["evalsha"]
			m, fenced := c.NewMutex(refused.name), c.NewFencedMutex(refused.name)
			for op, try := range map[string]func() error{
				"Lock":        func() error { _, err := m.Lock(ctx); return err },
				"TryLock":     func() error { _, err := m.TryLock(ctx, 0); return err },
				"Info":        func() error { _, err := m.Info(ctx); return err },
				"ForceUnlock": func() error { return m.ForceUnlock(ctx) },
				"fenced Lock": func() error { _, err := fenced.Lock(ctx); return err },
			} {
				err := try()
				var locked *watchlock.LockError
				if !errors.As(err, &locked) || locked.Name != refused.name || !strings.Contains(err.Error(), refused.reason) {
					t.Errorf("%s of %.40q: %.200v, want %q", op, refused.name, err, refused.reason)
				}
				if errors.Is(err, watchlock.ErrNotAcquired) || watchlock.IsUnavailable(err) {
					t.Errorf("%s of %.40q looks as if another try could help: %.200v", op, refused.name, err)
				}
			}
			if sent := s.CommandCalls()["evalsha"] - before; sent != 0 {
				t.Errorf("%d scripts were sent for %.40q", sent, refused.name)
			}
			mustBe(t, peer, true, "isHeldByCurrentThread", "main", refused.name)
			peer.must("unlock", "main", refused.name)
		}

		// What a prefix makes of a good name is refused just so.
		peer = j.open(t, s, jvmOptions{prefix: "{svc:"})
		mustBe(t, peer, true, "tryLock", "main", "order:1")
		_, err := newClient(t, s, watchlock.WithKeyPrefix("{svc:")).NewMutex("order:1").TryLock(ctx, 0)
		if err == nil || !strings.Contains(err.Error(), `mapped name "{svc:order:1" has a brace without its partner`) {
			t.Errorf("TryLock of a name that is mapped to one that is refused: %v", err)
		}
		peer.must("unlock", "main", "order:1")
	})
}
