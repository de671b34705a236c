package main

import (
	"regexp"
	"time"
)

// plan is what to run.
type plan struct {
	rounds     int
	span       time.Duration // of a measurement
	only, with *regexp.Regexp
	crowdLimit int  // of waiters and held locks
	smoke      bool // a short run that shows that everything works
}

// warmUp is how long a crowd works before it is measured.
func (p plan) warmUp() time.Duration { return p.span / 5 }

// settling is how long waiters may take to come to rest: polls of watchlock are
// 5 s apart at last.
func (p plan) settling(a adapter) time.Duration {
	switch {
	case p.smoke:
		return 200 * time.Millisecond
	case a.polls:
		return time.Second
	}
	return 6 * time.Second
}

// watching is how long waiters at rest are watched.
func (p plan) watching(a adapter) time.Duration {
	switch {
	case p.smoke:
		return 300 * time.Millisecond
	case a.polls:
		return 2 * time.Second
	}
	return 10 * time.Second
}

// heldTTL is that of locks whose renewal is watched.
func (p plan) heldTTL() time.Duration {
	if p.smoke {
		return 3 * time.Second
	}
	return lockTTL
}

// smokePlan shortens a plan to well under two minutes.
func (p plan) smokePlan() plan {
	p.smoke, p.rounds, p.span, p.crowdLimit = true, 1, 50*time.Millisecond, 300
	return p
}

// scenarios are those that the plan names.
func (p plan) scenarios() (list []scenario) {
	for _, s := range scenarios(p) {
		if p.only.MatchString(s.id) {
			list = append(list, s)
		}
	}
	return list
}

// adapters are those that the plan names.
func (p plan) adapters() (list []adapter) {
	for _, a := range adapters() {
		if p.with.MatchString(a.name) {
			list = append(list, a)
		}
	}
	return list
}
