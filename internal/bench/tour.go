package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
)

// tour runs all scenarios of a plan on one server.
type tour struct {
	plan     plan
	srv      *server
	progress *progress
	keep     func([]*result) error // called after each scenario, with all there is
	trials   int
}

// run measures scenario by scenario, round by round, contender by contender.
func (t *tour) run() ([]*result, error) {
	list, with := t.plan.scenarios(), t.plan.adapters()
	total := 0
	for _, s := range list {
		contenders, _ := s.contenders(with)
		total += len(contenders) * t.roundsOf(s)
	}
	t.progress.expect(total)
	var results []*result
	for _, s := range list {
		r, err := t.scenario(s, with)
		if err != nil {
			return results, fmt.Errorf("%s: %w", s.id, err)
		}
		results = append(results, r)
		if err := t.keep(results); err != nil {
			return results, err
		}
	}
	t.progress.finish()
	return results, nil
}

func (t *tour) roundsOf(s scenario) int {
	rounds := t.plan.rounds * max(1, s.times)
	if s.most > 0 {
		return min(s.most, rounds)
	}
	return rounds
}

// order is that of n contenders in a round. It is drawn anew for each, the same
// in each run: in one order that only begins elsewhere each time, two contenders
// of the same code differed by a seventh, for what went before one of them always
// went before it.
func order(round, n int) []int { return rand.New(rand.NewPCG(uint64(n), uint64(round))).Perm(n) }

func (t *tour) scenario(s scenario, with []adapter) (*result, error) {
	contenders, left := s.contenders(with)
	r := &result{ID: s.id, Title: s.title, About: s.about, Main: s.main, Base: s.base, Left: left, columns: s.columns}
	for _, c := range contenders {
		r.Contenders = append(r.Contenders, &entry{Name: c.name})
	}
	for round := range t.roundsOf(s) {
		for _, k := range order(round, len(contenders)) {
			t.progress.step(s.title, round+1, t.roundsOf(s), contenders[k].name)
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
func (t *tour) turn(s scenario, c contender, e *entry) error {
	if err := t.srv.empty(); err != nil {
		return err
	}
	runtime.GC() // nobody's garbage is another's
	t.trials++
	f, err := c.measure(trial{t.srv, c.adapter, t.plan, fmt.Sprintf("bench:%s:%d", s.id, t.trials)})
	e.Rounds = append(e.Rounds, f)
	if err != nil {
		text, _, _ := strings.Cut(err.Error(), "\n")
		t.progress.note(s.title, c.name, text)
		e.Failures = append(e.Failures, text)
		var broken *brokenError
		e.Broken = e.Broken || errors.As(err, &broken)
	}
	return nil
}

// failure is an error when a lock did not exclude, or watchlock did not work.
func failure(results []*result) error {
	var all []error
	for _, r := range results {
		for _, e := range r.Contenders {
			if e.Broken || len(e.Failures) > 0 && strings.HasPrefix(e.Name, "watchlock") {
				all = append(all, fmt.Errorf("%s: %s: %s", r.ID, e.Name, e.Failures[0]))
			}
		}
	}
	return errors.Join(all...)
}
