package main

import (
	"fmt"
	"time"
)

// A run with less decides no goals.
const (
	decidingRounds = tellingRounds
	decidingSpan   = 2 * time.Second
)

// goal is what watchlock, or another client beside it, must reach in a scenario.
// Goals are only about what rounds agree on: a ratio near 1, the longest wait and
// a hand-over by message differ more from round to round than a goal could bear.
type goal struct {
	scenario, name string
	figure         figure // empty: the ratio to the base
	least          bool   // the bound is a lower one
	bound          float64
	text           string
}

// goals are for 2 cores and Redis 7.0 on loopback.
var goals = []goal{
	{"uncontended-1", plainName, allocs, false, 14, "allocations a pair"},
	{"uncontended-1", plainName, sent, false, 2.01, "commands a pair"},
	{"contended-1x16", plainName, "", true, 200, "throughput, x raw"},
	{"contended-1x128", plainName, "", true, 200, "throughput, x raw"},
	{"contended-1x1000", plainName, "", true, 180, "throughput, x raw"},
	{"contended-1x16", plainName, served, false, 1.05, "most to least served"},
	{"contended-1x128", plainName, served, false, 1.05, "most to least served"},
	{"contended-1x1000", plainName, served, false, 1.05, "most to least served"},
	{"contended-1x16", plainName, sent, false, 0.001, "commands a section"},
	{"contended-1x128", plainName, sent, false, 0.001, "commands a section"},
	{"contended-1x1000", plainName, sent, false, 0.001, "commands a section"},
	{"contended-1x128", fencedName, "", true, 180, "throughput, x raw"},
	{"contended-1x1000", fencedName, "", true, 180, "throughput, x raw"},
	{"contended-4x32", plainName, "", true, 180, "throughput, x raw"},
	{"contended-4x32", plainName, shares, false, 0.10, "spread of the processes"},
	{"sections-5ms", plainName, rate, true, 190, "sections a second"},
	{"beside-bare-loop", plainName, turnShare, true, 0.35, "share of the turns"},
	{"beside-bare-loop", plainName, p99, false, 0.050, "p99 of its waits"},
	{"beside-bare-loop", redissonName, turnShare, true, 0.35, "share of the turns"},
	{"beside-bare-loop", redissonName, p99, false, 0.050, "p99 of its waits"},
	{"waiting-10000", plainName, sent, false, 2, "commands a second"},
	{"waiting-10000", plainName, subscribers, false, 1, "subscriptions"},
	{"waiting-10000", plainName, memoryEach, false, 6000, "bytes a waiter"},
	{"held-10000", plainName, sent, false, 101, "commands a round"},
	{"held-10000", plainName, goroutines, false, 0.001, "goroutines a lock"},
	{"held-10000", plainName, memoryEach, false, 600, "bytes a lock"},
	{"held-10000", plainName, clientCPU, false, 0.2, "CPU a round"},
}

// check tells what was found, and whether each round reached the goal; both are
// empty if nothing was measured.
func (g goal) check(r *result) (found, reached string) {
	e := r.entry(g.name)
	if e == nil {
		return "", ""
	}
	all := values(e.Rounds, g.figure)
	if base := r.entry(r.Base); g.figure == "" && base != nil {
		all = ratios(e.Rounds, base.Rounds, r.Main)
	}
	n := 0
	for _, v := range all {
		if v == g.bound || (v > g.bound) == g.least {
			n++
		}
	}
	switch {
	case len(all) == 0:
		return "", ""
	case n == len(all) && n == len(e.Rounds):
		reached = "yes"
	case n == 0:
		reached = "no"
	default:
		reached = fmt.Sprintf("in %d of %d rounds", n, len(e.Rounds))
	}
	return spreadOf(all).text(g.figure.format), reached
}

// wanted is the bound in words.
func (g goal) wanted() string {
	sign := "≤ "
	if g.least {
		sign = "≥ "
	}
	return sign + g.figure.format(g.bound)
}
