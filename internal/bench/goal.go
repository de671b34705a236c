package main

import "fmt"

// goal is what watchlock, or another client beside it, must reach in a scenario.
type goal struct {
	scenario, name string
	figure         figure // empty: the ratio to the base
	of             string // what the figure is divided by: the base's, if set
	least          bool   // the bound is a lower one
	bound          float64
	text           string
}

const plainName, fencedName = "watchlock", "watchlock, fenced"

// goals are for 2 cores, Redis 7.0 on loopback and medians of at least 5 rounds.
func goals() []goal {
	return []goal{
		{scenario: "uncontended-1", name: plainName, least: true, bound: 0.95, text: "throughput, x raw"},
		{scenario: "uncontended-1", name: plainName, figure: allocs, bound: 14, text: "allocations a pair"},
		{scenario: "uncontended-1", name: plainName, figure: sent, bound: 2.01, text: "commands a pair"},
		{scenario: "uncontended-64", name: plainName, least: true, bound: 1.8, text: "throughput, x raw"},
		{scenario: "contended-1x16", name: plainName, least: true, bound: 200, text: "throughput, x raw"},
		{scenario: "contended-1x128", name: plainName, least: true, bound: 200, text: "throughput, x raw"},
		{scenario: "contended-1x1000", name: plainName, least: true, bound: 180, text: "throughput, x raw"},
		{scenario: "contended-1x16", name: plainName, figure: served, bound: 1.05, text: "most to least served"},
		{scenario: "contended-1x128", name: plainName, figure: served, bound: 1.05, text: "most to least served"},
		{scenario: "contended-1x1000", name: plainName, figure: served, bound: 1.05, text: "most to least served"},
		{scenario: "contended-1x16", name: plainName, figure: sent, bound: 0.001, text: "commands a section"},
		{scenario: "contended-1x128", name: plainName, figure: sent, bound: 0.001, text: "commands a section"},
		{scenario: "contended-1x1000", name: plainName, figure: sent, bound: 0.001, text: "commands a section"},
		{scenario: "contended-1x16", name: fencedName, least: true, bound: 180, text: "throughput, x raw"},
		{scenario: "contended-1x128", name: fencedName, least: true, bound: 180, text: "throughput, x raw"},
		{scenario: "contended-1x1000", name: fencedName, least: true, bound: 180, text: "throughput, x raw"},
		{scenario: "contended-4x32", name: plainName, least: true, bound: 180, text: "throughput, x raw"},
		{scenario: "contended-4x32", name: plainName, figure: longest, bound: 0.008, text: "longest wait"},
		{scenario: "contended-4x32", name: plainName, figure: shares, bound: 0.10, text: "spread of the processes"},
		{scenario: "sections-5ms", name: plainName, figure: timeInside, least: true, bound: 0.97, text: "time inside"},
		{scenario: "handoff", name: plainName, bound: 1.15, text: "p50, x floor"},
		{scenario: "handoff", name: plainName, figure: p99, of: floorName, bound: 2.5, text: "p99, x floor"},
		{scenario: "beside-bare-loop", name: plainName, figure: turnShare, least: true, bound: 0.35, text: "share of the turns"},
		{scenario: "beside-bare-loop", name: plainName, figure: p99, bound: 0.050, text: "p99 of its waits"},
		{scenario: "beside-bare-loop", name: redissonName, figure: turnShare, least: true, bound: 0.35, text: "share of the turns"},
		{scenario: "beside-bare-loop", name: redissonName, figure: p99, bound: 0.050, text: "p99 of its waits"},
		{scenario: "waiting-10000", name: plainName, figure: sentSecond, bound: 2, text: "commands a second"},
		{scenario: "waiting-10000", name: plainName, figure: subscribers, bound: 1, text: "subscriptions"},
		{scenario: "waiting-10000", name: plainName, figure: memoryEach, bound: 6000, text: "memory a waiter"},
		{scenario: "held-10000", name: plainName, figure: sentRound, bound: 100, text: "commands a round"},
		{scenario: "held-10000", name: plainName, figure: goroutines, bound: 0.001, text: "goroutines a lock"},
		{scenario: "held-10000", name: plainName, figure: memoryEach, bound: 600, text: "memory a lock"},
		{scenario: "held-10000", name: plainName, figure: clientShare, bound: 0.02, text: "share of a core"},
		{scenario: "reentry", name: plainName, figure: timeEach, bound: 700e-9, text: "Lock and Unlock"},
		{scenario: "reentry", name: plainName, figure: allocs, bound: 3, text: "allocations"},
	}
}

// check returns what was measured, in words, and whether the goal is reached.
func (g goal) check(r *result) (found string, reached, measured bool) {
	e := r.entry(g.name)
	if e == nil {
		return "", false, false
	}
	value, format := 0.0, formatRatio
	switch {
	case g.figure == "" && e.Ratio != nil:
		value = e.Ratio.Median
	case g.of != "":
		to := r.entry(g.of)
		if to == nil {
			return "", false, false
		}
		value = spreadOf(ratios(e.Rounds, to.Rounds, g.figure)).Median
	default:
		v, ok := e.Median[g.figure]
		if !ok {
			return "", false, false
		}
		value, format = v, g.figure.format
	}
	reached = value <= g.bound
	if g.least {
		reached = value >= g.bound
	}
	return format(value), reached, true
}

// wanted is the bound in words.
func (g goal) wanted() string {
	format := formatRatio
	if g.figure != "" && g.of == "" {
		format = g.figure.format
	}
	if g.least {
		return fmt.Sprintf("≥ %s", format(g.bound))
	}
	return fmt.Sprintf("≤ %s", format(g.bound))
}
