package string_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestWhoCannotReleaseTheStringFormTakesNothing(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		rules := []any{"-@scripting"}
		if s.Family() == redistest.Redis86 {
			rules = append(rules, "-delex")
		}
		m := locktest.NewTestClient(t, s.Client(locktest.UserWith(t, s, rules...))).NewSetNXMutex("k")
		for range 3 {
			if l, err := m.TryLock(context.Background(), 0); err == nil || !strings.Contains(err.Error(), "NOPERM") {
				t.Errorf("%v, %v", l, err)
			}
			if locktest.MustDo(t, s, "EXISTS", "k") != int64(0) {
				t.Fatal("it was taken")
			}
		}
	})
}

func TestTheStringFormRunsScriptsForAUserWithoutDELEX(t *testing.T) {
	s := redistest.Start(t, redistest.On(redistest.Redis86))
	tourOfSetNX(t, s, true, locktest.UserWith(t, s, "-delex"))
}

func TestTheStringFormRenewsWithoutScriptsWhereOnesOfOursAreDeniedACommand(t *testing.T) {
	s := redistest.Start(t, redistest.On(redistest.Redis86))
	for _, rule := range []string{"-pexpire", "-pttl", "-get"} {
		c := locktest.NewTestClient(t, s.Client(locktest.UserWith(t, s, rule)), watchlock.WithWatchdogTimeout(300*time.Millisecond))
		l := locktest.MustLock(t, c.NewSetNXMutex("k"))
		since := time.Now()
		locktest.Eventually(t, time.Minute, "three TTLs are over", func() bool { return time.Since(since) > 900*time.Millisecond })
		if l.Err() != nil || locktest.MustDo(t, s, "EXISTS", "k") != int64(1) {
			t.Errorf("%s: %v", rule, l.Err())
		}
		locktest.MustUnlock(t, l)
	}
}

func TestTheStringFormAsksAServerOnceBeforeItTakesAnything(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		wire := redistest.NewWire()
		c := locktest.NewTestClient(t, s.Client(wire.Options()))
		for i := range 20 {
			locktest.MustUnlock(t, locktest.MustLock(t, c.NewSetNXMutex(fmt.Sprint("k", i))))
		}
		asked := 1
		if s.Family() == redistest.Redis86 {
			asked = 1 + 20 // releases
		}
		if n := wire.Count(redistest.Is("DELEX")); n != asked {
			t.Errorf("%d DELEX, want %d", n, asked)
		}
		for _, cmd := range wire.Seen() {
			if cmd.Name == "SET" || cmd.Name == "EVALSHA" || cmd.Name == "EVAL" {
				t.Errorf("%v was the first", cmd)
			}
			if cmd.Name == "DELEX" {
				break
			}
		}
	})
}

func TestOnAClusterTheStringFormAsksNotForEachSlot(t *testing.T) {
	cl := redistest.StartCluster(t, redistest.On(redistest.Redis86))
	const locks = 30
	c := locktest.NewTestClient(t, cl.Client())
	calls := func(name string) (n int) {
		for _, s := range cl.Nodes() {
			n += s.CommandCalls()[name]
		}
		return n
	}
	for i := range locks {
		locktest.MustUnlock(t, locktest.MustLock(t, c.NewSetNXMutex(fmt.Sprint("k", i))))
	}
	if n := calls("delex") - locks; n != 1 {
		t.Errorf("asked %d times by DELEX", n)
	}
	if n := calls("evalsha") + calls("eval"); n > 2 {
		t.Errorf("%d scripts", n)
	}
}

// TestOnAClusterOfServersThatAreNotAlikeNothingIsTakenInVain is about a user whose rights
// differ from one server to the next.
func TestOnAClusterOfServersThatAreNotAlikeNothingIsTakenInVain(t *testing.T) {
	ctx := context.Background()
	for name, rules := range map[string][2][]any{
		"one has neither way":          {{"-@scripting"}, {"-@scripting", "-delex"}},
		"one wants scripts":            {{"-@scripting"}, {"-delex"}},
		"one wants none, the rest do":  {{"-delex"}, {"-@scripting"}},
		"all know both, one DELEX not": {{}, {"-delex"}},
	} {
		t.Run(name, func(t *testing.T) {
			cl := redistest.StartCluster(t, redistest.On(redistest.Redis86))
			odd := cl.Primaries()[0]
			for _, s := range cl.Nodes() {
				rule := rules[0]
				if s == odd {
					rule = rules[1]
				}
				locktest.UserWith(t, s, rule...)
			}
			c := locktest.NewTestClient(t, cl.Client(func(o *redis.ClusterOptions) { o.Username, o.Password = "w", "p" }))
			neither := len(rules[1]) == 2
			for i := range 30 {
				key := fmt.Sprint("k", i)
				at := cl.Owner(cl.Slot(key))
				l, err := c.NewSetNXMutex(key).TryLock(ctx, 0)
				if neither && at == odd {
					if err == nil || !strings.Contains(err.Error(), "NOPERM") || locktest.MustDo(t, at, "EXISTS", key) != int64(0) {
						t.Errorf("%v, %v", l, err)
					}
					continue
				}
				if err != nil {
					t.Errorf("%s: %v", key, err)
					continue
				}
				if err := l.Unlock(ctx); err != nil || locktest.MustDo(t, at, "EXISTS", key) != int64(0) {
					t.Errorf("%s: Unlock: %v", key, err)
				}
			}
		})
	}
}
