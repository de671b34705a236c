package wire_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// serverMood is a state in which a server refuses for now.
type serverMood struct {
	says  string // the first word of what it answers
	begin func(t *testing.T, s *redistest.Server)
	end   func(s *redistest.Server)
}

func sends(args ...any) func(s *redistest.Server) {
	return func(s *redistest.Server) { _, _ = s.Do(args...) }
}

// configured is a mood that one configuration parameter makes.
func configured(says, key, bad, good string) serverMood {
	return serverMood{says, func(_ *testing.T, s *redistest.Server) { s.Config(key, bad) }, sends("CONFIG", "SET", key, good)}
}

func serverMoods() map[string]serverMood {
	return map[string]serverMood{
		"memory full":      configured("OOM", "maxmemory", "1", "0"),
		"too few replicas": configured("NOREPLICAS", "min-replicas-to-write", "1", "0"),
		"demoted": {"READONLY", func(_ *testing.T, s *redistest.Server) {
			sends("REPLICAOF", "127.0.0.1", "1")(s)
		}, sends("REPLICAOF", "NO", "ONE")},
		"replica without its primary": {"MASTERDOWN", func(_ *testing.T, s *redistest.Server) {
			s.Config("replica-serve-stale-data", "no")
			sends("REPLICAOF", "127.0.0.1", "1")(s)
		}, sends("REPLICAOF", "NO", "ONE")},
		"cannot save": {"MISCONF", beginFailingSave, sends("CONFIG", "SET", "stop-writes-on-bgsave-error", "no")},
		"busy script": {"BUSY", beginBusyScript, sends("SCRIPT", "KILL")},
		"loading":     {"LOADING", beginLoading, sends("CONFIG", "SET", "key-load-delay", "0")},
	}
}

// beginFailingSave makes a background save fail: a directory is where its file goes.
func beginFailingSave(t *testing.T, s *redistest.Server) {
	dir, err := s.Do("CONFIG", "GET", "dir")
	if err != nil {
		t.Fatal(err)
	}
	path := fmt.Sprint(dir.(map[any]any)["dir"])
	if err := os.MkdirAll(filepath.Join(path, "dump.rdb", "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.Config("save", "3600 1")
	_, _ = s.Do("BGSAVE")
	locktest.Eventually(t, 5*time.Second, "a failed save", func() bool {
		info, err := s.Do("INFO", "persistence")
		return err == nil && strings.Contains(fmt.Sprint(info), "rdb_last_bgsave_status:err")
	})
}

// busyWith runs a command that keeps the server busy, apart from the test, and
// returns when the server answers others with the word.
func busyWith(t *testing.T, s *redistest.Server, word string, args ...any) {
	rdb := s.Client(func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = time.Minute, -1 })
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = rdb.Do(context.Background(), args...).Err()
	}()
	t.Cleanup(func() { <-done })
	probe := s.Client(func(o *redis.Options) { o.MaxRetries = -1 })
	locktest.Eventually(t, 5*time.Second, word, func() bool {
		return redis.HasErrorPrefix(probe.Get(context.Background(), "x").Err(), word)
	})
}

func beginBusyScript(t *testing.T, s *redistest.Server) {
	s.Config("busy-reply-threshold", "1")
	busyWith(t, s, "BUSY", "EVAL", "while true do end", "0")
}

// beginLoading makes the server load what it has again, slowly.
func beginLoading(t *testing.T, s *redistest.Server) {
	_, err := s.Do("EVAL", "for i = 1, 4000 do redis.call('SET', 'filler' .. i, string.rep('x', 400)) end return 1", "0")
	if err != nil {
		t.Fatal(err)
	}
	s.Config("key-load-delay", "2000")
	s.Config("loading-process-events-interval-bytes", "1024")
	busyWith(t, s, "LOADING", "DEBUG", "RELOAD")
}

func TestServerThatRefusesForNowIsNamedAndTriedAgainWithinTheWait(t *testing.T) {
	for name, mood := range serverMoods() {
		t.Run(name, func(t *testing.T) {
			redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
				m := locktest.NewTestClient(t, s.Client(), watchlock.WithWatchdogTimeout(10*time.Second)).NewMutex("n")
				held := locktest.MustLock(t, locktest.NewTestClient(t, s.Client()).NewMutex("held"))
				mood.begin(t, s)
				ended := false
				end := func() {
					if !ended {
						mood.end(s)
					}
					ended = true
				}
				defer end()

				now := func(err error) {
					t.Helper()
					var le *watchlock.LockError
					if !watchlock.IsUnavailable(err) || !errors.As(err, &le) || errors.Is(err, watchlock.ErrNotAcquired) || errors.Is(err, watchlock.ErrWrongType) {
						t.Errorf("%v", err)
					}
					if !strings.Contains(fmt.Sprint(err), ": "+mood.says+" ") {
						t.Errorf("%v: the server's %s is not in it", err, mood.says)
					}
				}
				begin := time.Now()
				_, err := m.TryLock(t.Context(), 0)
				if now(err); time.Since(begin) > 900*time.Millisecond {
					t.Errorf("one attempt took %v", time.Since(begin))
				}
				if s.Family() == redistest.Redis70 {
					const wait = 300 * time.Millisecond
					begin = time.Now()
					_, err = m.TryLock(t.Context(), wait)
					if now(err); time.Since(begin) < wait || time.Since(begin) > wait+500*time.Millisecond {
						t.Errorf("a wait of %v took %v", wait, time.Since(begin))
					}
				}

				waiting := make(chan error, 1)
				go func() {
					l, err := m.TryLock(context.Background(), 20*time.Second)
					if err == nil {
						err = l.Unlock(context.Background())
					}
					waiting <- err
				}()
				select {
				case err := <-waiting:
					t.Fatalf("a wait of 20 s ended during it: %v", err)
				case <-time.After(100 * time.Millisecond):
				}
				end()
				if err := <-waiting; err != nil {
					t.Errorf("after it: %v", err)
				}
				if err := held.Err(); err != nil {
					t.Errorf("what was held before: %v", err)
				}
				locktest.MustUnlock(t, held)
			})
		})
	}
}

func TestTooManyClientsIsUnavailable(t *testing.T) {
	s := redistest.Start(t)
	m := locktest.NewTestClient(t, s.Client()).NewMutex("n")
	s.Config("maxclients", "1")
	_, err := m.TryLock(t.Context(), 0)
	if !watchlock.IsUnavailable(err) || errors.Is(err, watchlock.ErrNotAcquired) {
		t.Errorf("no attempt got through: %v", err)
	}
	begin := time.Now()
	_, err = m.TryLock(t.Context(), 300*time.Millisecond)
	if took := time.Since(begin); !watchlock.IsUnavailable(err) || took > 800*time.Millisecond {
		t.Errorf("a wait of 300ms took %v: %v", took, err)
	}
	s.Config("maxclients", "100")
	l, err := m.TryLock(t.Context(), 5*time.Second)
	if err != nil {
		t.Fatalf("when there was room again: %v", err)
	}
	locktest.MustUnlock(t, l)
}

func TestRedisThatIsDownIsTheFirstAnswer(t *testing.T) {
	s := redistest.Start(t)
	s.Kill()
	m := locktest.NewTestClient(t, s.Client()).NewMutex("n")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for what, try := range map[string]func() error{
		"Lock":        func() error { _, err := m.Lock(ctx); return err },
		"TryLock(0)":  func() error { _, err := m.TryLock(t.Context(), 0); return err },
		"TryLock(2s)": func() error { _, err := m.TryLock(t.Context(), 2*time.Second); return err },
		"TryDo":       func() error { return m.TryDo(t.Context(), 2*time.Second, func(context.Context) error { return nil }) },
		"Info":        func() error { _, err := m.Info(t.Context()); return err },
	} {
		begin := time.Now()
		err := try()
		if took := time.Since(begin); took > 1500*time.Millisecond {
			t.Errorf("%s took %v", what, took)
		}
		if !watchlock.IsUnavailable(err) || errors.Is(err, watchlock.ErrNotAcquired) || !strings.Contains(fmt.Sprint(err), "connect") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestOutageWhileWaitingIsRiddenOutAndThenNamed(t *testing.T) {
	s := redistest.Start(t)
	other := s.Client()
	if err := other.HSet(t.Context(), "n", locktest.Stranger, "1").Err(); err != nil {
		t.Fatal(err)
	}
	m := locktest.NewTestClient(t, s.Client()).NewMutex("n")
	type outcome struct {
		lease *watchlock.Lease
		err   error
		took  time.Duration
	}
	try := func(wait time.Duration) chan outcome {
		c := make(chan outcome, 1)
		begin := time.Now()
		go func() {
			l, err := m.TryLock(context.Background(), wait)
			c <- outcome{l, err, time.Since(begin)}
		}()
		return c
	}
	short, long := try(2*time.Second), try(time.Minute)
	locktest.Eventually(t, 5*time.Second, "a subscription", func() bool {
		n, err := other.PubSubNumSub(context.Background(), "redisson_lock__channel:{n}").Result()
		return err == nil && n["redisson_lock__channel:{n}"] == 1
	})
	s.Kill()
	got := <-short
	if !watchlock.IsUnavailable(got.err) || errors.Is(got.err, watchlock.ErrNotAcquired) {
		t.Errorf("the wait ended in an outage: %v", got.err)
	}
	if got.took < 2*time.Second || got.took > 2500*time.Millisecond {
		t.Errorf("a wait of 2s took %v", got.took)
	}
	s.Restart() // empty
	if got = <-long; got.err != nil {
		t.Fatalf("the wait that outlasted it: %v", got.err)
	}
	locktest.MustUnlock(t, got.lease)
}

func TestUserWithoutTheRightToScriptsOrKeyIsRefusedAtOnce(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		for _, rules := range [][]any{{"-eval", "-evalsha"}, {"-@scripting"}, {"resetkeys", "~other:*"}, {"-hset"}, {"-pexpire"}, {"-@all"}} {
			m := locktest.NewTestClient(t, locktest.ScriptBench{TB: t, Rdb: nil, Real: s}.User(rules...)).NewMutex("n")
			begin := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			for what, call := range locktest.FirstCalls(ctx, m) {
				if what == "info" {
					continue // some of them may
				}
				err := call()
				var le *watchlock.LockError
				if err == nil || watchlock.IsUnavailable(err) || errors.Is(err, watchlock.ErrNotAcquired) || !errors.As(err, &le) ||
					!strings.Contains(err.Error(), "NOPERM") && !strings.Contains(err.Error(), "ermission") &&
						!strings.Contains(err.Error(), "can't run this command") {
					t.Errorf("%v, %s: %v", rules, what, err)
				}
			}
			cancel()
			if took := time.Since(begin); took > 2*time.Second {
				t.Errorf("%v: five refusals took %v", rules, took)
			}
			if n, err := s.Do("EXISTS", "n"); n != int64(0) {
				t.Errorf("%v: the key exists, %v", rules, err)
				sends("DEL", "n")(s)
			}
		}
	})
}

func TestUserWithoutTheRightToPublishUnlocksAndWaitersPoll(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		b := locktest.ScriptBench{TB: t, Rdb: s.Client(), Real: s}
		l := locktest.MustLock(t, locktest.NewTestClient(t, b.User("-publish")).NewMutex("n"))
		next := make(chan error, 1)
		m := locktest.NewTestClient(t, s.Client()).NewMutex("n")
		go func() {
			got, err := m.TryLock(context.Background(), 10*time.Second)
			if err == nil {
				err = got.Unlock(context.Background())
			}
			next <- err
		}()
		locktest.Eventually(t, 5*time.Second, "a subscription", func() bool {
			n, err := b.Rdb.PubSubNumSub(context.Background(), "redisson_lock__channel:{n}").Result()
			return err == nil && n["redisson_lock__channel:{n}"] == 1
		})
		locktest.MustUnlock(t, l)
		if err := <-next; err != nil {
			t.Errorf("the waiter: %v", err)
		}
		b.Only()
	})
}

func TestUserWithoutTheRightToSubscribeWaitsByPollingWarnedOnce(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		b := locktest.ScriptBench{TB: t, Rdb: s.Client(), Real: s}
		for _, rules := range [][]any{{"-subscribe"}, {"resetchannels"}} {
			opt, logs := locktest.Observed()
			var denials atomic.Int64
			wire := redistest.NewWire()
			wire.On(redistest.Is("SUBSCRIBE"), redistest.CallReply(func() { denials.Add(1) })).Times(0)
			b.User(rules...)
			rdb := s.Client(wire.Options(), func(o *redis.Options) { o.Username, o.Password = "u", "p" })
			c := locktest.NewTestClient(t, rdb, opt)
			holder := locktest.NewTestClient(t, s.Client())
			for i, name := range []string{"a", "b"} {
				l := locktest.MustLock(t, holder.NewMutex(name))
				waited := make(chan error, 1)
				go func() {
					got, err := c.NewMutex(name).TryLock(context.Background(), 10*time.Second)
					if err == nil {
						err = got.Unlock(context.Background())
					}
					waited <- err
				}()
				locktest.Eventually(t, 5*time.Second, "a denial", func() bool { return denials.Load() > int64(i) })
				begin := time.Now()
				locktest.MustUnlock(t, l)
				if err := <-waited; err != nil {
					t.Errorf("%v: %v", rules, err)
				}
				if took := time.Since(begin); took > 3*time.Second {
					t.Errorf("%v: the grant came after %v", rules, took)
				}
			}
			if n := logs.FilterMessageSnippet("waiters poll").Len(); n != 1 {
				t.Errorf("%v: warned %d times", rules, n)
			}
		}
	})
}

func TestWrongPasswordIsNamedAndNotTold(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		const secret = "hunter2-is-secret"
		if _, err := s.Do("ACL", "SETUSER", "u", "reset", "on", ">right", "~*", "&*", "+@all"); err != nil {
			t.Fatal(err)
		}
		for _, protocol := range []int{2, 3} {
			opt, logs := locktest.Observed()
			m := locktest.NewTestClient(t, s.Client(func(o *redis.Options) {
				o.Protocol, o.Username, o.Password = protocol, "u", secret
			}), opt).NewMutex("n")
			for what, call := range locktest.FirstCalls(t.Context(), m) {
				err := call()
				if err == nil || watchlock.IsUnavailable(err) || errors.Is(err, watchlock.ErrNotAcquired) || !strings.Contains(err.Error(), "WRONGPASS") {
					t.Errorf("RESP%d, %s: %v", protocol, what, err)
				}
				if strings.Contains(fmt.Sprintf("%+v %#v", err, err), secret) {
					t.Errorf("RESP%d, %s: the password is in %v", protocol, what, err)
				}
			}
			if strings.Contains(fmt.Sprint(logs.All()), secret) {
				t.Error("the password was logged")
			}
		}
	})
}

func TestHolderWhoseUserIsDeletedIsToldInTime(t *testing.T) {
	s := redistest.Start(t)
	b := locktest.ScriptBench{TB: t, Rdb: s.Client(), Real: s}
	l := locktest.MustLock(t, locktest.NewTestClient(t, b.User(), watchlock.WithWatchdogTimeout(900*time.Millisecond)).NewMutex("n"))
	done := l.Done()
	if _, err := s.Do("ACL", "DELUSER", "u"); err != nil {
		t.Fatal(err)
	}
	locktest.Closes(t, done)
	if left := b.Do("PTTL", "n").(int64); left == -2 {
		t.Error("the key had gone before the holder was told")
	}
	if err := l.Err(); !errors.Is(err, watchlock.ErrLost) {
		t.Errorf("Err: %v", err)
	}
}

func TestFlushedScriptsAreNotNoticed(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		c := locktest.NewTestClient(t, s.Client(), watchlock.WithWatchdogTimeout(300*time.Millisecond))
		kept := locktest.MustLock(t, c.NewMutex("kept"))
		begin := time.Now()
		for i := 0; i < 200 || time.Since(begin) < 700*time.Millisecond; i++ {
			l := locktest.MustLock(t, c.NewMutex("n"))
			if _, err := s.Do("SCRIPT", "FLUSH"); err != nil {
				t.Fatal(err)
			}
			locktest.MustUnlock(t, l)
			if _, err := c.NewMutex("n").Info(t.Context()); err != nil {
				t.Fatalf("Info: %v", err)
			}
		}
		if err := kept.Err(); err != nil {
			t.Errorf("a lease renewed meanwhile: %v", err)
		}
		locktest.MustUnlock(t, kept)
		if n := s.CommandCalls()["eval"]; n < 200 {
			t.Errorf("%d EVAL: the scripts were hardly missed", n)
		}
	})
}

func TestReleaseScriptFreesForAUserWhoMayNotPublish(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		b := locktest.ScriptBench{TB: t, Rdb: s.Client(), Real: s}
		for _, rules := range [][]any{{"-publish"}, {"resetchannels"}} {
			rdb := b.User(rules...)
			b.Hash("a", locktest.ScriptLease, locktest.Me)
			b.Hash("b", locktest.ScriptLease, locktest.Me)
			ka, _ := wire.NewKeys(wire.HashKind{}, "a", nil)
			kb, _ := wire.NewKeys(wire.HashKind{}, "b", nil)
			reply, err := b.Run(rdb, wire.ReleaseAll(wire.ReleaseScript, []wire.Owned{locktest.OwnedBy(ka, locktest.Me, 0), locktest.OwnedBy(kb, locktest.Me, 0)}))
			b.Answers(reply, err, []any{1, -1, 1, -1})
			if got, err := wire.ReadRelease(locktest.Integers(reply), 2); err != nil || !got.Mine(0) || !got.Mine(1) || got.Told(0) != 0 || got.Told(1) != 0 {
				t.Errorf("%v: read as %v, %v", rules, got, err)
			}
			b.Only()
		}
	})
}

func TestScriptsReleaseAndRenewWhenMemoryIsFull(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		b := locktest.ScriptBench{TB: t, Rdb: s.Client(), Real: s}
		b.Hash("a", locktest.ScriptLease, locktest.Me)
		b.Hash("b", locktest.ScriptLease, locktest.Me)
		b.Hash("c", locktest.ScriptLease, locktest.Earlier)
		s.Config("maxmemory", "1")
		free := locktest.OwnedBy(wire.Keys{Key: "free"}, locktest.Me, locktest.ScriptLease)
		if _, err := b.Run(b.Rdb, wire.AcquireHash(&free, nil)); !redis.HasErrorPrefix(err, "OOM") {
			t.Errorf("acquire: %v, want OOM", err)
		}
		reply, err := b.Run(b.Rdb, wire.RenewAll(wire.RenewScript, []wire.Owned{locktest.OwnedBy(wire.Keys{Key: "a"}, locktest.Me, time.Minute)}))
		b.Answers(reply, err, []any{1})
		b.Holds("a", time.Minute, locktest.Me)
		reply, err = b.Run(b.Rdb, wire.ReleaseAll(wire.ReleaseScript, []wire.Owned{locktest.OwnedBy(wire.Keys{Key: "a"}, locktest.Me, 0), locktest.OwnedBy(wire.Keys{Key: "b"}, locktest.Me, 0)}))
		b.Answers(reply, err, []any{1, 0, 1, 0})
		b.Only("c")
	})
}

func TestReleaseScriptPassesOtherErrorsOn(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		b := locktest.ScriptBench{TB: t, Rdb: s.Client(), Real: s}
		b.Hash("a", locktest.ScriptLease, locktest.Me)
		reply, err := b.Run(b.User("-hdel"), wire.ReleaseAll(wire.ReleaseScript, []wire.Owned{locktest.OwnedBy(wire.Keys{Key: "a"}, locktest.Me, 0)}))
		if err == nil || !strings.HasPrefix(err.Error(), "ERR ") {
			t.Errorf("without the right to HDEL: %v, %v", reply, err)
		}
		if fate, err := transport.Judge(err); fate != transport.Refused || watchlock.IsUnavailable(err) || errors.Is(err, watchlock.ErrWrongType) {
			t.Errorf("judged as %v, %v", fate, err)
		}
		if _, err := s.Do("REPLICAOF", "127.0.0.1", "1"); err != nil {
			t.Fatal(err)
		}
		reply, err = b.Run(b.Rdb, wire.ReleaseAll(wire.ReleaseScript, []wire.Owned{locktest.OwnedBy(wire.Keys{Key: "a"}, locktest.Me, 0)}))
		if fate, _ := transport.Judge(err); fate != transport.Later || !redis.HasErrorPrefix(err, "READONLY") {
			t.Errorf("on a replica: %v, %v, judged as %v", reply, err, fate)
		}
	})
}
