package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"
)

func main() {
	if serveIfAsked() {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := start(ctx, os.Args[1:])
	stop()
	if err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
		os.Exit(1)
	}
}

// plan is what to run.
type plan struct {
	rounds        int
	span          time.Duration // of a measurement
	only, with    *regexp.Regexp
	out           string        // a folder
	many          int           // waiters, and held locks, of the largest scenarios
	settle, watch time.Duration // for waiters at rest
	heldTTL       time.Duration // of locks whose renewal is watched
	// drain is for how long nobody need enter until it is said that those who wait
	// were forgotten.
	drain time.Duration
	smoke bool // a short run that shows that everything works
}

// usual is a plan without what the command line says.
var usual = plan{many: 10_000, settle: 6 * time.Second, watch: 10 * time.Second, drain: 5 * time.Second, heldTTL: lockTTL}

func parse(args []string) (plan, error) {
	p := usual
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	only := flags.String("only", "", "run the scenarios that match `regexp`")
	with := flags.String("with", "", "run the clients that match `regexp`")
	flags.IntVar(&p.rounds, "rounds", decidingRounds, "rounds of each scenario, three times as many of the uncontended ones; fewer than 5 tell no differences")
	flags.DurationVar(&p.span, "span", decidingSpan, "how long each measurement takes; less than 2s decides no goals")
	flags.StringVar(&p.out, "out", "", "the `folder` for results.md, results.json and the plots; default: a new one for temporary files")
	if err := flags.Parse(args); err != nil {
		return p, err
	}
	if flags.NArg() > 0 || p.rounds < 1 || p.span < 10*time.Millisecond {
		return p, errors.New("no arguments but flags, and at least 1 round of 10ms")
	}
	var err1, err2 error
	p.only, err1 = regexp.Compile(*only)
	p.with, err2 = regexp.Compile(*with)
	return p, errors.Join(err1, err2)
}

// start measures what the command line asks for, until ctx ends.
func start(ctx context.Context, args []string) error {
	p, err := parse(args)
	if err != nil {
		return err
	}
	if p.out == "" {
		if p.out, err = os.MkdirTemp("", "watchlock-bench-results"); err != nil {
			return err
		}
	}
	command := strings.TrimSpace("go run -C internal/bench . " + strings.Join(args, " "))
	a, err := measure(ctx, p, command, os.Stderr)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(os.Stdout, a.markdown()); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "results are in", p.out)
	return a.failure()
}

// pause lets d pass.
func pause(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // to let time pass is what a benchmark does
}
