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
	"regexp"
	"slices"
	"sync"
	"time"
)

const (
	redissonName    = "Redisson 4.1.0 on the JVM"
	redissonVersion = "redisson-4.1.0"
	// compiling is how long a JVM works before its first measurement of a kind: by
	// then its compiler has seen the code.
	compiling = 3 * time.Second
	// jvmPatience bounds how long a JVM may take for one order, beyond the time that
	// it is told to work.
	jvmPatience = time.Minute
)

// redissonAdapter is the original. Its threads are in a JVM, which gets one order
// for a measurement and counts for itself: a pipe is slower than a lock.
func redissonAdapter() adapter {
	return adapter{
		name: redissonName,
		about: "RLock as it comes, with platform threads for goroutines, on a JVM with its defaults, which works for 3 s before " +
			"its first measurement of each kind; it does not tell what it allocates",
		inside: []string{"hincrby", "hexists", "exists", "pttl", "pexpire", "publish", "get", "set"},
		renews: true,
		shared: true,
		jvm:    true,
	}
}

// findRedisson is the folder where ci/peers.sh has built the program, or says why
// it cannot be run.
func findRedisson() (dir string, err error) {
	peers := os.Getenv("WATCHLOCK_PEERS")
	if peers == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		peers = filepath.Join(cache, "watchlock", "peers")
	}
	dir = filepath.Join(peers, redissonVersion)
	if _, err := os.Stat(filepath.Join(dir, "peer.jar")); err != nil {
		return "", errors.New("it is not built; ci/peers.sh redisson does that")
	}
	if _, err := exec.LookPath("java"); err != nil {
		return "", errors.New("there is no java on the path; ci/peers.sh redisson installs one and builds it")
	}
	return dir, nil
}

// absent are the clients that the plan names and this machine has not, and why.
func (p plan) absent() map[string]string {
	if _, err := findRedisson(); err != nil && p.with.MatchString(redissonName) {
		return map[string]string{redissonName: err.Error()}
	}
	return nil
}

var quotedVersion = regexp.MustCompile(`version "([^"]+)"`)

// javaVersion is that of the JVM on the path, empty if it does not say.
func javaVersion() string {
	text, err := exec.Command("java", "-version").CombinedOutput()
	if found := quotedVersion.FindSubmatch(text); err == nil && found != nil {
		return string(found[1])
	}
	return ""
}

// jvm is a process with Redisson. It does one order after another.
type jvm struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	last  int64
	broke error        // it is of no more use
	warm  map[any]bool // the kinds of work that it has done
}

func startJVM() (*jvm, error) {
	dir, err := findRedisson()
	if err != nil {
		return nil, err
	}
	j := &jvm{warm: map[any]bool{}}
	j.cmd = exec.Command("java", "-cp", filepath.Join(dir, "peer.jar")+":"+filepath.Join(dir, "lib", "*"), "watchlock.interop.MainKt")
	j.cmd.Stderr = os.Stderr
	in, err1 := j.cmd.StdinPipe()
	out, err2 := j.cmd.StdoutPipe()
	if err := errors.Join(err1, err2, j.cmd.Start()); err != nil {
		return nil, err
	}
	j.in, j.out = in, bufio.NewReader(out)
	if err := j.order("hush", nil, nil); err != nil { // what Redisson logs is a result
		j.stop()
		return nil, err
	}
	return j, nil
}

// stop ends the process, which ends with its input.
func (j *jvm) stop() {
	_ = j.in.Close()
	kill := time.AfterFunc(jvmPatience, func() { _ = j.cmd.Process.Kill() })
	defer kill.Stop()
	_ = j.cmd.Wait()
}

// say gives an order. Its answer has to be heard before the next one.
func (j *jvm) say(op string, args map[string]any) error {
	if j.broke != nil {
		return j.broke
	}
	j.last++
	request := map[string]any{"id": j.last, "op": op}
	for key, value := range args {
		request[key] = value
	}
	line, err := json.Marshal(request)
	if err == nil {
		_, err = j.in.Write(append(line, '\n'))
	}
	if err != nil {
		j.broke = fmt.Errorf("the JVM is gone: %w", err)
	}
	return j.broke
}

// hear waits for the answer to the order, which works for so long by itself.
func (j *jvm) hear(work time.Duration, value any) error {
	if j.broke != nil {
		return j.broke
	}
	kill := time.AfterFunc(work+jvmPatience, func() { _ = j.cmd.Process.Kill() })
	defer kill.Stop()
	line, err := j.out.ReadBytes('\n')
	if err != nil {
		j.broke = fmt.Errorf("the JVM is gone: %w", err)
		return j.broke
	}
	var answer struct {
		ID             int64
		OK             bool
		Value          json.RawMessage
		Error, Message string
	}
	if err := json.Unmarshal(line, &answer); err != nil || answer.ID != j.last {
		j.broke = fmt.Errorf("the JVM answers %.200q", line)
		return j.broke
	}
	if !answer.OK {
		return fmt.Errorf("the JVM: %s: %s", answer.Error, answer.Message)
	}
	if value == nil {
		return nil
	}
	return json.Unmarshal(answer.Value, value)
}

func (j *jvm) order(op string, args map[string]any, value any) error {
	if err := j.say(op, args); err != nil {
		return err
	}
	return j.hear(0, value)
}

// leave closes the clients of the last measurement. It tells what Redisson has
// logged until then.
func (j *jvm) leave() error {
	var logged, closing []string
	err := errors.Join(j.order("log", nil, &logged), j.order("leave", nil, nil), j.order("log", nil, &closing))
	if len(logged) > 0 {
		err = errors.Join(err, fmt.Errorf("logged by Redisson: %q", logged[0]))
	}
	return err
}

// warmUp is how long the JVM works before a measurement of a kind.
func (j *jvm) warmUp(p plan, kind any) time.Duration {
	if j.warm[kind] || p.smoke {
		return p.warmUp()
	}
	j.warm[kind] = true
	return max(compiling, p.warmUp())
}

// lastingJVM serves all measurements that need one JVM: an idle one costs the
// others nothing, a new one would be slow.
var lastingJVM struct {
	mu  sync.Mutex
	jvm *jvm
}

func theJVM() (*jvm, error) {
	l := &lastingJVM
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.jvm != nil && l.jvm.broke == nil {
		return l.jvm, nil
	}
	if l.jvm != nil {
		l.jvm.stop()
	}
	var err error
	l.jvm, err = startJVM()
	return l.jvm, err
}

func stopTheJVM() {
	l := &lastingJVM
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.jvm != nil {
		l.jvm.stop()
		l.jvm = nil
	}
}

// jvmCrowd is a crowd of threads in a JVM.
type jvmCrowd struct{ j *jvm }

// gatherInJVM starts the crowd. The witness is the file of a sharedWitness; it is
// not used when each thread has a lock of its own.
func (c crowd) gatherInJVM(j *jvm, t trial, witness string) (jvmCrowd, error) {
	return jvmCrowd{j}, j.order("gather", map[string]any{
		"address": "redis://" + t.srv.addr, "name": t.name, "threads": c.goroutines, "section": c.section.Nanoseconds(),
		"own": number(c.own), "interruptibly": number(c.cancellable), "witness": witness,
	}, nil)
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (c jvmCrowd) begin() error { return c.j.order("measure", nil, nil) }

func (c jvmCrowd) end() (turns, error) {
	if err := c.j.say("finish", nil); err != nil {
		return turns{}, err
	}
	return c.hearTurns(0)
}

func (c jvmCrowd) close() error { return c.j.leave() }

// turns are what a crowd had, in the measured span and in all.
type turns struct {
	outcome outcome
	entered int64
	asleep  int
}

// hearTurns waits for the answer to an order that ends a measurement.
func (c jvmCrowd) hearTurns(work time.Duration) (turns, error) {
	var answer struct {
		Served  []int64
		Within  time.Duration
		Waits   [][2]int64 // nanoseconds, and how often
		Longest time.Duration
		Entered int64
		Asleep  int
		Broken  string
	}
	if err := c.j.hear(work, &answer); err != nil {
		return turns{}, err
	}
	o := outcome{Served: answer.Served, Within: answer.Within}
	for _, w := range answer.Waits {
		o.Waits.Counts[bucket(time.Duration(w[0]))] += uint32(w[1])
		o.Waits.N += w[1]
	}
	o.Waits.Max = answer.Longest
	var err error
	if answer.Broken != "" {
		err = &brokenError{answer.Broken}
	}
	return turns{o, answer.Entered, answer.Asleep}, err
}

// freshWitness is a new shared witness, and its file.
func (t trial) freshWitness() (*witness, string, error) {
	path := filepath.Join(t.srv.dir, "witness")
	_ = os.Remove(path)
	seen, err := sharedWitness(path)
	return seen, path, err
}

// measureInJVM is measure with threads of a JVM.
func (c crowd) measureInJVM(t trial) (figures, error) {
	j, err := theJVM()
	if err != nil {
		return nil, err
	}
	f, _, err := c.measureInJVMs(t, []*jvm{j})
	return f, err
}

// measureInJVMs measures a crowd in each of the JVMs, all on one lock. It returns
// how many sections each had.
func (c crowd) measureInJVMs(t trial, jvms []*jvm) (f figures, each []int64, err error) {
	seen, path, err := t.freshWitness()
	if err != nil {
		return nil, nil, err
	}
	crowds, failures := make([]jvmCrowd, len(jvms)), make([]error, len(jvms))
	defer func() {
		for _, g := range crowds {
			err = errors.Join(err, g.close())
		}
	}()
	var all sync.WaitGroup
	var warmUp time.Duration
	for i, j := range jvms {
		all.Go(func() { crowds[i], failures[i] = c.gatherInJVM(j, t, path) })
		warmUp = max(warmUp, j.warmUp(t.plan, c))
	}
	all.Wait()
	if err := errors.Join(failures...); err != nil {
		return nil, nil, err
	}
	pause(warmUp)
	f = figures{}
	span, err := t.bookJVMs(jvms, func() error {
		for _, g := range crowds {
			if err := g.begin(); err != nil {
				return err
			}
		}
		pause(t.plan.span)
		for _, g := range crowds {
			if err := g.j.order("measured", nil, nil); err != nil {
				return err
			}
		}
		return nil
	})
	had, each, err1 := finishAll(crowds)
	if err := errors.Join(err, err1, t.connections(f)); err != nil {
		return nil, nil, err
	}
	if !c.own {
		if err := seen.check(had.entered); err != nil {
			return nil, nil, err
		}
	}
	span.into(f, t, had.outcome.sum())
	had.outcome.into(f, span.after.at.Sub(span.before.at), c.section > 0)
	return f, each, asleepError(had.asleep)
}

// finishAll ends the crowds at once, and adds up what they had.
func finishAll(crowds []jvmCrowd) (all turns, each []int64, err error) {
	for _, g := range crowds {
		err = errors.Join(err, g.j.say("finish", nil))
	}
	for _, g := range crowds {
		its, err1 := g.hearTurns(0)
		err = errors.Join(err, err1)
		each = append(each, its.outcome.sum())
		all.outcome.Served = append(all.outcome.Served, its.outcome.Served...)
		all.outcome.Within += its.outcome.Within
		all.outcome.Waits.merge(&its.outcome.Waits)
		all.entered += its.entered
		all.asleep += its.asleep
	}
	return all, each, err
}

// jvmSpan is the books of a measurement in JVMs.
type jvmSpan struct {
	before, after books
	cpu           time.Duration // of the JVMs
}

// bookJVMs opens the books, does the work, and closes them.
func (t trial) bookJVMs(jvms []*jvm, work func() error) (s jvmSpan, err error) {
	cpu := func() (sum time.Duration, err error) {
		for _, j := range jvms {
			one, err1 := processCPU(j.cmd.Process.Pid)
			sum, err = sum+one, errors.Join(err, err1)
		}
		return sum, err
	}
	cpuBefore, err1 := cpu()
	var err2, err3, err4, err5 error
	s.before, err2 = t.begin()
	err3 = work()
	s.after, err4 = t.end()
	s.cpu, err5 = cpu()
	s.cpu -= cpuBefore
	return s, errors.Join(err1, err2, err3, err4, err5)
}

// into writes what each of n sections took.
func (s jvmSpan) into(f figures, t trial, n int64) {
	t.perOperation(f, s.before, s.after, usage{CPU: s.cpu}, n)
	delete(f, allocs)
	delete(f, allocated)
	// The release script deletes the lock, and Redisson sends a DEL of its own
	// after it: of those, the books have the sum.
	f[sent]--
}

// measureInJVMs is measure with a JVM for each process. They are new ones.
func (p processes) measureInJVMs(t trial) (figures, error) {
	jvms, failures := make([]*jvm, p.number), make([]error, p.number)
	var all sync.WaitGroup
	for i := range jvms {
		all.Go(func() { jvms[i], failures[i] = startJVM() })
	}
	all.Wait()
	defer func() {
		for _, j := range jvms {
			if j != nil {
				j.stop()
			}
		}
	}()
	if err := errors.Join(failures...); err != nil {
		return nil, err
	}
	f, each, err := crowd{goroutines: p.goroutines}.measureInJVMs(t, jvms)
	if f == nil {
		return nil, err
	}
	var sum int64
	for _, n := range each {
		sum += n
	}
	f[shares] = float64(slices.Max(each)-slices.Min(each)) / (float64(max(sum, 1)) / float64(p.number))
	return f, err
}

// handoffInJVM is handoff between two clients of one JVM.
func handoffInJVM(t trial) (f figures, err error) {
	j, err := theJVM()
	if err != nil {
		return nil, err
	}
	seen, path, err := t.freshWitness()
	if err != nil {
		return nil, err
	}
	pair := jvmCrowd{j}
	defer func() { err = errors.Join(err, pair.close()) }()
	err = j.order("pair", map[string]any{"address": "redis://" + t.srv.addr, "name": t.name, "witness": path}, nil)
	if err != nil {
		return nil, err
	}
	play := func(d time.Duration) (turns, error) {
		if err := j.say("handoffs", map[string]any{"nanos": d.Nanoseconds()}); err != nil {
			return turns{}, err
		}
		return pair.hearTurns(d)
	}
	first, err := play(j.warmUp(t.plan, "handoff"))
	if err != nil {
		return nil, err
	}
	var its turns
	span, err := t.bookJVMs([]*jvm{j}, func() (err error) {
		its, err = play(handoffs * t.plan.span)
		return err
	})
	f = figures{}
	if err := errors.Join(err, asleepError(its.asleep), seen.check(first.entered+its.entered), t.connections(f)); err != nil {
		return nil, err
	}
	span.into(f, t, its.entered)
	delete(f, rate)
	its.outcome.Waits.into(f)
	return f, nil
}
