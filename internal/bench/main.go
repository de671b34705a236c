package main

import (
	"encoding/json"
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
	if workIfAsked() {
		return
	}
	if err := start(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
		os.Exit(1)
	}
}

// settings are what the command line says.
type settings struct {
	plan    plan
	out     string
	json    bool
	list    bool
	program string
}

func parse(args []string, stderr io.Writer) (settings, error) {
	var s settings
	var only, with string
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&only, "only", "", "run the scenarios that match `regexp`")
	flags.StringVar(&with, "with", "", "run the clients that match `regexp`")
	flags.IntVar(&s.plan.rounds, "rounds", 5, "rounds of each scenario, three times as many of the uncontended ones; fewer than 5 tell no differences")
	flags.DurationVar(&s.plan.span, "span", time.Second, "how long each measurement takes")
	flags.StringVar(&s.out, "out", "", "the `folder` for results.md, results.json and the plots; default: a new one for temporary files")
	flags.BoolVar(&s.json, "json", false, "print the results as JSON instead of the table")
	flags.BoolVar(&s.plan.smoke, "smoke", false, "run everything once and briefly, to see that it works")
	flags.BoolVar(&s.list, "list", false, "list scenarios and clients")
	flags.StringVar(&s.program, "server", "", "the redis-server `program`; default: redis70 in $WATCHLOCK_SERVERS, else the one on the path")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if flags.NArg() > 0 {
		return s, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if s.plan.rounds < 1 || s.plan.span < 10*time.Millisecond {
		return s, errors.New("at least 1 round of 10ms")
	}
	var err1, err2 error
	s.plan.only, err1 = regexp.Compile(only)
	s.plan.with, err2 = regexp.Compile(with)
	s.plan.crowdLimit = 10_000
	if s.plan.smoke {
		s.plan = s.plan.smokePlan()
	}
	return s, errors.Join(err1, err2)
}

func start(args []string, stdout, stderr io.Writer) error {
	s, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if s.list {
		return list(s.plan, stdout)
	}
	if len(s.plan.scenarios()) == 0 || len(s.plan.adapters()) == 0 {
		return errors.New("nothing matches: see -list")
	}
	program, err := serverProgram(s.program)
	if err != nil {
		return err
	}
	srv, err := startServer(program)
	if err != nil {
		return err
	}
	defer srv.stop()
	defer stopOnSignal(srv)()
	return measure(s, srv, args, stdout, stderr)
}

// stopOnSignal stops the server when the program is told to end.
func stopOnSignal(srv *server) (undo func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		if _, ok := <-signals; ok {
			srv.stop()
			os.Exit(130)
		}
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
	}
}

// measure runs the plan, writes what there is after each scenario, and prints it
// all at the end.
func measure(s settings, srv *server, args []string, stdout, stderr io.Writer) error {
	dir := s.out
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "watchlock-bench-results"); err != nil {
			return err
		}
	}
	a, err := newAccount(s.plan, srv, args)
	if err != nil {
		return err
	}
	for name, why := range a.Absent {
		_, _ = fmt.Fprintf(stderr, "%s is left out: %s\n", name, why)
	}
	defer stopTheJVM()
	t := &tour{plan: s.plan, srv: srv, progress: newProgress(stderr), keep: func(results []*result) error {
		a.Scenarios = results
		return a.write(dir)
	}}
	if _, err = t.run(); err != nil {
		return err
	}
	text := a.markdown()
	if s.json {
		raw, err := json.MarshalIndent(a, "", " ")
		if err != nil {
			return err
		}
		text = string(raw) + "\n"
	}
	if _, err := io.WriteString(stdout, text); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(stderr, "results are in %s\n", dir)
	return failure(a.Scenarios)
}

func list(p plan, out io.Writer) error {
	var text strings.Builder
	for _, s := range scenarios(p) {
		fmt.Fprintf(&text, "scenario  %-26s %s\n", s.id, s.title)
	}
	for _, a := range adapters() {
		fmt.Fprintf(&text, "client    %-26s %s\n", a.name, a.about)
	}
	_, err := io.WriteString(out, text.String())
	return err
}
