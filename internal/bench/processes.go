package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

// processes are several crowds on one lock, each in a process of its own: this
// program once more, with a job in its environment.
type processes struct {
	number     int
	goroutines int
}

// jobVariable holds the job of a child.
const jobVariable = "WATCHLOCK_BENCH_JOB"

// job is what a child has to do.
type job struct {
	Adapter    string
	Addr       string
	Name       string
	Goroutines int
	Warm, Span time.Duration
	Witness    string
}

// report is what a child answers.
type report struct {
	Outcome outcome
	Usage   usage
	Entered int64
	Asleep  int // were not woken
	Failure string
}

// workIfAsked does a child's job and reports whether this process is one.
func workIfAsked() bool {
	text := os.Getenv(jobVariable)
	if text == "" {
		return false
	}
	var j job
	var r report
	err := json.Unmarshal([]byte(text), &j)
	if err == nil {
		r, err = j.work(os.Stdin, os.Stdout)
	}
	if err != nil {
		r.Failure = err.Error()
	}
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		os.Exit(1)
	}
	return true
}

// work says when it is ready, starts at the first line of in, and ends at once
// when in does.
func (j job) work(in io.Reader, out io.Writer) (r report, err error) {
	i := slices.IndexFunc(adapters(), func(a adapter) bool { return a.name == j.Adapter })
	if i < 0 {
		return r, fmt.Errorf("no adapter %q", j.Adapter)
	}
	a := adapters()[i]
	seen, err := sharedWitness(j.Witness)
	if err != nil {
		return r, err
	}
	s, err := a.open(conditions{j.Addr, lockTTL})
	if err != nil {
		return r, err
	}
	defer s.close()
	if _, err := fmt.Fprintln(out, "ready"); err != nil {
		return r, err
	}
	lines := bufio.NewReader(in)
	if _, err := lines.ReadString('\n'); err != nil {
		return r, err
	}
	go func() {
		_, _ = lines.ReadByte()
		os.Exit(1) // the parent is gone
	}()
	g := crowd{goroutines: j.Goroutines}.gather(a, s, j.Name, seen)
	pause(j.Warm)
	before := readUsage()
	g.phase.Store(measuring)
	pause(j.Span)
	r.Usage = readUsage().since(before)
	r.Asleep, err = g.finish()
	r.Outcome, r.Entered = outcomeOf(g), g.entered()
	return r, err
}

// child is a process at work.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (j job) start() (*child, error) {
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.Command(program)}
	c.cmd.Env = append(os.Environ(), jobVariable+"="+string(text))
	c.cmd.Stderr = os.Stderr
	in, err1 := c.cmd.StdinPipe()
	out, err2 := c.cmd.StdoutPipe()
	if err := errors.Join(err1, err2, c.cmd.Start()); err != nil {
		return nil, err
	}
	c.in, c.out = in, bufio.NewReader(out)
	line, err := c.out.ReadString('\n')
	if err == nil && line != "ready\n" {
		err = fmt.Errorf("a process says %.200q", line)
	}
	return c, err
}

func (c *child) report() (r report, err error) {
	if err := json.NewDecoder(c.out).Decode(&r); err != nil {
		return r, err
	}
	if r.Failure != "" {
		return r, errors.New(r.Failure)
	}
	return r, nil
}

// end waits for the child, which ends with its input if it has not yet.
func (c *child) end() {
	_ = c.in.Close()
	_ = c.cmd.Wait()
}

func (p processes) measure(t trial) (figures, error) {
	if t.adapter.jvm {
		return p.measureInJVMs(t)
	}
	j := job{t.adapter.name, t.srv.addr, t.name, p.goroutines, t.plan.warmUp(), t.plan.span, filepath.Join(t.srv.dir, "witness")}
	_ = os.Remove(j.Witness)
	seen, err := sharedWitness(j.Witness)
	if err != nil {
		return nil, err
	}
	var children []*child
	defer func() {
		for _, c := range children {
			c.end()
		}
	}()
	for range p.number {
		c, err := j.start()
		if c != nil {
			children = append(children, c)
		}
		if err != nil {
			return nil, err
		}
	}
	for _, c := range children {
		if _, err := fmt.Fprintln(c.in, "go"); err != nil {
			return nil, err
		}
	}
	pause(j.Warm)
	before, err1 := t.begin()
	pause(j.Span)
	after, err2 := t.end()
	f := figures{}
	err3 := t.connections(f)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	return f, p.collect(t, f, children, before, after, seen)
}

// collect adds the children's reports up.
func (p processes) collect(t trial, f figures, children []*child, before, after books, seen *witness) error {
	var all outcome
	var used usage
	var entered int64
	var each []int64
	asleep := 0
	for _, c := range children {
		r, err := c.report()
		if err != nil {
			return err
		}
		each = append(each, r.Outcome.sum())
		all.Served = append(all.Served, r.Outcome.Served...)
		all.Waits.merge(&r.Outcome.Waits)
		asleep += r.Asleep
		used, entered = used.plus(r.Usage), entered+r.Entered
	}
	t.perOperation(f, before, after, used, all.sum())
	all.into(f, t.plan.span, false)
	f[shares] = float64(slices.Max(each)-slices.Min(each)) / (float64(max(all.sum(), 1)) / float64(p.number))
	return errors.Join(seen.check(entered), asleepError(asleep))
}
