package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// result is what one scenario found.
type result struct {
	ID, Title, About string
	Main             figure
	Base             string `json:",omitempty"`
	Contenders       []*entry
}

// entry is one contender's rounds.
type entry struct {
	Name     string
	Rounds   []figures // nil for one that failed
	Failures []string  `json:",omitempty"`
	Median   figures
	Main     spread // of the main figure
	Ratio    spread // of the main figure to the base's, round by round
	Broken   bool   `json:",omitempty"` // the lock did not exclude
}

// spread is the median of some values, and the least and the greatest of them.
type spread struct {
	Median, Low, High float64
	N, Above          int // values; those above 1, which tells of ratios only
}

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	v := slices.Sorted(slices.Values(values))
	n, above := len(v), 0
	for _, x := range v {
		if x > 1 {
			above++
		}
	}
	return spread{(v[(n-1)/2] + v[n/2]) / 2, v[0], v[n-1], n, above}
}

const (
	tellingChance = 1.0 / 16 // what chance brings about more often is noise
	tellingRounds = 5        // by chance all are on one side once in 16 times
)

// noise says whether ratios tell a difference, by the sign test: chance may put so
// few rounds, or fewer, on one side of 1 once in 16 times at most.
func (s spread) noise() string {
	switch {
	case s.N < tellingRounds:
		return ", too few rounds to tell"
	case signChance(s.N, min(s.Above, s.N-s.Above)) > tellingChance:
		return ", within noise"
	}
	return ""
}

// signChance is how likely it is that of n tosses of a coin k or fewer fall on
// either side.
func signChance(n, k int) float64 {
	ways, sum := 1.0, 0.0
	for i := range k + 1 {
		sum += ways
		ways *= float64(n-i) / float64(i+1)
	}
	return min(1, sum*math.Pow(2, float64(1-n)))
}

func (s spread) text(format func(float64) string) string {
	if s.N < 2 {
		return format(s.Median)
	}
	return fmt.Sprintf("%s (%s–%s)", format(s.Median), format(s.Low), format(s.High))
}

// conclude forms medians and ratios.
func (r *result) conclude() {
	base := r.entry(r.Base)
	for _, e := range r.Contenders {
		e.Median, e.Main = figures{}, spreadOf(values(e.Rounds, r.Main))
		for _, f := range columns {
			if v := values(e.Rounds, f); len(v) > 0 {
				e.Median[f] = spreadOf(v).Median
			}
		}
		if base != nil {
			e.Ratio = spreadOf(ratios(e.Rounds, base.Rounds, r.Main))
		}
	}
}

func (r *result) entry(name string) *entry {
	for _, e := range r.Contenders {
		if e.Name == name {
			return e
		}
	}
	return nil
}

// bestPeer is the best of those that are neither watchlock nor raw
// go-redis. Of all but rates, less is better.
func (r *result) bestPeer() (best *entry) {
	for _, e := range r.Contenders {
		ours := strings.HasPrefix(e.Name, plainName) || strings.HasPrefix(e.Name, rawName)
		if ours || e.Main.N == 0 || e.Broken {
			continue
		}
		if best == nil || (r.Main == rate) == (e.Main.Median > best.Main.Median) {
			best = e
		}
	}
	return best
}

func values(rounds []figures, f figure) (v []float64) {
	for _, r := range rounds {
		if x, ok := r[f]; ok {
			v = append(v, x)
		}
	}
	return v
}

// ratios are those of rounds in which both have the figure.
func ratios(of, to []figures, f figure) (v []float64) {
	for i := range min(len(of), len(to)) {
		a, ok := of[i][f]
		if b := to[i][f]; ok && b != 0 {
			v = append(v, a/b)
		}
	}
	return v
}

// failure is an error when a lock did not exclude, or watchlock did not work.
func (a *account) failure() error {
	var all []error
	for _, r := range a.Scenarios {
		for _, e := range r.Contenders {
			if e.Broken || len(e.Failures) > 0 && strings.HasPrefix(e.Name, plainName) {
				all = append(all, fmt.Errorf("%s: %s: %s", r.ID, e.Name, e.Failures[0]))
			}
		}
	}
	return errors.Join(all...)
}
