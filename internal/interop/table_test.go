package interop

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// row is one conversation with one peer on one server.
type row struct {
	conversation, server, peer string
	passed, skipped            bool
	slowest                    time.Duration // from a release to the waiter's entry
	woken                      bool          // whether there was any
	late                       int           // how often that was no longer a message's time
}

var table struct {
	mu   sync.Mutex
	rows map[string]*row // by the test's name
}

// tell gives the test a row in the table at the end of the run, which says
// whether it passed.
func tell(t *testing.T, conversation, server, peer string) {
	t.Helper()
	table.mu.Lock()
	defer table.mu.Unlock()
	if table.rows == nil {
		table.rows = make(map[string]*row)
	}
	r := &row{conversation: conversation, server: server, peer: peer}
	table.rows[t.Name()] = r
	t.Cleanup(func() {
		table.mu.Lock()
		defer table.mu.Unlock()
		r.passed, r.skipped = !t.Failed(), t.Skipped()
	})
}

// woke notes in the test's row how long a waiter took to enter after what
// let it in. It returns how many of the test were late.
func woke(t testing.TB, took time.Duration) (late int) {
	t.Helper()
	table.mu.Lock()
	defer table.mu.Unlock()
	r := table.rows[t.Name()]
	if r == nil {
		return math.MaxInt
	}
	r.woken, r.slowest = true, max(r.slowest, took)
	if took > messageWake {
		r.late++
	}
	return r.late
}

// tableVariable names a file for the table: go test shows what a package printed
// only if it failed.
const tableVariable = "WATCHLOCK_TABLE"

// printTable writes the table of all conversations, if there were any.
func printTable() {
	table.mu.Lock()
	defer table.mu.Unlock()
	if len(table.rows) == 0 {
		return
	}
	var rows []*row
	for _, r := range table.rows {
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b *row) int {
		return cmp.Or(cmp.Compare(a.conversation, b.conversation), cmp.Compare(a.server, b.server), cmp.Compare(b.peer, a.peer))
	})
	var text strings.Builder
	text.WriteString("\n| conversation | server | peer | outcome | slowest wake-up |\n|---|---|---|---|---|\n")
	for _, r := range rows {
		outcome, slowest := "FAILED", ""
		switch {
		case r.skipped:
			outcome = "skipped"
		case r.passed:
			outcome = "passed"
		}
		if r.woken {
			slowest = r.slowest.Round(100 * time.Microsecond).String()
		}
		fmt.Fprintf(&text, "| %s | %s | %s | %s | %s |\n", r.conversation, r.server, r.peer, outcome, slowest)
	}
	fmt.Print(text.String())
	if path := os.Getenv(tableVariable); path != "" {
		if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
			fmt.Println(err)
		}
	}
}
