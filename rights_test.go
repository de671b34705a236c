package watchlock

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// rightsOfKinds are the commands that each kind needs the right to, where it runs scripts.
var rightsOfKinds = map[string][]string{
	"mutex":  {"hdel", "hlen", "hset", "hexists", "pttl", "pexpire"},
	"fenced": {"hdel", "hlen", "hset", "hexists", "pttl", "pexpire", "get", "set", "time"},
	"setnx":  {"get", "set", "del", "pttl", "pexpire"},
}

// newUserClient is a client that does not know yet what its user may do.
func newUserClient(t testing.TB, rdb redis.UniversalClient, opts ...Option) *Client {
	t.Helper()
	c := newTestClient(t, rdb, opts...)
	forgetRights(c)
	return c
}

func TestTheFirstLockOfAKindNamesTheCommandThatIsDenied(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		for kind, needed := range rightsOfKinds {
			for _, name := range needed {
				rules := []any{"-" + name}
				if kind == "setnx" && s.Family() == redistest.Redis86 {
					rules = append(rules, "-delex") // so that it runs scripts
				}
				c := newUserClient(t, s.Client(userWith(t, s, rules...)))
				for range 2 {
					ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
					_, err := lockNamed(c, kind, "k")(ctx)
					cancel()
					if err == nil || !strings.Contains(err.Error(), "NOPERM") || !strings.Contains(err.Error(), strings.ToUpper(name)) ||
						IsUnavailable(err) {
						t.Errorf("%s without %s: %v", kind, name, err)
					}
				}
				if keys := mustDo(t, s, "KEYS", "*").([]any); len(keys) > 0 {
					t.Errorf("%s without %s: left %v", kind, name, keys)
					mustDo(t, s, "FLUSHALL")
				}
			}
		}
	})
}

func TestWhoMayDoAllThatALockNeedsAndNoMoreCanLock(t *testing.T) {
	ctx := context.Background()
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		for kind, needed := range rightsOfKinds {
			rules := []any{"nocommands", "+eval", "+evalsha", "+hello", "+ping", "+client"}
			for _, name := range needed {
				rules = append(rules, "+"+name)
			}
			c := newUserClient(t, s.Client(userWith(t, s, rules...)), WithWatchdogTimeout(300*time.Millisecond))
			l, err := lockNamed(c, kind, "k")(ctx)
			if err != nil {
				t.Errorf("%s: %v", kind, err)
				continue
			}
			since := time.Now()
			eventually(t, 10*time.Second, "its first TTL is over", func() bool { return time.Since(since) > 600*time.Millisecond })
			if err := l.Err(); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
			mustUnlock(t, l)
			if n := len(withoutCounters(strs(mustDo(t, s, "KEYS", "*")))); n > 0 {
				t.Errorf("%s: %d keys are left", kind, n)
			}
		}
	})
}

// strs is a reply of strings.
func strs(reply any) (list []string) {
	for _, s := range reply.([]any) {
		list = append(list, s.(string))
	}
	return list
}

// TestALookAtRightsCostsNoRoundTripAndEndsWithTheFirstGrant is about the commands of a first
// lock, of one that meets somebody else, and of those after a grant.
func TestALookAtRightsCostsNoRoundTripAndEndsWithTheFirstGrant(t *testing.T) {
	for kind, plain := range map[string]string{"mutex": wire.AcquireSource, "fenced": wire.AcquireFencedSource, "setnx": wire.AcquireStringSource} {
		t.Run(kind, func(t *testing.T) {
			t.Setenv("WATCHLOCK_KIND", kind)
			inBubble(t, func(t *testing.T, v *redistest.Virtual) {
				c, _ := virtualWired(t, v)
				forgetRights(c)
				first := map[string]*transport.Script{"mutex": wire.FirstScript, "fenced": wire.FirstFencedScript, "setnx": wire.FirstStringScript}[kind]
				if err := v.Client().ScriptLoad(context.Background(), first.Source).Err(); err != nil {
					t.Fatal(err)
				}
				v.Reset()
				want := func(what string, looks, plains int) {
					t.Helper()
					if n, m := v.CountIf(redistest.Runs(first.Source)), v.CountIf(redistest.Runs(plain)); n != looks || m != plains {
						t.Errorf("%s: %d looks at rights, %d attempts without; want %d and %d", what, n, m, looks, plains)
					}
				}
				virtualTake(v, "job", time.Hour)
				before := v.Mini().Dump()
				if _, err := newTestMutex(c, "job").TryLock(context.Background(), 0); err == nil {
					t.Error("taken from a stranger")
				}
				want("refused", 1, 0)
				if after := v.Mini().Dump(); after != before || v.Mini().TTL("job") != time.Hour {
					t.Errorf("a stranger's lock became %q with a TTL of %v", after, v.Mini().TTL("job"))
				}
				v.Mini().Del("job")
				l := mustLock(t, newTestMutex(c, "job"))
				want("the first", 2, 0)
				if ttl := v.Mini().TTL("job"); ttl != defaultWatchdogTimeout {
					t.Errorf("its TTL is %v", ttl)
				}
				mustUnlock(t, l)
				for range 3 {
					mustUnlock(t, mustLock(t, newTestMutex(c, "job")))
				}
				want("after it", 2, 3)
			})
		})
	}
}

func TestALookAtRightsSaysNothingOfMemory(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		for kind := range rightsOfKinds {
			c := newUserClient(t, s.Client(func(*redis.Options) {}))
			mustDo(t, s, "FLUSHALL")
			s.Config("maxmemory", "1")
			_, err := mutexOf(c, kind, "k").TryLock(context.Background(), 0)
			s.Config("maxmemory", "0")
			if !IsUnavailable(err) || !strings.Contains(err.Error(), "OOM") {
				t.Errorf("%s: %v", kind, err)
			}
		}
	})
}

func TestACommandThatTheServerDoesNotHaveIsNamedToo(t *testing.T) {
	s := redistest.Start(t, redistest.WithArgs("--rename-command", "HDEL", ""))
	_, err := newUserClient(t, s.Client()).NewMutex("k").TryLock(context.Background(), 0)
	if err == nil || !strings.Contains(err.Error(), "HDEL") || mustDo(t, s, "EXISTS", "k") != int64(0) {
		t.Errorf("%v", err)
	}
}
