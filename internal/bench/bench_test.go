package main

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestMain also is the main of children that a scenario starts.
func TestMain(m *testing.M) {
	if !serveIfAsked() {
		_ = os.Setenv("GORACE", "atexit_sleep_ms=0") // else each child ends a second late
		os.Exit(m.Run())
	}
}

// smokePlan is short: all works, and no figure means anything. Without a program
// to run the test is skipped, in CI it fails.
func smokePlan(t *testing.T) plan {
	t.Helper()
	t.Parallel()
	_, err1 := serverProgram()
	_, err2 := findRedisson()
	if (err1 != nil || err2 != nil) && os.Getenv("CI") != "" {
		t.Fatal(err1, err2)
	}
	if err1 != nil {
		t.Skip(err1)
	}
	return plan{
		rounds: 1, span: 20 * time.Millisecond, out: t.TempDir(), only: regexp.MustCompile(""), with: regexp.MustCompile(""),
		many: 20, settle: 50 * time.Millisecond, watch: 50 * time.Millisecond, heldTTL: 900 * time.Millisecond,
		drain: 2 * time.Second, smoke: true,
	}
}

func TestSmokeRunMeasuresEverythingAndWritesIt(t *testing.T) {
	p := smokePlan(t)
	a, err := measure(t.Context(), p, "smoke", io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.failure(); err != nil {
		t.Error(err)
	}
	if len(a.Scenarios) != len(scenarios(p)) {
		t.Errorf("%d scenarios, want %d", len(a.Scenarios), len(scenarios(p)))
	}
	for _, r := range a.Scenarios {
		for _, e := range r.Contenders {
			if _, ok := e.Median[r.Main]; !ok && len(e.Failures) == 0 || e.Name == redissonName && len(e.Failures) > 0 {
				t.Errorf("%s: %s: no %q in %v, %q", r.ID, e.Name, r.Main, e.Median, e.Failures)
			}
		}
	}
	var raw account
	text, err := os.ReadFile(filepath.Join(p.out, "results.json"))
	if err != nil || json.Unmarshal(text, &raw) != nil || len(raw.Scenarios) != len(a.Scenarios) {
		t.Errorf("results.json: %v, %d scenarios", err, len(raw.Scenarios))
	}
	for _, name := range []string{"results.md", "contended.svg", "waits.svg", "uncontended.svg", "handoff.svg"} {
		if info, err := os.Stat(filepath.Join(p.out, name)); err != nil || info.Size() < 1000 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

func TestRawScriptsAreTheLibrarysOwn(t *testing.T) {
	for name, text := range map[string]string{"acquire.lua": rawAcquire, "release.lua": rawRelease} {
		own, err := os.ReadFile(filepath.Join("..", "wire", "lua", name))
		if err != nil {
			t.Fatal(err)
		}
		if text != string(own) {
			t.Errorf("lua/%s differs from the library's", name)
		}
	}
}

// freed is a lease that does nothing.
type freed struct{}

func (freed) Unlock(context.Context) error { return nil }

func TestWaitersThatAreNotWokenAreCounted(t *testing.T) {
	free, asked := make(chan struct{}, 1), make(chan struct{}, 10)
	free <- struct{}{}
	s := session{mutex: func(string) mutex {
		return func(context.Context) (lease, error) {
			asked <- struct{}{}
			<-free
			return freed{}, nil
		}
	}}
	g := gather(crowd{goroutines: 3}, s, "sleepy", new(witness))
	for range 4 {
		<-asked // the one that was in wants in again
	}
	if its, err := g.finish(100 * time.Millisecond); its.Asleep != 3 || its.Entered != 1 || err != nil {
		t.Errorf("%+v, %v; want 3 asleep after 1 section", its, err)
	}
	close(free)
	g.all.Wait()
}

func TestALockThatLetsTwoInIsFound(t *testing.T) {
	s := session{mutex: func(string) mutex {
		return func(context.Context) (lease, error) { return freed{}, nil }
	}}
	seen, err := sharedWitness(filepath.Join(t.TempDir(), "witness"))
	if err != nil {
		t.Fatal(err)
	}
	g := gather(crowd{goroutines: 4, section: time.Millisecond}, s, "broken", seen)
	pause(50 * time.Millisecond)
	its, err := g.finish(100 * time.Millisecond)
	if err != nil || seen.check(its.Entered) == nil {
		t.Errorf("%d sections of 4 who exclude nobody: %v", its.Entered, err)
	}
}

// What the tables say that each client sends is what a pair has to send.
func TestCommandsOfScriptsAreToldFromThoseSent(t *testing.T) {
	p := smokePlan(t)
	p.span, p.only = time.Second, regexp.MustCompile("^uncontended-1$")
	a, err := measure(t.Context(), p, "", io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range a.Scenarios[0].Contenders {
		want := 2.0
		if e.Name == redissonName {
			want = 3 // a DEL after its script
		}
		// The ends of the span may cut a pair, and a connection begins with a ping.
		off := 0.1 + 6/(e.Median[rate]*p.span.Seconds())
		if got := e.Median[sent]; math.Abs(got-want) > off || e.Median[ran] < 1.5*want {
			t.Errorf("%s: %v commands sent for a pair, %v run", e.Name, got, e.Median[ran])
		}
		if _, told := e.Median[allocs]; told != (e.Name != redissonName) {
			t.Errorf("%s: allocations told: %v", e.Name, told)
		}
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
	if h.quantile(1) != all[9999] {
		t.Errorf("the greatest is %v, want %v", h.quantile(1), all[9999])
	}
}

func TestDifferencesThatRoundsDoNotAgreeOnAreNoise(t *testing.T) {
	for want, ratios := range map[string][]float64{
		"":                         {1.01, 1.2, 1.1, 1.3, 1.02},
		", within noise":           {0.99, 1.2, 1.1, 1.3, 1.02},
		", too few rounds to tell": {2, 2, 2, 2},
	} {
		if got := spreadOf(ratios).noise(); got != want {
			t.Errorf("of ratios %v: %q, want %q", ratios, got, want)
		}
	}
	if got := signChance(15, 3); math.Abs(got-2*576.0/32768) > 1e-12 {
		t.Errorf("3 of 15 on one side: %v", got)
	}
}

func TestNobodyAlwaysFollowsTheSame(t *testing.T) {
	const rounds, n = 900, 9
	follows := map[[2]int]int{}
	for round := range rounds {
		all := drawn(round, n)
		for i := 1; i < n; i++ {
			follows[[2]int{all[i-1], all[i]}]++
		}
	}
	for pair, times := range follows { // each is due 100 times, give or take 9
		if times < 60 || times > 140 {
			t.Errorf("%v: %d times in %d rounds", pair, times, rounds)
		}
	}
}

func TestARatioIsFormedWithinARoundAndAGoalIsForEach(t *testing.T) {
	mine := &entry{Name: plainName, Rounds: []figures{{rate: 20}, {rate: 3}, {rate: 600}}}
	base := &entry{Name: rawName, Rounds: []figures{{rate: 10}, nil, {rate: 200}}}
	r := &result{Main: rate, Base: rawName, Contenders: []*entry{base, mine}}
	r.conclude()
	if mine.Ratio != (spread{2.5, 2, 3, 2, 2}) {
		t.Errorf("ratios are %+v", mine.Ratio)
	}
	for bound, want := range map[float64]string{3: "yes", 20: "in 2 of 3 rounds", 601: "no"} {
		g := goal{name: plainName, figure: rate, least: true, bound: bound}
		if found, reached := g.check(r); reached != want || found != "20 (3–600)" {
			t.Errorf("goal of %v: %s, reached: %s", bound, found, reached)
		}
	}
}

func TestEveryGoalNamesAScenarioAndAClient(t *testing.T) {
	for _, g := range goals {
		if !slices.ContainsFunc(scenarios(usual), func(s scenario) bool { return s.id == g.scenario }) {
			t.Errorf("no scenario %q", g.scenario)
		}
		if !strings.Contains(strings.Join(append(clientNames(), redissonName), "\n"), g.name) {
			t.Errorf("no client %q", g.name)
		}
	}
	if len(clientNames()) > len(colours) {
		t.Error("not every client has a colour")
	}
}
