package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// timeline prints who did what and when, and keeps account of the claims.
type timeline struct {
	start time.Time

	mu sync.Mutex
	// guarded by mu
	out    io.Writer
	acts   int
	claims int
	failed []string
}

// act begins a new act.
func (t *timeline) act(title string, about ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.acts++
	t.printf("\n%d. %s\n", t.acts, title)
	for _, line := range about {
		t.printf("   %s\n", line)
	}
	t.printf("\n%7s  %-9s  %s\n", "ms", "who", "what")
}

// say prints one line of the time line. The clock is read under the mutex, so
// that the lines come in their order.
func (t *timeline) say(who, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.printf("%7d  %-9s  %s\n", time.Since(t.start).Milliseconds(), who, fmt.Sprintf(format, args...))
}

// claim says what an act proved, or that it did not.
func (t *timeline) claim(holds bool, format string, args ...any) {
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

// finish prints the last line. The error names every claim that did not hold.
func (t *timeline) finish() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.failed) > 0 {
		return fmt.Errorf("%d of %d claims do not hold: %s", len(t.failed), t.claims, strings.Join(t.failed, "; "))
	}
	t.printf("\nAll %d claims hold. It took %.1f s.\n", t.claims, time.Since(t.start).Seconds())
	t.printf("Each act is a file to read in examples/quickstart. README.md tells the rest.\n")
	return nil
}

func (t *timeline) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(t.out, format, args...)
}

// ms is d as the time line prints it.
func ms(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }
