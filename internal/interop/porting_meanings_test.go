package interop

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
)

// portingALostLockIsToldAtUnlock also shows that the usual guard
// before unlock hides the loss in Kotlin.
func portingALostLockIsToldAtUnlock(t *testing.T, r *portingRig) {
	r.onEachIdiom(t, func(t *testing.T, side portingSide, i int, lock string) {
		call := side.start("plain", portingIdioms[i].region, lock)
		defer call.end()
		call.insideIn(t)
		r.holdElsewhere(t, lock)
		call.end()
		kotlin := "IllegalMonitorStateException"
		if portingIdioms[i].region == "order" {
			kotlin = "done"
		}
		if got, want := call.outcomeIn(t), by(side, kotlin, "lost"); got != want {
			t.Errorf("it ended with %q, want %q", got, want)
		}
		r.expectElsewhere(t, lock)
	})
}

func portingTheGuardSendsNothingAfterALoss(t *testing.T, r *portingRig) {
	r.onEachSide(t, func(t *testing.T, side portingSide) {
		lock := portingLock(side, "guard")
		call := side.start("plain", "guard", lock)
		defer call.end()
		if got := call.insideIn(t); got != "A" {
			t.Errorf("the first parcel is %q", got)
		}
		if got := side.start("plain", "force", lock).outcomeIn(t); got != "true" {
			t.Errorf("force: %q", got)
		}
		call.end()
		if got, want := call.outcomeIn(t), by(side, "IllegalMonitorStateException", "lost"); got != want {
			t.Errorf("it ended with %q, want %q", got, want)
		}
		if len(call.inside) != 0 {
			t.Errorf("parcel %s was sent", <-call.inside)
		}
	})
}

func portingInfoOfAnothersLockIsTheSame(t *testing.T, r *portingRig) {
	r.onEachSide(t, func(t *testing.T, side portingSide) {
		lock := portingLock(side, "info")
		r.holdElsewhere(t, lock)
		got := side.start("plain", "info", lock).outcomeIn(t)
		ms := regexp.MustCompile(`^held true, here 0 times, for (\d+) ms$`).FindStringSubmatch(got)
		if ms == nil {
			t.Fatalf("info of a lock held elsewhere: %q", got)
		}
		if n, _ := strconv.Atoi(ms[1]); n > 60_000 || n < 50_000 {
			t.Errorf("info: %q", got)
		}
		r.rdb.Del(t.Context(), lock)
		if got, want := side.start("plain", "info", lock).outcomeIn(t), "held false, here 0 times, for "+by(side, "-2 ms", "0 ms"); got != want {
			t.Errorf("info of a free lock: %q, want %q", got, want)
		}

		// getHoldCount is of the thread that asks, Info of the client.
		call := side.start("plain", "lock", lock)
		defer call.end()
		call.insideIn(t)
		got = side.start("plain", "info", lock).outcomeIn(t)
		if want := by(side, "held true, here 0 times", "held true, here 1 times"); !strings.HasPrefix(got, want) {
			t.Errorf("info of one's own lock, asked from elsewhere: %q, want %q", got, want)
		}
		call.end()
		call.outcomeIn(t)
	})
}

func portingForceWakesTheWaiters(t *testing.T, r *portingRig) {
	r.onEachSide(t, func(t *testing.T, side portingSide) {
		lock := portingLock(side, "force")
		r.holdElsewhere(t, lock)
		released := r.rdb.Subscribe(t.Context(), portingChannel(lock))
		defer released.Close()
		if _, err := released.Receive(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := side.start("plain", "force", lock).outcomeIn(t); got != "true" {
			t.Errorf("force of a lock that is held: %q", got)
		}
		r.expectFree(t, lock)
		if message, err := released.ReceiveTimeout(t.Context(), portingPatience); err != nil || message.(*redis.Message).Payload != by(side, "0", "00") {
			t.Errorf("the waiters are told %v, %v", message, err)
		}
		if got := side.start("plain", "force", lock).outcomeIn(t); got != "false" {
			t.Errorf("force of a free lock: %q", got)
		}
	})
}

func portingTheClientIsConfigured(t *testing.T, r *portingRig) {
	r.onEachSide(t, func(t *testing.T, side portingSide) {
		lock := portingLock(side, "configured")
		call := side.start("shop", "lock", lock)
		defer call.end()
		call.insideIn(t)
		r.expectHeld(t, "shop:"+lock, 20*time.Second)
		r.expectFree(t, lock)
		call.end()
		if got := call.outcomeIn(t); got != "done" {
			t.Errorf("it ended with %q", got)
		}
	})
}

func portingAnInterruptEndsTheWaiting(t *testing.T, r *portingRig) {
	r.onEachSide(t, func(t *testing.T, side portingSide) {
		for _, idiom := range []string{"interrupt", "order"} {
			lock := "lock:order:" + portingLock(side, idiom)
			r.holdElsewhere(t, lock)
			call := side.start("plain", idiom, lock)
			defer call.end()
			r.waiters(t, lock, 1)
			call.interrupt()
			portingNext(t, call.interrupted, "interrupted")
			if got, want := call.outcomeIn(t), by(side, "InterruptedException", "cancelled"); got != want {
				t.Errorf("%s: it ended with %q, want %q", idiom, got, want)
			}
			r.expectElsewhere(t, lock)
		}
	})
}

func portingAnInterruptDoesNotEndLock(t *testing.T, r *portingRig) {
	r.onEachSide(t, func(t *testing.T, side portingSide) {
		lock := portingLock(side, "uninterrupted")
		r.holdElsewhere(t, lock)
		call := side.start("plain", "lock", lock)
		defer call.end()
		r.waiters(t, lock, 1)
		call.interrupt()
		portingNext(t, call.interrupted, "interrupted")
		if side.isGo() {
			if got := call.outcomeIn(t); got != "cancelled" {
				t.Errorf("it ended with %q", got)
			}
			return
		}
		r.rdb.Del(t.Context(), lock)
		r.rdb.Publish(t.Context(), portingChannel(lock), "0")
		call.insideIn(t)
		call.end()
		call.outcomeIn(t)
	})
}

func portingAShorterLeaseInside(t *testing.T, r *portingRig) {
	r.onEachSide(t, func(t *testing.T, side portingSide) {
		lock := portingLock(side, "shortInLong")
		call := side.start("plain", "shortInLong", lock)
		defer call.end()
		call.insideIn(t)
		r.expectTTL(t, lock, by(side, 2*time.Second, 30*time.Second))
	})
}

func (r *portingRig) expectTTL(t *testing.T, key string, want time.Duration) {
	t.Helper()
	if got := r.rdb.PTTL(t.Context(), key).Val(); got > want || got < want-want/4-500*time.Millisecond {
		t.Errorf("the TTL is %v, want %v", got, want)
	}
}

func portingLockAndGetTokenForgetsItsLease(t *testing.T, r *portingRig) {
	r.onEachSide(t, func(t *testing.T, side portingSide) {
		lock := portingLock(side, "fencedLease")
		call := side.start("plain", "fencedLease", lock)
		defer call.end()
		call.insideIn(t)
		r.expectTTL(t, lock, by(side, 30*time.Second, 5*time.Second))
	})
}

func portingAReentryAndItsToken(t *testing.T, r *portingRig) {
	r.onEachSide(t, func(t *testing.T, side portingSide) {
		call := side.start("plain", "fencedReentry", portingLock(side, "fencedReentry"))
		defer call.end()
		if got, want := call.insideIn(t), by(side, "1", "0"); got != want {
			t.Errorf("the token of the re-entry is larger by %s, want %s", got, want)
		}
	})
}

func portingWhoMayUnlock(t *testing.T, r *portingRig) {
	for idiom, want := range map[string][2]string{
		"unlockTwice":           {"IllegalMonitorStateException", "not held"},
		"unlockOnAnotherThread": {"IllegalMonitorStateException", "done"},
	} {
		t.Run(idiom, func(t *testing.T) {
			r.onEachSide(t, func(t *testing.T, side portingSide) {
				lock := portingLock(side, idiom)
				call := side.start("plain", idiom, lock)
				defer call.end()
				call.insideIn(t)
				call.end()
				if got, want := call.outcomeIn(t), by(side, want[0], want[1]); got != want {
					t.Errorf("it ended with %q, want %q", got, want)
				}
				r.expectFree(t, lock)
			})
		})
	}
}

func portingWhoIsInside(t *testing.T, r *portingRig) {
	r.onEachSide(t, func(t *testing.T, side portingSide) {
		call := side.start("plain", "lockOnAnotherThread", portingLock(side, "lockOnAnotherThread"))
		defer call.end()
		if got, want := call.insideIn(t), by(side, "false", "true"); got != want {
			t.Errorf("it is inside: %s, want %s", got, want)
		}
	})
}

func portingTokensOverALostCounter(t *testing.T, r *portingRig) {
	inGo := r.sides[0]
	for _, jvm := range r.sides[1:] {
		lock := portingLock(jvm, "tokens")
		token := func(side portingSide) int64 {
			t.Helper()
			call := side.start("plain", "fenced", lock)
			defer call.end()
			n, err := strconv.ParseInt(call.insideIn(t), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			call.end()
			if got := call.outcomeIn(t); got != "done" {
				t.Errorf("%s ended with %q", side.name, got)
			}
			return n
		}
		lose := func() { r.rdb.Del(t.Context(), "redisson_lock_token:{"+lock+"}") }

		if one, two := token(jvm), token(jvm); one != 1 || two != 2 {
			t.Errorf("%s counts %d, %d", jvm.name, one, two)
		}
		before := time.Now().Add(-time.Minute).UnixMicro() // in case the server's clock is not ours
		first := token(inGo)
		if first < before {
			t.Errorf("the token of Go is %d, which is no time", first)
		}
		if next := token(jvm); next <= first {
			t.Errorf("after %d of Go, %s counts %d", first, jvm.name, next)
		}
		third := token(inGo)
		lose()
		if next := token(inGo); next <= third {
			t.Errorf("when the counter is lost, the token of Go is %d after %d", next, third)
		}
		lose()
		if next := token(jvm); next != 1 {
			t.Errorf("when the counter is lost, %s counts %d", jvm.name, next)
		}
		if next := token(inGo); next <= third {
			t.Errorf("after 1 of %s, the token of Go is %d after %d", jvm.name, next, third)
		}
	}
}

// portingRefused are the names that the guide says are refused.
var portingRefused = []struct{ name, why string }{
	{"a}b{c}", `has a "}" before its first "{"`},
	{"{}order:1", `has an empty hash tag`},
	{"order:{1", `has a brace without its partner`},
	{"order:1}", `has a brace without its partner`},
}

func portingNamesThatAreRefused(t *testing.T, r *portingRig) {
	guide := portingText(t, portingGuide)
	for _, refused := range portingRefused {
		t.Run(strconv.Quote(refused.name), func(t *testing.T) {
			r.onEachSide(t, func(t *testing.T, side portingSide) {
				call := side.start("plain", "lock", refused.name)
				defer call.end()
				if side.isGo() {
					if got := call.outcomeIn(t); !strings.Contains(got, refused.why) {
						t.Errorf("it is refused with %q", got)
					}
					return
				}
				call.insideIn(t)
				call.end()
				if got := call.outcomeIn(t); got != "done" {
					t.Errorf("it ended with %q", got)
				}
			})
		})
		if !strings.Contains(guide, "`"+refused.name+"`") {
			t.Errorf("the guide does not name %q", refused.name)
		}
	}
}

// portingAHolderIsToldOfALoss takes the key of a renewed lock away.
func portingAHolderIsToldOfALoss(t *testing.T, r *portingRig) {
	client, err := watchlock.New(r.rdb, watchlock.WithWatchdogTimeout(600*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	lease, err := client.NewMutex("told").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.rdb.Del(t.Context(), "told")
	select {
	case <-lease.Context(t.Context()).Done():
	case <-time.After(portingPatience):
		t.Error("the context of a lost lease goes on")
	}
}

func portingLock(side portingSide, what string) string {
	return fmt.Sprintf("%s:%s", what, strings.ReplaceAll(side.name, " ", "-"))
}
