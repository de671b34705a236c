package main

import (
	"fmt"
	"maps"
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
	Left             map[string]string `json:",omitempty"` // out, and why

	columns []figure
}

// entry is one contender's rounds.
type entry struct {
	Name     string
	Rounds   []figures // nil for one that failed
	Failures []string  `json:",omitempty"`
	Median   figures
	Main     spread  // of the main figure
	Ratio    *spread `json:",omitempty"` // of the main figure to the base's, round by round
	Broken   bool    `json:",omitempty"` // the lock did not exclude
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
		return "too few rounds to tell"
	case signChance(s.N, min(s.Above, s.N-s.Above)) > tellingChance:
		return "within noise"
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

func (s spread) String() string {
	if s.N < 2 {
		return formatRatio(s.Median)
	}
	return fmt.Sprintf("%s (%s–%s)", formatRatio(s.Median), formatRatio(s.Low), formatRatio(s.High))
}

// conclude forms medians and ratios.
func (r *result) conclude() {
	base := r.entry(r.Base)
	for _, e := range r.Contenders {
		e.Median = medians(e.Rounds)
		e.Main = spreadOf(values(e.Rounds, r.Main))
		if base != nil {
			ratio := spreadOf(ratios(e.Rounds, base.Rounds, r.Main))
			if ratio.N > 0 {
				e.Ratio = &ratio
			}
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

// bestPeer is the best of those that are neither watchlock nor the base nor a
// floor.
func (r *result) bestPeer() *entry {
	peers := map[string]bool{}
	for _, a := range adapters() {
		peers[a.name] = !strings.HasPrefix(a.name, plainName) && !strings.HasPrefix(a.name, rawName)
	}
	var best *entry
	for _, e := range r.Contenders {
		if !peers[e.Name] || e.Main.N == 0 || e.Broken {
			continue
		}
		if best == nil || better(r.Main, e.Main.Median, best.Main.Median) {
			best = e
		}
	}
	return best
}

// better reports whether a is better than b. Of all but rates, less is.
func better(f figure, a, b float64) bool {
	if f == rate {
		return a > b
	}
	return a < b
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
		a, ok1 := of[i][f]
		b, ok2 := to[i][f]
		if ok1 && ok2 && b != 0 {
			v = append(v, a/b)
		}
	}
	return v
}

func medians(rounds []figures) figures {
	all := figures{}
	for _, r := range rounds {
		for f := range maps.Keys(r) {
			if _, done := all[f]; !done {
				all[f] = spreadOf(values(rounds, f)).Median
			}
		}
	}
	return all
}
