package redistest

import (
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
