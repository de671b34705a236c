package interop

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// portingIdioms are those of the guide that take a lock and run a job under it.
var portingIdioms = []struct {
	region string // in the sources
	ttl    time.Duration
	wait   time.Duration // how long a lock that is busy is waited for; for ever if negative
	only   string        // the side that has it, if it is one
}{
	{region: "order", ttl: 30 * time.Second, wait: 3 * time.Second},
	{region: "order-byHand", ttl: 30 * time.Second, wait: 3 * time.Second, only: "Go"},
	{region: "lock", ttl: 30 * time.Second, wait: -1},
	{region: "lock-withLock", ttl: 30 * time.Second, wait: -1, only: "Kotlin"},
	{region: "lock-byHand", ttl: 30 * time.Second, wait: -1, only: "Go"},
	{region: "lease", ttl: 10 * time.Second, wait: -1},
	{region: "try-now", ttl: 30 * time.Second, wait: 0},
	{region: "try-lease", ttl: 10 * time.Second, wait: 3 * time.Second},
	{region: "reentry", ttl: 30 * time.Second, wait: -1},
	{region: "reentry-byHand", ttl: 30 * time.Second, wait: -1, only: "Go"},
	{region: "guard", ttl: 30 * time.Second, wait: -1},
	{region: "fenced", ttl: 30 * time.Second, wait: -1},
	{region: "interrupt", ttl: 30 * time.Second, wait: -1},
	{region: "coroutine", ttl: 30 * time.Second, wait: -1},
}

// portingQuestions are those that ask or break, rather than hold. The rest of
// the regions make the clients that all of them use.
var portingQuestions = []string{"connect", "configure", "info", "force"}

// portingRig is all sides at one server.
type portingRig struct {
	rdb   *redis.Client
	sides []portingSide
}

// TestPorting runs all that the guide shows and says on one server, at once.
func TestPorting(t *testing.T) {
	s := redistest.Start(t, redistest.WithTCP())
	r := &portingRig{s.Client(), portingSides(t, s)}
	for name, test := range map[string]func(*testing.T, *portingRig){
		"EachIdiomHoldsTheSameLock":      portingEachIdiomHoldsTheSameLock,
		"EachIdiomWaitsAsLong":           portingEachIdiomWaitsAsLong,
		"ALostLockIsToldAtUnlock":        portingALostLockIsToldAtUnlock,
		"TheGuardSendsNothingAfterALoss": portingTheGuardSendsNothingAfterALoss,
		"InfoOfAnothersLockIsTheSame":    portingInfoOfAnothersLockIsTheSame,
		"ForceWakesTheWaiters":           portingForceWakesTheWaiters,
		"TheClientIsConfigured":          portingTheClientIsConfigured,
		"AnInterruptEndsTheWaiting":      portingAnInterruptEndsTheWaiting,
		"AnInterruptDoesNotEndLock":      portingAnInterruptDoesNotEndLock,
		"AShorterLeaseInside":            portingAShorterLeaseInside,
		"LockAndGetTokenForgetsItsLease": portingLockAndGetTokenForgetsItsLease,
		"AReentryAndItsToken":            portingAReentryAndItsToken,
		"WhoMayUnlock":                   portingWhoMayUnlock,
		"WhoIsInside":                    portingWhoIsInside,
		"TokensOverALostCounter":         portingTokensOverALostCounter,
		"NamesThatAreRefused":            portingNamesThatAreRefused,
		"AHolderIsToldOfALoss":           portingAHolderIsToldOfALoss,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tell(t, t.Name(), string(s.Family()), strings.Join(redissons(), " and "))
			test(t, r)
		})
	}
}

// onEachSide runs f for each side, all at once.
func (r *portingRig) onEachSide(t *testing.T, f func(t *testing.T, side portingSide)) {
	t.Helper()
	for _, side := range r.sides {
		t.Run(side.name, func(t *testing.T) {
			t.Parallel()
			f(t, side)
		})
	}
}

// onEachIdiom runs f for each idiom on each side that has it, all at once, on a
// lock of its own.
func (r *portingRig) onEachIdiom(t *testing.T, f func(t *testing.T, side portingSide, i int, lock string)) {
	t.Helper()
	r.onEachSide(t, func(t *testing.T, side portingSide) {
		for i, idiom := range portingIdioms {
			if idiom.only != "" && (idiom.only == "Go") != side.isGo() {
				continue
			}
			t.Run(idiom.region, func(t *testing.T) {
				t.Parallel()
				f(t, side, i, "lock:order:"+strings.ReplaceAll(t.Name(), "/", ":"))
			})
		}
	})
}

// holdElsewhere makes another client's lock of key, as if it were held for a minute more.
func (r *portingRig) holdElsewhere(t *testing.T, key string) {
	t.Helper()
	_, err := r.rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.Del(t.Context(), key)
		p.HSet(t.Context(), key, portingOther, 1)
		p.PExpire(t.Context(), key, time.Minute)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// portingOther is the owner that holdElsewhere writes.
const portingOther = "00000000-0000-4000-8000-000000000000:1"

// expectElsewhere is that the key is as holdElsewhere left it.
func (r *portingRig) expectElsewhere(t *testing.T, key string) {
	t.Helper()
	if got := r.rdb.HGetAll(t.Context(), key).Val(); len(got) != 1 || got[portingOther] != "1" {
		t.Errorf("the lock of another owner is %v", got)
	}
	if ttl := r.rdb.PTTL(t.Context(), key).Val(); ttl > time.Minute || ttl < 20*time.Second {
		t.Errorf("the lock of another owner has a TTL of %v", ttl)
	}
}

// expectHeld is that the key is a lock of one owner with just that TTL, which
// excludes all sides.
func (r *portingRig) expectHeld(t *testing.T, key string, ttl time.Duration) {
	t.Helper()
	if got := r.rdb.Type(t.Context(), key).Val(); got != "hash" {
		t.Errorf("the key is of type %q", got)
	}
	if n := r.rdb.HLen(t.Context(), key).Val(); n != 1 {
		t.Errorf("the key has %d owners", n)
	}
	if got := r.rdb.PTTL(t.Context(), key).Val(); got > ttl || got < ttl*3/4 {
		t.Errorf("the TTL is %v, want %v", got, ttl)
	}
	for _, other := range r.sides {
		if got := other.start("plain", "try-now", key).outcomeIn(t); got != "busy" {
			t.Errorf("%s is told %q while the lock is held", other.name, got)
		}
	}
}

func (r *portingRig) expectFree(t *testing.T, key string) {
	t.Helper()
	if r.rdb.Exists(t.Context(), key).Val() != 0 {
		t.Errorf("the key is left: %v", r.rdb.HGetAll(t.Context(), key).Val())
	}
}

// waiters waits until n clients listen for the release of the key.
func (r *portingRig) waiters(t *testing.T, key string, n int64) {
	t.Helper()
	channel := portingChannel(key)
	portingUntil(t, "nobody waits", func() bool { return r.rdb.PubSubNumSub(t.Context(), channel).Val()[channel] >= n })
}

func portingChannel(key string) string { return "redisson_lock__channel:{" + key + "}" }

func portingUntil(t *testing.T, otherwise string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), portingPatience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("after %v %s", portingPatience, otherwise)
		}
	}
}

func portingEachIdiomHoldsTheSameLock(t *testing.T, r *portingRig) {
	r.onEachIdiom(t, func(t *testing.T, side portingSide, i int, lock string) {
		idiom := portingIdioms[i]
		call := side.start("plain", idiom.region, lock)
		defer call.end()
		given := call.insideIn(t)
		r.expectHeld(t, lock, idiom.ttl)
		holds := r.rdb.HVals(t.Context(), lock).Val()
		want := "1"
		if idiom.region == "reentry" {
			want = by(side, "2", "1") // Go counts in the process
		}
		if len(holds) != 1 || holds[0] != want {
			t.Errorf("the holds in Redis are %v, want %s", holds, want)
		}
		if idiom.region == "fenced" {
			if token := r.rdb.Get(t.Context(), "redisson_lock_token:{"+lock+"}").Val(); given != token || token == "" {
				t.Errorf("the job was given the token %q, and Redis has %q", given, token)
			}
		}
		call.end()
		if got := call.outcomeIn(t); got != "done" {
			t.Errorf("it ended with %q", got)
		}
		r.expectFree(t, lock)
	})
}

func portingEachIdiomWaitsAsLong(t *testing.T, r *portingRig) {
	r.onEachIdiom(t, func(t *testing.T, side portingSide, i int, lock string) {
		idiom := portingIdioms[i]
		r.holdElsewhere(t, lock)
		began := time.Now()
		call := side.start("plain", idiom.region, lock)
		defer call.end()
		if idiom.wait < 0 {
			r.waiters(t, lock, 1)
			r.rdb.Del(t.Context(), lock)
			r.rdb.Publish(t.Context(), portingChannel(lock), "0")
			call.insideIn(t)
			call.end()
			if got := call.outcomeIn(t); got != "done" {
				t.Errorf("it ended with %q", got)
			}
			return
		}
		if got := call.outcomeIn(t); got != "busy" {
			t.Errorf("it ended with %q", got)
		}
		late := 10 * time.Second // the JVM is still warming up
		if side.isGo() && idiom.wait == 0 {
			late = 900 * time.Millisecond
		}
		if took := time.Since(began); took < idiom.wait-10*time.Millisecond || took > idiom.wait+late {
			t.Errorf("it took %v, want %v", took, idiom.wait)
		}
		if len(call.inside) != 0 {
			t.Error("the job ran")
		}
		r.expectElsewhere(t, lock)
	})
}

func TestEveryRegionOfTheGuidesSourcesIsRun(t *testing.T) {
	for side, regions := range map[string][]portingRegion{"Go": portingGoRegions(t), "Kotlin": portingKotlinRegions(t)} {
		want := slices.Clone(portingQuestions)
		for _, idiom := range portingIdioms {
			if idiom.only == "" || idiom.only == side {
				want = append(want, idiom.region)
			}
		}
		var got []string
		for _, region := range regions {
			got = append(got, region.name)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s has the regions %q, and %q are run", side, got, want)
		}
	}
}
