package loss_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// virtualLoss is one seeded way to lose a lease.
type virtualLoss struct {
	rng      *rand.Rand
	watchdog time.Duration
	lease    time.Duration // of the first handle; 0 renewed
	inner    time.Duration // of a second handle on it; below 0 none
	maxHold  time.Duration
	grant    time.Duration // how late the reply of the acquire is
	moment   time.Duration // when the fault begins
	fault    string
}

func newVirtualLoss(seed uint64) *virtualLoss {
	rng := rand.New(rand.NewPCG(seed, 7))
	s := &virtualLoss{rng: rng, inner: -1}
	s.watchdog = []time.Duration{300 * time.Millisecond, 777 * time.Millisecond, 4 * time.Second, 10 * time.Second, 30 * time.Second}[rng.IntN(5)]
	ttl := s.watchdog
	if rng.IntN(3) == 0 {
		s.lease = time.Duration(10+rng.IntN(20_000)) * time.Millisecond
		ttl = s.lease
	}
	switch rng.IntN(4) {
	case 0:
		s.inner = 0
	case 1:
		s.inner = time.Duration(10+rng.IntN(15_000)) * time.Millisecond
	}
	if rng.IntN(4) == 0 {
		s.maxHold = ttl + time.Duration(rng.Int64N(int64(3*s.watchdog)/1e6))*time.Millisecond
	}
	s.grant = s.random(min(ttl/3, 900*time.Millisecond))
	s.moment = s.random(ttl + s.watchdog)
	s.fault = []string{"freeze", "cut", "requests lost", "replies lost", "replies late", "requests late", "cut and frozen"}[rng.IntN(7)]
	return s
}

func (s *virtualLoss) random(below time.Duration) time.Duration {
	return time.Duration(s.rng.Int64N(int64(max(below, 1))))
}

// strike begins the fault, which does not end.
func (s *virtualLoss) strike(v *redistest.Virtual, w *redistest.Wire) {
	switch s.fault {
	case "freeze":
		v.Freeze()
	case "cut":
		w.Refuse(true)
		w.Cut()
	case "requests lost":
		w.On(redistest.Any, redistest.LoseRequest).Times(0)
	case "replies lost":
		w.On(redistest.Any, redistest.Swallow).Times(0)
	case "replies late":
		w.On(redistest.Any, redistest.DelayReply(s.watchdog/6+time.Millisecond+s.random(2*s.watchdog))).Times(0)
	case "requests late":
		w.On(redistest.Any, redistest.Delay(s.watchdog/6+time.Millisecond+s.random(2*s.watchdog))).Times(0)
	case "cut and frozen":
		v.Freeze()
		w.Cut()
	}
}

// virtualTold is one handle of the loser, and when it was told.
type virtualTold struct {
	lease *watchlock.Lease
	at    chan time.Time
}

// virtualTell has the handle's end noticed at its instant: then the key must be
// its owner's still, so that nobody else can have been granted it.
func virtualTell(t *testing.T, v *redistest.Virtual, l *watchlock.Lease) virtualTold {
	told := virtualTold{l, make(chan time.Time, 1)}
	ctx, done, owner := l.Context(context.Background()), l.Done(), locktest.OwnerOf(l)
	go func() {
		<-ctx.Done()
		at := time.Now()
		if locktest.FieldOf(t, v, "job") != owner || v.Mini().TTL("job") <= 0 {
			t.Errorf("told at %v, when the key was no longer its owner's", at)
		}
		locktest.VirtualWantErr(t, "Err when told", l.Err(), []error{watchlock.ErrLost})
		locktest.VirtualWantErr(t, "cause when told", context.Cause(ctx), []error{watchlock.ErrLost})
		<-done
		if late := time.Since(at); late > 0 {
			t.Errorf("Done was closed %v after the context was cancelled", late)
		}
		told.at <- at
	}()
	return told
}

// TestVirtualLossIsToldBeforeAnybodyElseCanBeGranted lets another client, whose
// connections work, wait for the lock, and looks at the loser at the instant of
// the grant. In a freeze nobody can be granted, but the key runs out all the
// same: each handle has to be told while it is there.
func TestVirtualLossIsToldBeforeAnybodyElseCanBeGranted(t *testing.T) {
	losses, granted := locktest.FullCount(10_000), 0
	byFault := map[string]int{}
	for seed := range uint64(losses) {
		s := newVirtualLoss(seed)
		ok := t.Run("", func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				if virtualLose(t, v, s) {
					granted++
				}
			})
		})
		if !ok {
			t.Fatalf("seed %d: %+v", seed, *s)
		}
		byFault[s.fault]++
	}
	if granted == 0 || len(byFault) < 7 && losses >= 100 {
		t.Errorf("of %d losses, %d had a rival who was granted; %v", losses, granted, byFault)
	}
	t.Logf("%d losses, %d with a rival who was granted; %v", losses, granted, byFault)
}

// virtualLose plays one loss and reports whether the rival was granted.
func virtualLose(t *testing.T, v *redistest.Virtual, s *virtualLoss) (granted bool) {
	c, w := locktest.VirtualWired(t, v, watchlock.WithWatchdogTimeout(s.watchdog))
	rival := locktest.NewTestClient(t, v.Client())
	if s.grant > 0 {
		w.On(locktest.Acquires(), redistest.DelayReply(s.grant))
	}
	opts := []watchlock.LockOption{watchlock.WithWatchdog()}
	if s.lease > 0 {
		opts = []watchlock.LockOption{watchlock.WithLeaseTime(s.lease)}
	}
	if s.maxHold > 0 {
		opts = append(opts, watchlock.WithMaxHold(s.maxHold))
	}
	m := locktest.NewTestMutex(c, "job")
	start := time.Now()
	l := locktest.MustLock(t, m, opts...)
	told := []virtualTold{virtualTell(t, v, l)}
	if s.inner >= 0 {
		opt := watchlock.WithWatchdog()
		if s.inner > 0 {
			opt = watchlock.WithLeaseTime(s.inner)
		}
		inner, err := m.TryLock(l.Context(context.Background()), 0, opt)
		if err != nil {
			t.Fatalf("re-entry: %v", err)
		}
		told = append(told, virtualTell(t, v, inner))
	}
	waiting, stop := context.WithCancel(context.Background())
	won := make(chan *watchlock.Lease, 1)
	go func() {
		lease, _ := locktest.NewTestMutex(rival, "job").Lock(waiting)
		won <- lease
	}()
	strike := time.AfterFunc(s.moment, func() { s.strike(v, w) })
	if s.fault != "freeze" && s.fault != "cut and frozen" {
		lease := <-won
		granted = true
		for _, h := range told {
			locktest.VirtualWantErr(t, "Err when a rival is granted", h.lease.Err(), []error{watchlock.ErrLost})
		}
		won <- lease
	}
	for _, h := range told {
		at := <-h.at
		if err := h.lease.Err(); err == nil {
			t.Errorf("told at %v and alive after it", at.Sub(start))
		}
	}
	strike.Stop()
	w.Clear()
	w.Refuse(false)
	w.Cut()
	v.Thaw()
	stop()
	if lease := <-won; lease != nil {
		locktest.MustUnlock(t, lease)
	}
	// go-redis tries once a second to dial again after a refusal: let it.
	time.Sleep(1100 * time.Millisecond)
	return granted
}
