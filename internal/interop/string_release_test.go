package interop

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestALateReleaseOfEachPeerLeavesTheNextOnesKeyAlone(t *testing.T) {
	onEachFamilyWithNest(t, "string form: late releases of four peers", func(t *testing.T, s *redistest.Server, n *nest, _ section) {
		peers := append(stringPeers(t, s), n.peer())
		for _, first := range peers {
			for _, next := range peers {
				lateReleaseAfter(t, s, first, next)
			}
		}
	})
}

// lateReleaseAfter lets first release a lock that ran out and is next's by then.
func lateReleaseAfter(t *testing.T, s *redistest.Server, first, next stringPeer) {
	t.Helper()
	ctx, who := t.Context(), first.name+" before "+next.name
	late, err := first.lock(ctx, "k", 200*time.Millisecond)
	if err != nil {
		t.Fatalf("%s: %v", who, err)
	}
	waitUntil(t, who+": the key's end", func() bool { return !exists(t, s, "k") })
	release, err := next.lock(ctx, "k", time.Minute)
	if err != nil {
		t.Fatalf("%s: %v", who, err)
	}
	holder := do(t, s, "GET", "k")
	if _, err := first.lock(ctx, "k", time.Minute); !errors.Is(err, errBusy) {
		t.Errorf("%s: the first again: %v", who, err)
	}
	if mine, err := late(ctx); mine || err != nil {
		t.Errorf("%s: the late release: %v, %v", who, mine, err)
	}
	if left := do(t, s, "PTTL", "k").(int64); do(t, s, "GET", "k") != holder || left < 30_000 || left > 60_000 {
		t.Errorf("%s: the key is %q for %d ms, was %q", who, do(t, s, "GET", "k"), left, holder)
	}
	if mine, err := release(ctx); !mine || err != nil {
		t.Errorf("%s: the release: %v, %v", who, mine, err)
	}
	if exists(t, s, "k") {
		t.Fatalf("%s: the key is left", who)
	}
}

func TestAReleaseComparesOnTheServerByACommandOrAScript(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		for _, p := range stringPeers(t, s) {
			monitor := s.Monitor()
			for range 2 { // the first may find out what the server knows
				release, err := p.lock(t.Context(), "k", time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				if mine, err := release(t.Context()); !mine || err != nil {
					t.Errorf("%s: %v, %v", p.name, mine, err)
				}
			}
			lines := monitor()
			h := replay(t, "k", lines)
			if h.grants != 2 || h.releases != 2 {
				t.Errorf("%s: %d grants, %d releases", p.name, h.grants, h.releases)
			}
			if p.name == "watchlock" {
				checkReleaseForm(t, s, h, lines)
			}
		}
	})
}

// checkReleaseForm checks that DELEX is used where there is one, and Lua elsewhere.
func checkReleaseForm(t *testing.T, s *redistest.Server, h *stringHistory, lines []string) {
	t.Helper()
	var seen []string
	for _, line := range lines {
		args, inScript := monitored(t, line)
		switch name := strings.ToUpper(args[0]); {
		case name == "DELEX":
			seen = append(seen, strings.Join(args[1:], " "))
		case name == "DEL" && inScript:
			seen = append(seen, "script")
		}
	}
	want := []string{"script", "script"}
	if s.Family() == redistest.Redis86 {
		// The first asks whether the server knows DELEX, before anything is taken.
		want = []string{"k IFEQ " + h.holders[0], "k IFEQ " + h.holders[0], "k IFEQ " + h.holders[1]}
	}
	if !slices.Equal(seen, want) {
		t.Errorf("releases by %q, want %q", seen, want)
	}
}
