package watchlock

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
	eventually(t, 5*time.Second, "a failed save", func() bool {
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
	eventually(t, 5*time.Second, word, func() bool {
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
				m := newTestClient(t, s.Client(), WithWatchdogTimeout(10*time.Second)).NewMutex("n")
				held := mustLock(t, newTestClient(t, s.Client()).NewMutex("held"))
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
					var le *LockError
					if !IsUnavailable(err) || !errors.As(err, &le) || errors.Is(err, ErrNotAcquired) || errors.Is(err, ErrWrongType) {
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
				mustUnlock(t, held)
			})
		})
	}
}

func TestTooManyClientsIsUnavailable(t *testing.T) {
	s := redistest.Start(t)
	m := newTestClient(t, s.Client()).NewMutex("n")
	s.Config("maxclients", "1")
	_, err := m.TryLock(t.Context(), 0)
	if !IsUnavailable(err) || errors.Is(err, ErrNotAcquired) {
		t.Errorf("no attempt got through: %v", err)
	}
	begin := time.Now()
	_, err = m.TryLock(t.Context(), 300*time.Millisecond)
	if took := time.Since(begin); !IsUnavailable(err) || took > 800*time.Millisecond {
		t.Errorf("a wait of 300ms took %v: %v", took, err)
	}
	s.Config("maxclients", "100")
	l, err := m.TryLock(t.Context(), 5*time.Second)
	if err != nil {
		t.Fatalf("when there was room again: %v", err)
	}
	mustUnlock(t, l)
}

func TestRedisThatIsDownIsTheFirstAnswer(t *testing.T) {
	s := redistest.Start(t)
	s.Kill()
	m := newTestClient(t, s.Client()).NewMutex("n")
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
		if !IsUnavailable(err) || errors.Is(err, ErrNotAcquired) || !strings.Contains(fmt.Sprint(err), "connect") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestOutageWhileWaitingIsRiddenOutAndThenNamed(t *testing.T) {
	s := redistest.Start(t)
	other := s.Client()
	if err := other.HSet(t.Context(), "n", stranger, "1").Err(); err != nil {
		t.Fatal(err)
	}
	m := newTestClient(t, s.Client()).NewMutex("n")
	type outcome struct {
		lease *Lease
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
	eventually(t, 5*time.Second, "a subscription", func() bool {
		n, err := other.PubSubNumSub(context.Background(), "redisson_lock__channel:{n}").Result()
		return err == nil && n["redisson_lock__channel:{n}"] == 1
	})
	s.Kill()
	got := <-short
	if !IsUnavailable(got.err) || errors.Is(got.err, ErrNotAcquired) {
		t.Errorf("the wait ended in an outage: %v", got.err)
	}
	if got.took < 2*time.Second || got.took > 2500*time.Millisecond {
		t.Errorf("a wait of 2s took %v", got.took)
	}
	s.Restart() // empty
	if got = <-long; got.err != nil {
		t.Fatalf("the wait that outlasted it: %v", got.err)
	}
	mustUnlock(t, got.lease)
}

func TestUserWithoutTheRightToScriptsOrKeyIsRefusedAtOnce(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		for _, rules := range [][]any{{"-eval", "-evalsha"}, {"-@scripting"}, {"resetkeys", "~other:*"}, {"-hset"}, {"-pexpire"}, {"-@all"}} {
			m := newTestClient(t, scriptBench{t, nil, nil, s}.user(rules...)).NewMutex("n")
			begin := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			for what, call := range firstCalls(ctx, m) {
				if what == "info" {
					continue // some of them may
				}
				err := call()
				var le *LockError
				if err == nil || IsUnavailable(err) || errors.Is(err, ErrNotAcquired) || !errors.As(err, &le) ||
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
		b := scriptBench{t, s.Client(), nil, s}
		l := mustLock(t, newTestClient(t, b.user("-publish")).NewMutex("n"))
		next := make(chan error, 1)
		m := newTestClient(t, s.Client()).NewMutex("n")
		go func() {
			got, err := m.TryLock(context.Background(), 10*time.Second)
			if err == nil {
				err = got.Unlock(context.Background())
			}
			next <- err
		}()
		eventually(t, 5*time.Second, "a subscription", func() bool {
			n, err := b.rdb.PubSubNumSub(context.Background(), "redisson_lock__channel:{n}").Result()
			return err == nil && n["redisson_lock__channel:{n}"] == 1
		})
		mustUnlock(t, l)
		if err := <-next; err != nil {
			t.Errorf("the waiter: %v", err)
		}
		b.only()
	})
}

func TestUserWithoutTheRightToSubscribeWaitsByPollingWarnedOnce(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		b := scriptBench{t, s.Client(), nil, s}
		for _, rules := range [][]any{{"-subscribe"}, {"resetchannels"}} {
			opt, logs := observed()
			var denials atomic.Int64
			wire := redistest.NewWire()
			wire.On(redistest.Is("SUBSCRIBE"), redistest.CallReply(func() { denials.Add(1) })).Times(0)
			b.user(rules...)
			rdb := s.Client(wire.Options(), func(o *redis.Options) { o.Username, o.Password = "u", "p" })
			c := newTestClient(t, rdb, opt)
			holder := newTestClient(t, s.Client())
			for i, name := range []string{"a", "b"} {
				l := mustLock(t, holder.NewMutex(name))
				waited := make(chan error, 1)
				go func() {
					got, err := c.NewMutex(name).TryLock(context.Background(), 10*time.Second)
					if err == nil {
						err = got.Unlock(context.Background())
					}
					waited <- err
				}()
				eventually(t, 5*time.Second, "a denial", func() bool { return denials.Load() > int64(i) })
				begin := time.Now()
				mustUnlock(t, l)
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
			opt, logs := observed()
			m := newTestClient(t, s.Client(func(o *redis.Options) {
				o.Protocol, o.Username, o.Password = protocol, "u", secret
			}), opt).NewMutex("n")
			for what, call := range firstCalls(t.Context(), m) {
				err := call()
				if err == nil || IsUnavailable(err) || errors.Is(err, ErrNotAcquired) || !strings.Contains(err.Error(), "WRONGPASS") {
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
	b := scriptBench{t, s.Client(), nil, s}
	l := mustLock(t, newTestClient(t, b.user(), WithWatchdogTimeout(900*time.Millisecond)).NewMutex("n"))
	done := l.Done()
	if _, err := s.Do("ACL", "DELUSER", "u"); err != nil {
		t.Fatal(err)
	}
	closes(t, done)
	if left := b.do("PTTL", "n").(int64); left == -2 {
		t.Error("the key had gone before the holder was told")
	}
	if err := l.Err(); !errors.Is(err, ErrLost) {
		t.Errorf("Err: %v", err)
	}
}

func TestFlushedScriptsAreNotNoticed(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		c := newTestClient(t, s.Client(), WithWatchdogTimeout(300*time.Millisecond))
		kept := mustLock(t, c.NewMutex("kept"))
		begin := time.Now()
		for i := 0; i < 200 || time.Since(begin) < 700*time.Millisecond; i++ {
			l := mustLock(t, c.NewMutex("n"))
			if _, err := s.Do("SCRIPT", "FLUSH"); err != nil {
				t.Fatal(err)
			}
			mustUnlock(t, l)
			if _, err := c.NewMutex("n").Info(t.Context()); err != nil {
				t.Fatalf("Info: %v", err)
			}
		}
		if err := kept.Err(); err != nil {
			t.Errorf("a lease renewed meanwhile: %v", err)
		}
		mustUnlock(t, kept)
		if n := s.CommandCalls()["eval"]; n < 200 {
			t.Errorf("%d EVAL: the scripts were hardly missed", n)
		}
	})
}

func TestReleaseScriptFreesForAUserWhoMayNotPublish(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		b := scriptBench{t, s.Client(), nil, s}
		for _, rules := range [][]any{{"-publish"}, {"resetchannels"}} {
			rdb := b.user(rules...)
			b.hash("a", scriptLease, me)
			b.hash("b", scriptLease, me)
			ka, _ := wire.NewKeys(wire.HashKind{}, "a", nil)
			kb, _ := wire.NewKeys(wire.HashKind{}, "b", nil)
			reply, err := b.run(rdb, wire.ReleaseAll(wire.ReleaseScript, []wire.Owned{ownedBy(ka, me, 0), ownedBy(kb, me, 0)}))
			b.answers(reply, err, []any{1, -1, 1, -1})
			if got, err := wire.ReadRelease(integers(reply), 2); err != nil || !got.Mine(0) || !got.Mine(1) || got.Told(0) != 0 || got.Told(1) != 0 {
				t.Errorf("%v: read as %v, %v", rules, got, err)
			}
			b.only()
		}
	})
}

func TestScriptsReleaseAndRenewWhenMemoryIsFull(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		b := scriptBench{t, s.Client(), nil, s}
		b.hash("a", scriptLease, me)
		b.hash("b", scriptLease, me)
		b.hash("c", scriptLease, earlier)
		s.Config("maxmemory", "1")
		free := ownedBy(wire.Keys{Key: "free"}, me, scriptLease)
		if _, err := b.run(b.rdb, wire.AcquireHash(&free, nil)); !redis.HasErrorPrefix(err, "OOM") {
			t.Errorf("acquire: %v, want OOM", err)
		}
		reply, err := b.run(b.rdb, wire.RenewAll(wire.RenewScript, []wire.Owned{ownedBy(wire.Keys{Key: "a"}, me, time.Minute)}))
		b.answers(reply, err, []any{1})
		b.holds("a", time.Minute, me)
		reply, err = b.run(b.rdb, wire.ReleaseAll(wire.ReleaseScript, []wire.Owned{ownedBy(wire.Keys{Key: "a"}, me, 0), ownedBy(wire.Keys{Key: "b"}, me, 0)}))
		b.answers(reply, err, []any{1, 0, 1, 0})
		b.only("c")
	})
}

func TestReleaseScriptPassesOtherErrorsOn(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		b := scriptBench{t, s.Client(), nil, s}
		b.hash("a", scriptLease, me)
		reply, err := b.run(b.user("-hdel"), wire.ReleaseAll(wire.ReleaseScript, []wire.Owned{ownedBy(wire.Keys{Key: "a"}, me, 0)}))
		if err == nil || !strings.HasPrefix(err.Error(), "ERR ") {
			t.Errorf("without the right to HDEL: %v, %v", reply, err)
		}
		if fate, err := transport.Judge(err); fate != transport.Refused || IsUnavailable(err) || errors.Is(err, ErrWrongType) {
			t.Errorf("judged as %v, %v", fate, err)
		}
		if _, err := s.Do("REPLICAOF", "127.0.0.1", "1"); err != nil {
			t.Fatal(err)
		}
		reply, err = b.run(b.rdb, wire.ReleaseAll(wire.ReleaseScript, []wire.Owned{ownedBy(wire.Keys{Key: "a"}, me, 0)}))
		if fate, _ := transport.Judge(err); fate != transport.Later || !redis.HasErrorPrefix(err, "READONLY") {
			t.Errorf("on a replica: %v, %v, judged as %v", reply, err, fate)
		}
	})
}
