package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"time"
)

// tour runs all scenarios of a plan on one server.
type tour struct {
	plan     plan
	srv      *server
	jvms     jvms
	progress io.Writer
	began    time.Time
	trials   int
}

// measure runs the plan, and writes what there is after each scenario.
func measure(ctx context.Context, p plan, command string, progress io.Writer) (*account, error) {
	srv, err := startServer(ctx)
	if err != nil {
		return nil, err
	}
	defer srv.stop()
	t := &tour{plan: p, srv: srv, progress: progress, began: time.Now()}
	defer t.jvms.stop()
	a, err := newAccount(p, srv, command)
	if err != nil {
		return nil, err
	}
	for _, s := range scenarios(p) {
		contenders := s.contenders(p)
		if !p.only.MatchString(s.id) || len(contenders) == 0 {
			continue
		}
		r, err := t.scenario(s, contenders)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.id, err)
		}
		a.Scenarios = append(a.Scenarios, r)
		if err := a.write(p.out); err != nil {
			return nil, err
		}
	}
	if len(a.Scenarios) == 0 {
		return nil, errors.New("no scenario or no client matches")
	}
	return a, nil
}

// drawn is the order of n contenders in a round. It is another in each, the same
// in each run: in one order that only begins elsewhere each time, two contenders
// of the same code differed by a seventh, for what went before one of them always
// went before it.
func drawn(round, n int) []int { return rand.New(rand.NewPCG(uint64(n), uint64(round))).Perm(n) }

// scenario measures round by round, contender by contender.
func (t *tour) scenario(s scenario, contenders []adapter) (*result, error) {
	r := &result{ID: s.id, Title: s.title, About: s.about, Main: s.main, Base: s.base}
	for _, a := range contenders {
		r.Contenders = append(r.Contenders, &entry{Name: a.name})
	}
	rounds := t.plan.rounds * max(1, s.times)
	if t.plan.smoke {
		rounds = 1
	}
	for round := range rounds {
		_, _ = fmt.Fprintf(t.progress, "%v  %s  round %d/%d\n", time.Since(t.began).Truncate(time.Second), s.title, round+1, rounds)
		for _, k := range drawn(round, len(contenders)) {
			if err := t.turn(s, contenders[k], r.Contenders[k]); err != nil {
				return nil, err
			}
		}
	}
	r.conclude()
	return r, nil
}

// turn is one contender's turn. Its failure is a result, which may come beside
// figures; the server's is not.
func (t *tour) turn(s scenario, a adapter, e *entry) error {
	if err := t.srv.admin.FlushAll(context.Background()).Err(); err != nil {
		return err
	}
	runtime.GC() // nobody's garbage is another's
	t.trials++
	f, err := s.measure(trial{t.srv, a, t.plan, fmt.Sprintf("bench:%s:%d", s.id, t.trials), &t.jvms})
	e.Rounds = append(e.Rounds, f)
	if err != nil {
		text, _, _ := strings.Cut(err.Error(), "\n")
		_, _ = fmt.Fprintf(t.progress, "%s: %s: %s\n", s.title, a.name, text)
		e.Failures = append(e.Failures, text)
		var broken *brokenError
		e.Broken = e.Broken || errors.As(err, &broken)
	}
	return nil
}
