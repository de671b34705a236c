package main

import (
	"bytes"
	"context"
	"errors"
	"image/color"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestMain also is the main of children that a scenario starts.
func TestMain(m *testing.M) {
	if workIfAsked() {
		return
	}
	code := m.Run()
	stopTheJVM()
	os.Exit(code)
}

// testServer runs a server until the test ends. Without a program for it the test
// is skipped, in CI it fails.
func testServer(t *testing.T) *server {
	t.Helper()
	program, err := serverProgram("")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	srv, err := startServer(program)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.stop)
	return srv
}

// The run itself fails when watchlock does, or a lock does not exclude.
func TestSmokeRunMeasuresEverythingAndWritesIt(t *testing.T) {
	if _, err := serverProgram(""); err != nil && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	dir := t.TempDir()
	var table bytes.Buffer
	if err := start([]string{"-smoke", "-out", dir}, &table, io.Discard); err != nil {
		t.Fatal(err)
	}
	mustHaveRedisson(t, dir)
	for _, s := range scenarios(plan{}.smokePlan()) {
		if !strings.Contains(table.String(), "## "+s.title+"\n") {
			t.Errorf("the table lacks %q", s.title)
		}
	}
	for _, name := range []string{"results.md", "results.json", "contended.svg", "waits.svg", "uncontended.svg", "handoff.svg"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() < 1000 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

func TestRawScriptsAreTheLibrarysOwn(t *testing.T) {
	for name, text := range map[string]string{"acquire.lua": rawAcquire, "release.lua": rawRelease} {
		own, err := os.ReadFile(filepath.Join("..", "..", "lua", name))
		if err != nil {
			t.Fatal(err)
		}
		if text != string(own) {
			t.Errorf("lua/%s differs from the library's", name)
		}
	}
}

// sleepyLock never wakes its second waiter.
type sleepyLock struct{ free chan struct{} }

func (l sleepyLock) mutex(string) mutex           { return l }
func (l sleepyLock) close()                       {}
func (l sleepyLock) Unlock(context.Context) error { return nil }

func (l sleepyLock) lock(context.Context) (lease, error) {
	<-l.free
	return l, nil
}

func TestWaitersThatAreNotWokenAreCounted(t *testing.T) {
	l := sleepyLock{make(chan struct{}, 1)}
	l.free <- struct{}{}
	g := crowd{goroutines: 3}.gather(adapter{shared: true}, l, "sleepy", nil)
	for atomic.LoadInt64(&g.inside[0].n) == 0 {
		pause(time.Millisecond)
	}
	pause(100 * time.Millisecond) // the one that was in wants in again
	asleep, err := g.finish()
	if asleep == 0 || err != nil {
		t.Errorf("%d asleep, %v; want 1 to 3", asleep, err)
	}
	close(l.free)
	g.all.Wait()
}

// brokenLock lets everybody in.
type brokenLock struct{}

func (brokenLock) mutex(string) mutex                    { return brokenLock{} }
func (brokenLock) close()                                {}
func (l brokenLock) lock(context.Context) (lease, error) { return l, nil }
func (brokenLock) Unlock(context.Context) error          { return nil }

func TestALockThatLetsTwoInIsFound(t *testing.T) {
	srv := testServer(t)
	a := adapter{name: "broken", open: func(conditions) (session, error) { return brokenLock{}, nil }}
	p := plan{span: 100 * time.Millisecond}
	_, err := crowd{goroutines: 4, section: time.Millisecond}.measure(trial{srv, a, p, "broken"})
	var broken *brokenError
	if !errors.As(err, &broken) {
		t.Fatalf("a crowd on a lock that does not exclude: %v", err)
	}
	e := &entry{Name: "broken"}
	tour := &tour{plan: p, srv: srv, progress: newProgress(io.Discard)}
	c := contender{"broken", a, crowd{goroutines: 4, section: time.Millisecond}.measure}
	if err := tour.turn(scenario{}, c, e); err != nil {
		t.Fatal(err)
	}
	if failure([]*result{{Contenders: []*entry{e}}}) == nil {
		t.Error("the run does not fail")
	}
}

func TestSharedWitnessIsOneForAllWhoMapIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "witness")
	a, err1 := sharedWitness(path)
	b, err2 := sharedWitness(path)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	a.section(0)
	b.section(0)
	if err := a.check(2); err != nil {
		t.Error(err)
	}
	if b.check(3) == nil {
		t.Error("a lost increment goes unseen")
	}
}

// TestCommandsOfScriptsAreToldFromThoseSent watches what each client sends, and
// finds what the tables say that it does.
func TestCommandsOfScriptsAreToldFromThoseSent(t *testing.T) {
	srv := testServer(t)
	for _, a := range adapters() {
		if a.jvm {
			continue // a test of its own has it
		}
		t.Run(a.name, func(t *testing.T) {
			tr := trial{srv: srv, adapter: a, name: "told:" + a.name}
			s, err := tr.open()
			if err != nil {
				t.Fatal(err)
			}
			defer s.close()
			m := s.mutex(tr.name)
			pair := func() {
				l, err := m.lock(context.Background())
				if err == nil {
					err = l.Unlock(context.Background())
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			pair() // the server learns the scripts
			before, err := tr.begin()
			if err != nil {
				t.Fatal(err)
			}
			for range 100 {
				pair()
			}
			after, err := tr.end()
			if err != nil {
				t.Fatal(err)
			}
			out, all := after.ledger.since(before.ledger, a.inside)
			if out < 200 || out > 204 { // a renewal's connection, a late ping
				t.Errorf("%d commands sent for 100 pairs, want 200: %v", out, after.ledger.calls)
			}
			if all < 3*out/2 {
				t.Errorf("%d commands run, %d sent: those of scripts are missing", all, out)
			}
		})
	}
}

func TestHistogramFindsQuantilesWithinABucket(t *testing.T) {
	var h histogram
	var all []time.Duration
	for i := range 10_000 {
		d := time.Duration(i*i) * 37 * time.Nanosecond
		h.add(d)
		all = append(all, d)
	}
	for _, q := range []float64{0, 0.01, 0.5, 0.99, 0.999} {
		want, got := all[int(q*10_000)], h.quantile(q)
		if diff := (got - want).Abs(); diff > want/25+1 {
			t.Errorf("quantile %v is %v, want about %v", q, got, want)
		}
	}
	if h.quantile(1) != all[9999] || h.Max != all[9999] {
		t.Errorf("the greatest is %v and %v, want %v", h.quantile(1), h.Max, all[9999])
	}
	h.add(-1)
	h.add(1 << 62) // counted in the last bucket
	if h.N != 10_002 {
		t.Errorf("%d counted", h.N)
	}
}

func TestDifferencesThatRoundsDoNotAgreeOnAreNoise(t *testing.T) {
	for want, ratios := range map[string][]float64{
		"":                       {1.01, 1.2, 1.1, 1.3, 1.02},
		"within noise":           {0.99, 1.2, 1.1, 1.3, 1.02},
		"too few rounds to tell": {2, 2, 2, 2},
	} {
		if got := spreadOf(ratios).noise(); got != want {
			t.Errorf("of ratios %v: %q, want %q", ratios, got, want)
		}
	}
	if s := spreadOf([]float64{4, 1, 2, 3}); s.Median != 2.5 || s.Low != 1 || s.High != 4 {
		t.Errorf("spread of 1 to 4: %+v", s)
	}
}

func TestChanceOfRoundsOnOneSideIsThatOfACoin(t *testing.T) {
	for _, c := range []struct {
		n, k int
		want float64
	}{{5, 0, 1.0 / 16}, {5, 1, 12.0 / 32}, {15, 3, 2 * 576.0 / 32768}, {15, 4, 2 * 1941.0 / 32768}, {4, 2, 1}} {
		if got := signChance(c.n, c.k); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%d of %d on one side: %v, want %v", c.k, c.n, got, c.want)
		}
	}
	few, many := slices.Repeat([]float64{0.9}, 3), slices.Repeat([]float64{1.1}, 12)
	if got := spreadOf(append(few, many...)).noise(); got != "" {
		t.Errorf("12 of 15 on one side: %q", got)
	}
}

func TestNobodyAlwaysFollowsTheSame(t *testing.T) {
	const rounds, n = 900, 9
	follows := map[[2]int]int{}
	for round := range rounds {
		all := order(round, n)
		if !slices.Equal(all, order(round, n)) {
			t.Fatalf("round %d has two orders", round)
		}
		for i := 1; i < n; i++ {
			follows[[2]int{all[i-1], all[i]}]++
		}
	}
	// Each pair is due 100 times, give or take 9.
	if len(follows) != n*(n-1) {
		t.Errorf("%d pairs", len(follows))
	}
	for pair, times := range follows {
		if times < 60 || times > 140 {
			t.Errorf("%v: %d times in %d rounds", pair, times, rounds)
		}
	}
}

func TestARoundHasEverybodyOnceInItsOwnOrder(t *testing.T) {
	var went []string
	s := scenario{times: 3, main: rate}
	for _, name := range []string{"a", "b", "c", "d"} {
		s.extra = append(s.extra, contender{name: name, measure: func(trial) (figures, error) {
			went = append(went, name)
			return figures{rate: 1}, nil
		}})
	}
	tour := &tour{plan: plan{rounds: 5}, srv: testServer(t), progress: newProgress(io.Discard)}
	if _, err := tour.scenario(s, nil); err != nil {
		t.Fatal(err)
	}
	orders := map[string]bool{}
	rounds := slices.Collect(slices.Chunk(went, len(s.extra)))
	for _, round := range rounds {
		orders[strings.Join(round, "")] = true
		if slices.Sort(round); strings.Join(round, "") != "abcd" {
			t.Errorf("a round of %q", round)
		}
	}
	// Of 24 orders, beginning elsewhere each time gives 4.
	if len(rounds) != 15 || len(orders) < 5 {
		t.Errorf("%d rounds in %d orders", len(rounds), len(orders))
	}
}

func TestRatiosAreFormedWithinARound(t *testing.T) {
	mine := &entry{Name: plainName, Rounds: []figures{{rate: 20}, nil, {rate: 600}}}
	base := &entry{Name: rawName, Rounds: []figures{{rate: 10}, {rate: 1}, {rate: 200}}}
	r := result{ID: "uncontended-64", Main: rate, Base: rawName, Contenders: []*entry{base, mine}}
	r.conclude()
	if *mine.Ratio != (spread{2.5, 2, 3, 2, 2}) {
		t.Errorf("ratios are %+v", *mine.Ratio)
	}
	i := slices.IndexFunc(goals(), func(g goal) bool { return g.scenario == r.ID })
	if found, reached, _ := goals()[i].check(&r); !reached || found != "2.50" {
		t.Errorf("goal: %q, reached %v", found, reached)
	}
}

func TestEveryGoalNamesAScenarioAndAClient(t *testing.T) {
	for _, g := range goals() {
		if !slices.ContainsFunc(scenarios(plan{crowdLimit: 10_000}), func(s scenario) bool { return s.id == g.scenario }) {
			t.Errorf("no scenario %q", g.scenario)
		}
		if !slices.ContainsFunc(adapters(), func(a adapter) bool { return a.name == g.name }) && g.name != redissonName {
			t.Errorf("no client %q", g.name)
		}
	}
}

func TestEachClientHasAColourOfItsOwn(t *testing.T) {
	seen := map[color.RGBA]string{}
	for i, name := range clientNames() {
		if i >= len(colours) {
			t.Fatalf("no colour is left for %s", name)
		}
		if other := seen[colours[i]]; other != "" {
			t.Errorf("%s has the colour of %s", name, other)
		}
		seen[colours[i]] = name
	}
}

func TestTheBestOfTheOthersIsNeitherWatchlockNorTheBase(t *testing.T) {
	r := result{Main: rate}
	for i, a := range adapters() {
		r.Contenders = append(r.Contenders, &entry{Name: a.name, Main: spread{N: 5, Median: float64(100 - i)}})
	}
	best := r.bestPeer()
	if best == nil || best.Name != "bsm/redislock" {
		t.Errorf("the best is %+v, want the first that is not ours", best)
	}
}
