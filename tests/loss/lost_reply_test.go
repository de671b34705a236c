package loss_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// eachLoss runs f in a bubble for each way to lose n answers to a command.
func eachLoss(t *testing.T, lost redistest.Match, f func(t *testing.T, l *lossTest)) {
	for name := range locktest.LossKinds(nil) {
		for _, n := range []int{1, 10} {
			t.Run(fmt.Sprint(name, " x", n), func(t *testing.T) {
				locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
					wire := redistest.NewWire()
					l := &lossTest{
						v: v, wire: wire, kind: name, n: n, lost: lost,
						release: make(chan struct{}),
						a:       locktest.WarmClient(t, v.Client(wire.Options())), b: locktest.WarmClient(t, v.Client()),
					}
					f(t, l)
				})
			})
		}
	}
}

// lossTest is one client behind a wire that loses answers, and another that
// works next to it.
type lossTest struct {
	v       *redistest.Virtual
	wire    *redistest.Wire
	kind    string
	n       int
	lost    redistest.Match
	release chan struct{} // runs what is held
	a, b    *watchlock.Client
	rule    *redistest.Rule
	others  *watchlock.Lease // b's, of another name, held all the time
	theirs  string
}

// begin loses the next n answers.
func (l *lossTest) begin(t *testing.T) {
	t.Helper()
	l.others = locktest.MustLock(t, locktest.NewTestMutex(l.b, "others"))
	l.theirs = locktest.FieldOf(t, l.v, "others")
	l.rule = l.wire.On(l.lost, locktest.LossKinds(l.release)[l.kind]).Times(l.n)
}

// unanswered reports whether the fault costs the caller an answer.
func (l *lossTest) unanswered() bool { return l.kind != "Twice" }

// finish gives the lock to B, lets what was held run, and fails if any of it
// touches what B has or leaves anything behind.
func (l *lossTest) finish(t *testing.T) {
	t.Helper()
	lease, err := locktest.NewTestMutex(l.b, "order").TryLock(context.Background(), locktest.WatchdogTimeoutByDefault+locktest.HandOverBound)
	if err != nil {
		t.Fatalf("B after one lease: %v", err)
	}
	owner := locktest.FieldOf(t, l.v, "order")
	close(l.release)
	time.Sleep(2*locktest.WatchdogTimeoutByDefault + time.Second)
	if got := locktest.FieldOf(t, l.v, "order"); got != owner || lease.Err() != nil {
		t.Errorf("B's lock became %q's, want %q; %v", got, owner, lease.Err())
	}
	if got := locktest.FieldOf(t, l.v, "others"); got != l.theirs || l.others.Err() != nil {
		t.Errorf("B's other lock became %q's, want %q; %v", got, l.theirs, l.others.Err())
	}
	locktest.MustUnlock(t, lease)
	locktest.MustUnlock(t, l.others)
	if l.rule.Hits() == 0 {
		t.Error("nothing was lost")
	}
	l.wire.Clear()
	time.Sleep(2 * time.Second)
	if l.v.Mini().Exists("order") {
		t.Error("something is left after B's unlock")
	}
	locktest.CheckNextEnters(t, locktest.NewTestMutex(l.a, "order"))
	locktest.CheckBubbleEmpty(t, l.v, l.a, l.b)
}

// lockCalls are the ways to take a lock.
var lockCalls = map[string]func(*watchlock.Mutex) (*watchlock.Lease, error){
	"Lock": func(m *watchlock.Mutex) (*watchlock.Lease, error) { return m.Lock(context.Background()) },
	"TryLock(wait)": func(m *watchlock.Mutex) (*watchlock.Lease, error) {
		return m.TryLock(context.Background(), 3*time.Second)
	},
	"TryLock(0)": func(m *watchlock.Mutex) (*watchlock.Lease, error) { return m.TryLock(context.Background(), 0) },
}

func TestVirtualLostAcquireRepliesEndInALeaseOrAClearError(t *testing.T) {
	for name, lock := range lockCalls {
		t.Run(name, func(t *testing.T) {
			eachLoss(t, locktest.Acquires(), func(t *testing.T, l *lossTest) {
				l.begin(t)
				start := time.Now()
				lease, err := lock(locktest.NewTestMutex(l.a, "order"))
				took := time.Since(start)
				quick := l.kind == "DropReply" || l.kind == "DropRequest" || l.kind == "Twice"
				switch {
				case name == "TryLock(0)" && l.unanswered():
					// One attempt, and nobody knows what came of it.
					if !watchlock.IsUnavailable(err) || errors.Is(err, watchlock.ErrNotAcquired) || took > locktest.OneAttempt {
						t.Fatalf("%v after %v, want an outage within %v", err, took, locktest.OneAttempt)
					}
				case name == "TryLock(wait)" && l.n == 10 && !quick:
					// Each answer that does not come takes a second: the wait ends first.
					if !watchlock.IsUnavailable(err) || errors.Is(err, watchlock.ErrNotAcquired) || took != 3*time.Second {
						t.Fatalf("%v after %v, want an outage after 3 s", err, took)
					}
				case err != nil:
					t.Fatalf("%v after %v", err, took)
				case l.n == 1 && quick && took > 10*time.Millisecond:
					t.Errorf("the second attempt succeeded after %v only", took)
				case l.n == 1 && took > locktest.OneAttempt+10*time.Millisecond:
					t.Errorf("the second attempt succeeded after %v only", took)
				case took > 12*time.Second:
					t.Errorf("the eleventh attempt succeeded after %v only", took)
				}
				if (lease == nil) != (err != nil) {
					t.Fatalf("lease %v, error %v", lease, err)
				}
				if lease != nil {
					if got := locktest.FieldOf(t, l.v, "order"); got != locktest.OwnerOf(lease) || lease.Err() != nil {
						t.Fatalf("the lock is %q's, %v", got, lease.Err())
					}
					time.Sleep(locktest.WatchdogTimeoutByDefault)
					if err := lease.Err(); err != nil {
						t.Errorf("one timeout later: %v", err)
					}
					locktest.MustUnlock(t, lease)
				}
				l.finish(t)
			})
		})
	}
}

func TestVirtualSecondAttemptTakesOverWhatTheFirstTook(t *testing.T) {
	for name, lock := range lockCalls {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				wire := redistest.NewWire()
				c := locktest.WarmClient(t, v.Client(wire.Options()))
				m := locktest.NewTestMutex(c, "order")
				wire.On(locktest.Acquires(), redistest.DropReply)
				// No release gets through: only the next attempt can put it right.
				stuck := wire.On(locktest.Releases(), redistest.DropRequest).Times(0)
				start := time.Now()
				lease, err := lock(m)
				if name == "TryLock(0)" {
					if !watchlock.IsUnavailable(err) {
						t.Fatalf("the first try: %v", err)
					}
					first := locktest.FieldOf(t, v, "order")
					if lease, err = lock(m); err == nil && first == locktest.FieldOf(t, v, "order") {
						t.Error("the second attempt has the owner of the first")
					}
				}
				if err != nil {
					t.Fatalf("the second attempt: %v", err)
				}
				if took := time.Since(start); took > 10*time.Millisecond {
					t.Errorf("it took %v", took)
				}
				if owner := locktest.FieldOf(t, v, "order"); owner != locktest.OwnerOf(lease) {
					t.Errorf("the lock is %q's, want %q's", owner, locktest.OwnerOf(lease))
				}
				if ttl := v.Mini().TTL("order"); ttl != locktest.WatchdogTimeoutByDefault {
					t.Errorf("TTL %v, want a whole one", ttl)
				}
				time.Sleep(2 * time.Second)
				if stuck.Hits() == 0 {
					t.Error("no release was kept back")
				}
				wire.Clear()
				time.Sleep(2 * locktest.WatchdogTimeoutByDefault)
				if err := lease.Err(); err != nil {
					t.Errorf("the lease: %v", err)
				}
				locktest.MustUnlock(t, lease)
				locktest.CheckNextEnters(t, m)
				locktest.CheckBubbleEmpty(t, v, c)
			})
		})
	}
}

func TestVirtualLostRenewalRepliesCostNoLease(t *testing.T) {
	eachLoss(t, locktest.Renews(), func(t *testing.T, l *lossTest) {
		l.begin(t)
		lease := locktest.MustLock(t, locktest.NewTestMutex(l.a, "order"))
		owner := locktest.FieldOf(t, l.v, "order")
		start := time.Now()
		time.Sleep(11 * time.Second) // a renewal is lost
		if l.unanswered() && l.n == 10 {
			// Trust is not moved by renewals that nobody confirmed.
			if until := lease.ExpiresAt().Sub(start); until != 30*time.Second-350*time.Millisecond {
				t.Errorf("trusted until %v after the start", until)
			}
		}
		time.Sleep(3 * locktest.WatchdogTimeoutByDefault)
		if err := lease.Err(); err != nil || locktest.FieldOf(t, l.v, "order") != owner {
			t.Fatalf("after three timeouts: %v, the lock is %q's", err, locktest.FieldOf(t, l.v, "order"))
		}
		locktest.MustUnlock(t, lease)
		l.finish(t)
	})
}

func TestVirtualLostRenewalRepliesUntilTrustEndsAreALoss(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		wire := redistest.NewWire()
		a, b := locktest.WarmClient(t, v.Client(wire.Options())), locktest.WarmClient(t, v.Client())
		lost := wire.On(locktest.Renews(), redistest.DropReply).Times(0)
		lease := locktest.MustLock(t, locktest.NewTestMutex(a, "order"))
		start := time.Now()
		<-lease.Done()
		if told, want := time.Since(start), 30*time.Second-350*time.Millisecond; told != want {
			t.Errorf("told after %v, want %v", told, want)
		}
		if lost.Hits() < 10 {
			t.Errorf("%d renewals were tried", lost.Hits())
		}
		locktest.MustErr(t, "the lease", lease.Err(), watchlock.ErrLost)
		// Redis has it still, renewed by what was not answered: Unlock frees it.
		locktest.MustErr(t, "Unlock", lease.Unlock(context.Background()), watchlock.ErrLost)
		locktest.CheckNextEnters(t, locktest.NewTestMutex(b, "order"))
		locktest.CheckBubbleEmpty(t, v, a, b)
	})
}

func TestVirtualLostReleaseRepliesEndInNilOrAClearError(t *testing.T) {
	eachLoss(t, locktest.Releases(), func(t *testing.T, l *lossTest) {
		l.begin(t)
		lease := locktest.MustLock(t, locktest.NewTestMutex(l.a, "order"))
		start := time.Now()
		err := lease.Unlock(context.Background())
		took := time.Since(start)
		if took > locktest.UnlockTimeoutByDefault {
			t.Errorf("Unlock took %v", took)
		}
		switch {
		case err == nil && l.n == 10 && l.unanswered():
			t.Error("Unlock says nil, and no answer ever came")
		case err != nil && l.n == 1:
			t.Errorf("Unlock: %v, want nil from the release that was sent again", err)
		case err != nil && (!watchlock.IsUnavailable(err) || errors.Is(err, watchlock.ErrLost)):
			t.Errorf("Unlock: %v, want an outage", err)
		}
		locktest.MustErr(t, "Unlock again", lease.Unlock(context.Background()), watchlock.ErrNotHeld)
		l.finish(t)
	})
}

func TestVirtualReleaseSentWhileTrustedCoversItsRetry(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		wire := redistest.NewWire()
		a, b := locktest.WarmClient(t, v.Client(wire.Options())), locktest.WarmClient(t, v.Client())
		lease := locktest.MustLock(t, locktest.NewTestMutex(a, "order"), watchlock.WithLeaseTime(time.Second))
		time.Sleep(900 * time.Millisecond)
		// The first release goes at 0.9 s of a trust of 0.979 s; its answer is
		// lost, and the next is sent when the lease is over.
		wire.On(locktest.Releases(), redistest.Swallow)
		next := locktest.GoLock(func() (*watchlock.Lease, error) { return locktest.NewTestMutex(b, "order").Lock(context.Background()) })
		if err := lease.Unlock(context.Background()); err != nil {
			t.Errorf("Unlock: %v, want nil: the work was covered", err)
		}
		next.Wait(t)
		if next.Err != nil || next.Lease.Err() != nil {
			t.Fatalf("the next holder: %v", next.Err)
		}
		if owner := locktest.FieldOf(t, v, "order"); owner != locktest.OwnerOf(next.Lease) {
			t.Errorf("the lock is %q's", owner)
		}
		locktest.MustUnlock(t, next.Lease)
		locktest.CheckBubbleEmpty(t, v, a, b)
	})
}

func TestVirtualReleaseThatNeverLeftInTimeCoversNothing(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		wire := redistest.NewWire()
		a, b := locktest.WarmClient(t, v.Client(wire.Options())), locktest.WarmClient(t, v.Client())
		lease := locktest.MustLock(t, locktest.NewTestMutex(a, "order"), watchlock.WithLeaseTime(time.Second))
		start := time.Now()
		wire.Refuse(true) // nothing leaves until the lease is over
		wire.Cut()
		// A connection that looks alive would leave the outcome unknown.
		for range 2 {
			if _, err := locktest.NewTestMutex(a, "order").Info(context.Background()); !watchlock.IsUnavailable(err) {
				t.Fatalf("Info in an outage: %v", err)
			}
		}
		time.Sleep(900*time.Millisecond - time.Since(start))
		time.AfterFunc(500*time.Millisecond, func() { wire.Refuse(false) })
		next := locktest.GoLock(func() (*watchlock.Lease, error) { return locktest.NewTestMutex(b, "order").Lock(context.Background()) })
		err := lease.Unlock(context.Background())
		locktest.MustErr(t, "Unlock", err, watchlock.ErrLost)
		next.Wait(t)
		if next.Err != nil || next.Lease.Err() != nil {
			t.Fatalf("the next holder: %v", next.Err)
		}
		locktest.MustUnlock(t, next.Lease)
		locktest.CheckBubbleEmpty(t, v, a, b)
	})
}

func TestVirtualLateAcquireMeetsItsOrphan(t *testing.T) {
	var met int // late acquires that took the lock, and were removed again
	for _, lease := range []time.Duration{2 * time.Second, locktest.WatchdogTimeoutByDefault} {
		for _, other := range []bool{false, true} {
			t.Run(fmt.Sprint(lease, " somebody else holds: ", other), func(t *testing.T) {
				locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
					wire := redistest.NewWire()
					a, b := locktest.WarmClient(t, v.Client(wire.Options())), locktest.WarmClient(t, v.Client())
					release := make(chan struct{})
					held := wire.On(locktest.Acquires(), redistest.HoldRequest(release))
					m := locktest.NewTestMutex(a, "order", watchlock.WithLeaseTime(lease))
					start := time.Now()
					l := locktest.MustLock(t, m)
					if took := time.Since(start); took > locktest.OneAttempt+10*time.Millisecond {
						t.Errorf("the second attempt succeeded after %v", took)
					}
					first := locktest.OwnerIn(wire.Seen()[firstRun(wire, locktest.Acquires())], a)
					if first == locktest.OwnerOf(l) {
						t.Fatal("two attempts share an owner")
					}
					locktest.MustUnlock(t, l)
					time.Sleep(2 * lease)
					var theirs *watchlock.Lease
					if other {
						theirs = locktest.MustLock(t, locktest.NewTestMutex(b, "order"))
					}

					close(release) // now the first attempt's bytes arrive
					time.Sleep(time.Microsecond)
					switch owner := locktest.FieldOf(t, v, "order"); {
					case owner == first && !other:
						met++
						if list := a.Held(); len(list) != 0 {
							t.Errorf("the late grant is believed: %v", list)
						}
					case other && owner == locktest.OwnerOf(theirs):
					default:
						t.Errorf("the lock is %q's after the bytes arrived", owner)
					}
					time.Sleep(2 * time.Second)
					if !other && v.Mini().Exists("order") {
						t.Errorf("the key is there %v, 2 s after the bytes arrived", v.Mini().TTL("order"))
					}
					if other {
						if err := theirs.Err(); err != nil || locktest.FieldOf(t, v, "order") != locktest.OwnerOf(theirs) {
							t.Errorf("the other holder was touched: %v", err)
						}
						locktest.MustUnlock(t, theirs)
					}
					if held.Hits() != 1 {
						t.Errorf("%d requests held", held.Hits())
					}
					locktest.CheckNextEnters(t, locktest.NewTestMutex(b, "order"))
					locktest.CheckBubbleEmpty(t, v, a, b)
				})
			})
		}
	}
	if met == 0 {
		t.Error("no late acquire met its orphan")
	}
}

// firstRun is the index of the first run of a script that the wire has seen.
func firstRun(wire *redistest.Wire, match redistest.Match) int {
	for i, c := range wire.Seen() {
		if match(c) {
			return i
		}
	}
	return -1
}

func TestVirtualLateReleaseAndRenewalTouchNobody(t *testing.T) {
	for name, match := range map[string]redistest.Match{"release": locktest.Releases(), "renewal": locktest.Renews()} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				wire := redistest.NewWire()
				a, b := locktest.WarmClient(t, v.Client(wire.Options())), locktest.WarmClient(t, v.Client())
				release := make(chan struct{})
				held := wire.On(match, redistest.HoldRequest(release))
				lease := locktest.MustLock(t, locktest.NewTestMutex(a, "order"))
				time.Sleep(15 * time.Second)
				locktest.MustUnlock(t, lease)
				theirs := locktest.MustLock(t, locktest.NewTestMutex(b, "order"), watchlock.WithLeaseTime(10*time.Second))
				time.Sleep(time.Second)
				close(release)
				time.Sleep(time.Second)
				if owner := locktest.FieldOf(t, v, "order"); owner != locktest.OwnerOf(theirs) {
					t.Errorf("the lock is %q's", owner)
				}
				if ttl := v.Mini().TTL("order"); ttl != 8*time.Second {
					t.Errorf("TTL %v, want the 8 s that were left", ttl)
				}
				if held.Hits() != 1 {
					t.Errorf("%d requests held", held.Hits())
				}
				locktest.MustUnlock(t, theirs)
				locktest.CheckBubbleEmpty(t, v, a, b)
			})
		})
	}
}

func TestVirtualCloseDuringACallEndsItAtOnceAndLeavesNoKey(t *testing.T) {
	for name, fault := range map[string]redistest.Action{
		"granted":          nil,
		"reply swallowed":  redistest.Swallow,
		"reply dropped":    redistest.DropReply,
		"request was lost": redistest.LoseRequest,
	} {
		for _, canLeave := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, a context that can end: %v", name, canLeave), func(t *testing.T) {
				locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
					wire := redistest.NewWire()
					a, b := locktest.WarmClient(t, v.Client(wire.Options())), locktest.WarmClient(t, v.Client())
					ended := make(chan struct{})
					var closed time.Time
					shut := redistest.CallReply(func() {
						closed = time.Now()
						go func() {
							defer close(ended)
							if err := a.Close(); err != nil {
								t.Errorf("Close: %v", err)
							}
						}()
						time.Sleep(time.Millisecond) // Close is under way before the reply is read
					})
					if name == "request was lost" {
						shut = redistest.Call(func() {
							closed = time.Now()
							go func() {
								defer close(ended)
								_ = a.Close()
							}()
						})
					}
					if fault != nil {
						shut = redistest.All(shut, fault)
					}
					wire.On(locktest.Acquires(), shut)
					// A call that nothing else can end makes its first attempt itself, and
					// has to end that first.
					ctx, late := context.Background(), locktest.OneAttempt
					if canLeave {
						var cancel context.CancelFunc
						ctx, cancel = context.WithCancel(ctx)
						defer cancel()
						late = 0
					}
					l, err := locktest.NewTestMutex(a, "order").Lock(ctx)
					locktest.MustErr(t, "Lock", err, watchlock.ErrClosed)
					if took := time.Since(closed); l != nil || took > late {
						t.Errorf("lease %v, %v after Close", l, took)
					}
					<-ended
					if took := time.Since(closed); took > 2*locktest.UnlockTimeoutByDefault {
						t.Errorf("Close took %v", took)
					}
					if v.Mini().Exists("order") {
						t.Error("Close left a key that nobody holds")
					}
					locktest.CheckNextEnters(t, locktest.NewTestMutex(b, "order"))
					locktest.CheckBubbleEmpty(t, v, a, b)
				})
			})
		}
	}
}
