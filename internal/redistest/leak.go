package redistest

import (
	"bytes"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// leakTimeout is how long goroutines that are on their way out may take.
const leakTimeout = 3 * time.Second

// NoLeaks fails the test if, at its end, goroutines run that did not run at the
// call. Call it first, so that the cleanups of the rest come before, and not in
// tests that run in parallel. A bubble checks for itself.
func NoLeaks(t testing.TB) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		t.Helper()
		deadline := time.Now().Add(leakTimeout)
		for {
			err := goleak.Find(before) // tries for about a second
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("redistest: %v", err)
				return
			}
		}
	})
}

// awaitQuestions waits, at the end of the test, until clients of Sentinel that were closed
// ask no sentinel any more. go-redis waits for none of that, and each question begets
// goroutines until its retries are over: a later test would take them for its own.
func awaitQuestions(t testing.TB) {
	t.Cleanup(func() {
		for deadline := time.Now().Add(2 * leakTimeout); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			if !asking() {
				return
			}
		}
		t.Log("redistest: closed clients still ask sentinels")
	})
}

// asking reports whether any client of this process asks a sentinel who is the primary.
func asking() bool {
	stacks := make([]byte, 1<<22)
	stacks = stacks[:runtime.Stack(stacks, true)]
	return bytes.Contains(stacks, []byte("sentinelFailover).MasterAddr"))
}
