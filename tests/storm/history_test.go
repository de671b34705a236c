package storm_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// The model of one lock: who holds it, and the largest token given out. Each hold
// is an owner of its own, so time is not in the model: an instant at which a
// holder was told that it may trust its lease is a step that needs it to be the
// owner, and the end of a lease is a step somewhere after the last such instant
// and before the holder was told.
type (
	lockState struct {
		owner int64 // 0: nobody that believes so
		high  int64 // token
	}
	lockStep struct {
		name   string
		what   stepKind
		owner  int64
		token  int64 // of a fenced hold, else 0
		strict bool  // the lock is held by nobody but by those of the model
	}
	stepKind string
)

const (
	stepTaken   stepKind = "taken"
	stepRefused stepKind = "refused"
	stepTrusted stepKind = "trusted"
	stepEnded   stepKind = "ended" // unlocked, or lost
)

var lockModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		names := map[string]int{}
		var parts [][]porcupine.Operation
		for _, op := range history {
			name := op.Input.(lockStep).name
			i, ok := names[name]
			if !ok {
				i = len(parts)
				names[name] = i
				parts = append(parts, nil)
			}
			parts[i] = append(parts[i], op)
		}
		return parts
	},
	Init: func() any { return lockState{} },
	Step: func(state, input, _ any) (bool, any) {
		s, in := state.(lockState), input.(lockStep)
		switch in.what {
		case stepTaken:
			ok := s.owner == 0 && (in.token == 0 || in.token > s.high)
			return ok, lockState{in.owner, max(s.high, in.token)}
		case stepRefused:
			return s.owner != 0 || !in.strict, s
		case stepTrusted:
			return s.owner == in.owner, s
		}
		return s.owner == in.owner, lockState{0, s.high}
	},
	DescribeOperation: func(input, _ any) string {
		in := input.(lockStep)
		return fmt.Sprintf("%s %s by %d token %d", in.name, in.what, in.owner, in.token)
	},
}

// history records steps.
type history struct {
	start  time.Time
	owners atomic.Int64

	mu  sync.Mutex
	ops []porcupine.Operation
}

func (h *history) now() int64 { return int64(time.Since(h.start)) }

func (h *history) add(goroutine int, in lockStep, from, to int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: goroutine, Input: in, Call: from, Return: to})
}

// check fails unless some order of the steps, each within its time, fits the
// model.
func (h *history) check(t testing.TB) {
	t.Helper()
	result, info := porcupine.CheckOperationsVerbose(lockModel, h.ops, 2*time.Minute)
	if result == porcupine.Ok {
		return
	}
	t.Errorf("the history of %d steps is %v", len(h.ops), result)
	if f := info.PartialLinearizations(); len(f) > 0 {
		t.Logf("partial linearizations of %d names", len(f))
	}
}

// historyRun is what goroutines of some clients do.
type historyRun struct {
	h       *history
	faults  bool
	unlocks atomic.Int64
	lost    atomic.Int64
	refused atomic.Int64
	failed  atomic.Int64
}

// historyLock is a lock whose tokens are looked at when it is fenced.
func historyLock(c *watchlock.Client, name string, n int) locktest.LockOfKind {
	kind := [...]string{"mutex", "fenced", "setnx", "either"}[n]
	if kind == "either" { // two kinds of one wire form
		kind = [...]string{"mutex", "fenced"}[rand.N(2)]
	}
	return locktest.LockNamed(c, kind, name)
}

// turn is one attempt to take a lock, and what follows.
func (r *historyRun) turn(t testing.TB, goroutine int, c *watchlock.Client, round int) {
	n := []int{0, 0, 1, 1, 1, 1, 2, 3}[rand.N(8)]
	name := fmt.Sprintf("lock-%d-%d", n, round)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var opts []watchlock.LockOption
	section := time.Duration(0)
	if rand.N(20) == 0 {
		section = rand.N(3 * time.Millisecond)
	}
	if r.faults && rand.N(20) == 0 {
		opts = []watchlock.LockOption{watchlock.WithLeaseTime(30 * time.Millisecond)}
		section = rand.N(60 * time.Millisecond) // it may outlive its lease
	}
	lock := historyLock(c, name, n)
	from := r.h.now()
	var l *watchlock.Lease
	var err error
	if once := rand.N(10) == 0; once {
		l, err = tryOf(c, name, n)(ctx)
	} else {
		l, err = lock(ctx, opts...)
	}
	taken := r.h.now()
	switch {
	case errors.Is(err, watchlock.ErrNotAcquired):
		r.refused.Add(1)
		r.h.add(goroutine, lockStep{name: name, what: stepRefused, strict: !r.faults}, from, taken)
		return
	case err != nil:
		r.failed.Add(1)
		if !r.faults {
			t.Errorf("Lock: %v", err)
		}
		return
	}
	step := lockStep{name: name, what: stepTaken, owner: r.h.owners.Add(1), token: locktest.TokenOf(l)}
	r.h.add(goroutine, step, from, taken)
	r.hold(t, goroutine, l, step, taken, section)
}

// hold is one section, and its end.
func (r *historyRun) hold(t testing.TB, goroutine int, l *watchlock.Lease, step lockStep, trusted int64, section time.Duration) {
	for range 2 {
		from := r.h.now()
		err := l.Err()
		to := r.h.now()
		if err != nil {
			r.lost.Add(1)
			step.what = stepEnded
			r.h.add(goroutine, step, trusted, to)
			_ = l.Unlock(context.Background()) // the rest of what is left
			return
		}
		step.what = stepTrusted
		r.h.add(goroutine, step, from, to)
		trusted = from
		if section > 0 {
			<-time.After(section / 2)
		}
	}
	from := r.h.now()
	err := l.Unlock(context.Background())
	step.what = stepEnded
	switch {
	case err == nil:
		r.unlocks.Add(1)
	case errors.Is(err, watchlock.ErrLost):
		r.lost.Add(1)
		from = trusted
	case !r.faults:
		t.Errorf("Unlock: %v", err)
	}
	r.h.add(goroutine, step, from, r.h.now())
}

// tryOf is one attempt at a lock.
func tryOf(c *watchlock.Client, name string, n int) locktest.LockOfKind {
	return func(ctx context.Context, opts ...watchlock.LockOption) (*watchlock.Lease, error) {
		switch {
		case n == 2:
			return c.NewSetNXMutex(name).TryLock(ctx, 0, opts...)
		case n == 1, n == 3 && rand.N(2) == 0:
			l, err := c.NewFencedMutex(name).TryLock(ctx, 0, opts...)
			return locktest.LeaseOf(l), err
		}
		return c.NewMutex(name).TryLock(ctx, 0, opts...)
	}
}

// faulty makes a wire lose, delay and cut now and then.
func faulty(w *redistest.Wire) *redistest.Wire {
	sometimes := func(n int) redistest.Match {
		return func(c redistest.Command) bool {
			switch c.Name {
			case "EVALSHA", "EVAL", "SET", "DELEX", "GET":
				return rand.N(n) == 0
			}
			return false
		}
	}
	w.On(sometimes(150), redistest.DropReply).Times(0)
	w.On(sometimes(150), redistest.DropRequest).Times(0)
	w.On(sometimes(100), redistest.Delay(2*time.Millisecond)).Times(0)
	w.On(sometimes(100), redistest.DelayReply(3*time.Millisecond)).Times(0)
	return w
}

// blackouts cuts a client off for longer than its trust lasts, now and then.
func blackouts(w *redistest.Wire, stop <-chan struct{}) {
	for {
		for _, off := range []bool{true, false} {
			select {
			case <-stop:
				return
			case <-time.After(400*time.Millisecond + rand.N(200*time.Millisecond)):
			}
			w.Refuse(off)
			if off {
				w.Cut()
			}
		}
	}
}

// runHistory has clients take turns until there are steps enough, in rounds of a
// few hundred under names of their own, and checks each.
func runHistory(t *testing.T, s *redistest.Server, clients, steps int, faults bool, window time.Duration) {
	const everybody, roundSteps = 30, 1500
	run := &historyRun{faults: faults}
	opts := []watchlock.Option{watchlock.WithLocalHandoff(window)}
	if faults {
		opts = append(opts, watchlock.WithWatchdogTimeout(300*time.Millisecond), watchlock.WithUnlockTimeout(500*time.Millisecond))
	}
	stop := make(chan struct{})
	var background sync.WaitGroup
	cs := make([]*watchlock.Client, clients)
	for i := range cs {
		w := redistest.NewWire()
		cs[i] = locktest.NewTestClient(t, s.Client(w.Options()), opts...)
		if faults {
			faulty(w)
			background.Go(func() { blackouts(w, stop); w.Refuse(false); w.Clear() })
		}
	}
	total := 0
	for round := 0; total < steps && !t.Failed(); round++ {
		h := &history{start: time.Now()}
		run.h = h
		var all sync.WaitGroup
		for i := range everybody {
			all.Go(func() {
				for {
					h.mu.Lock()
					done := len(h.ops) >= roundSteps
					h.mu.Unlock()
					if done || time.Since(h.start) > time.Minute {
						return
					}
					run.turn(t, i, cs[i%clients], round)
				}
			})
		}
		all.Wait()
		h.check(t)
		total += len(h.ops)
	}
	close(stop)
	background.Wait()
	calls := s.CommandCalls()
	grants := calls["hset"] + calls["set"]
	t.Logf("%d steps: %d unlocked, %d lost, %d refused, %d failed, about %d grants in Redis",
		total, run.unlocks.Load(), run.lost.Load(), run.refused.Load(), run.failed.Load(), grants)
	if run.unlocks.Load() == 0 || run.refused.Load() == 0 || faults && run.lost.Load() == 0 {
		t.Error("what the history is to show did not happen")
	}
	// A message tells of a release, and none of a relay.
	if relayed := calls["hset"] - calls["publish"]; clients == 1 && relayed < calls["hset"]/10 {
		t.Errorf("%d of %d grants were relayed", relayed, calls["hset"])
	}
}

func TestHistoriesAreLinearisable(t *testing.T) {
	for name, c := range map[string]struct {
		faults  bool
		window  time.Duration
		clients int
		steps   int
	}{
		"passing":                 {false, locktest.WindowByDefault, 3, 100_000},
		"passing, with faults":    {true, locktest.WindowByDefault, 3, 100_000},
		"relaying":                {false, 200 * time.Microsecond, 1, 50_000},
		"relaying, with faults":   {true, 200 * time.Microsecond, 1, 50_000},
		"a wide window, faults":   {true, 200 * time.Millisecond, 3, 40_000},
		"not passing":             {false, 0, 3, 20_000},
		"not passing, with fault": {true, 0, 3, 20_000},
	} {
		t.Run(name, func(t *testing.T) {
			runHistory(t, redistest.Start(t), c.clients, locktest.FullCount(c.steps), c.faults, c.window)
		})
	}
}

func TestTheModelOfHistoriesRefusesWhatMustNotHappen(t *testing.T) {
	step := func(what stepKind, owner, token int64, from, to int64) porcupine.Operation {
		return porcupine.Operation{Input: lockStep{name: "k", what: what, owner: owner, token: token, strict: true}, Call: from, Return: to}
	}
	for name, c := range map[string]struct {
		fits    bool
		history []porcupine.Operation
	}{
		"one after the other":   {true, []porcupine.Operation{step(stepTaken, 1, 5, 0, 1), step(stepEnded, 1, 5, 2, 5), step(stepTaken, 2, 6, 3, 4)}},
		"two at once":           {false, []porcupine.Operation{step(stepTaken, 1, 0, 0, 1), step(stepTaken, 2, 0, 2, 3), step(stepEnded, 1, 0, 4, 5)}},
		"trusted after another": {false, []porcupine.Operation{step(stepTaken, 1, 0, 0, 1), step(stepEnded, 1, 0, 2, 9), step(stepTaken, 2, 0, 3, 4), step(stepTrusted, 1, 0, 5, 6)}},
		"lost in time":          {true, []porcupine.Operation{step(stepTaken, 1, 0, 0, 1), step(stepTrusted, 1, 0, 2, 3), step(stepEnded, 1, 0, 2, 9), step(stepTaken, 2, 0, 4, 5)}},
		"a token twice":         {false, []porcupine.Operation{step(stepTaken, 1, 5, 0, 1), step(stepEnded, 1, 5, 2, 3), step(stepTaken, 2, 5, 4, 5)}},
		"a token that falls":    {false, []porcupine.Operation{step(stepTaken, 1, 5, 0, 1), step(stepEnded, 1, 5, 2, 3), step(stepTaken, 2, 4, 4, 5)}},
		"refused while free":    {false, []porcupine.Operation{step(stepRefused, 0, 0, 0, 1)}},
		"refused while held":    {true, []porcupine.Operation{step(stepTaken, 1, 0, 0, 1), step(stepRefused, 0, 0, 2, 3)}},
	} {
		if got := porcupine.CheckOperations(lockModel, c.history); got != c.fits {
			t.Errorf("%s: fits %v, want %v", name, got, c.fits)
		}
	}
}
