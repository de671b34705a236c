// Package timeline prints the stories that the examples tell.
package timeline

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Timeline prints who did what and when, and keeps account of the claims.
type Timeline struct {
	start time.Time

	mu sync.Mutex
	// guarded by mu
	out    io.Writer
	acts   int
	claims int
	failed []string
}

// New returns a time line that starts now.
func New(out io.Writer) *Timeline { return &Timeline{start: time.Now(), out: out} }

// Act begins a new act.
func (t *Timeline) Act(title string, about ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.acts++
	t.printf("\n%d. %s\n", t.acts, title)
	for _, line := range about {
		t.printf("   %s\n", line)
	}
	t.printf("\n%7s  %-9s  %s\n", "ms", "who", "what")
}

// Say prints one line of the time line. The clock is read under the mutex, so
// that the lines come in their order.
func (t *Timeline) Say(who, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.printf("%7d  %-9s  %s\n", time.Since(t.start).Milliseconds(), who, fmt.Sprintf(format, args...))
}

// Claim says what an act proved, or that it did not.
func (t *Timeline) Claim(holds bool, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	t.claims++
	if holds {
		t.printf("   proved: %s\n", text)
		return
	}
	t.failed = append(t.failed, text)
	t.printf("   FAILED: %s\n", text)
}

// Finish prints the last lines. The error names every claim that did not hold.
func (t *Timeline) Finish(more string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.failed) > 0 {
		return fmt.Errorf("%d of %d claims do not hold: %s", len(t.failed), t.claims, strings.Join(t.failed, "; "))
	}
	t.printf("\nAll %d claims hold. It took %.1f s.\n%s\n", t.claims, time.Since(t.start).Seconds(), more)
	return nil
}

func (t *Timeline) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(t.out, format, args...)
}

// MS is d as the time line prints it.
func MS(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }
