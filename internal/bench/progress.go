package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// progress tells people how far the run is: on one line of a terminal, else with
// a line for each scenario. Nothing depends on whether they can be told.
type progress struct {
	out      io.Writer
	terminal bool
	began    time.Time
	done     int
	total    int
	title    string
}

func newProgress(out io.Writer) *progress {
	p := &progress{out: out, began: time.Now()}
	if f, ok := out.(*os.File); ok {
		info, err := f.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

func (p *progress) expect(n int) { p.total = n }

func (p *progress) step(title string, round, rounds int, name string) {
	passed := time.Since(p.began).Truncate(time.Second)
	switch {
	case p.terminal:
		_, _ = fmt.Fprintf(p.out, "\r\x1b[K%3d %%  %v  %s  round %d/%d  %s", 100*p.done/max(p.total, 1), passed, title, round, rounds, name)
	case title != p.title:
		_, _ = fmt.Fprintf(p.out, "%3d %%  %v  %s\n", 100*p.done/max(p.total, 1), passed, title)
	}
	p.title = title
	p.done++
}

// note tells of a failure, on a line that stays.
func (p *progress) note(title, name, text string) {
	clear := ""
	if p.terminal {
		clear = "\r\x1b[K"
	}
	_, _ = fmt.Fprintf(p.out, "%s%s: %s: %s\n", clear, title, name, text)
}

func (p *progress) finish() {
	passed := time.Since(p.began).Truncate(time.Second)
	if p.terminal {
		_, _ = fmt.Fprint(p.out, "\r\x1b[K")
	}
	_, _ = fmt.Fprintf(p.out, "100 %%  %v\n", passed)
}
