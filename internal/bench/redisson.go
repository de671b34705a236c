package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

const (
	redissonName    = "Redisson 4.1.0 on the JVM"
	redissonVersion = "redisson-4.1.0"
)

// redissonAdapter is the original. Its threads are in a JVM, which gets one order
// for a measurement and counts for itself: a pipe is slower than a lock.
func redissonAdapter() adapter {
	return adapter{
		name: redissonName,
		about: "RLock as it comes, with platform threads for goroutines, on a JVM with its defaults, which works for 3 s before " +
			"each measurement; it does not tell what it allocates",
		inside: []string{"hincrby", "hexists", "exists", "pttl", "pexpire", "publish", "get", "set"},
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

// jvms are those that have been started and are free: an idle one costs the others
// nothing, a new one would be slow.
type jvms struct{ free []*process }

func (j *jvms) take() (*process, error) {
	if n := len(j.free); n > 0 {
		p := j.free[n-1]
		j.free = j.free[:n-1]
		return p, nil
	}
	dir, err := findRedisson()
	if err != nil {
		return nil, err
	}
	p, err := startProcess(exec.Command("java", "-cp", filepath.Join(dir, "peer.jar")+":"+filepath.Join(dir, "lib", "*"), "watchlock.interop.MainKt"))
	if err != nil {
		return nil, err
	}
	return p, p.do(order{Op: "hush"}, nil) // what Redisson logs is a result
}

// giveBack closes the clients of the last measurement. It tells what Redisson has
// logged until then.
func (j *jvms) giveBack(p *process) error {
	var logged, closing []string
	err := errors.Join(p.do(order{Op: "log"}, &logged), p.do(order{Op: "leave"}, nil), p.do(order{Op: "log"}, &closing))
	if len(logged) > 0 {
		err = errors.Join(err, fmt.Errorf("logged by Redisson: %q", logged[0]))
	}
	if p.broke != nil {
		p.stop()
		return err
	}
	j.free = append(j.free, p)
	return err
}

func (j *jvms) stop() {
	for _, p := range j.free {
		p.stop()
	}
}

// process is one for a crowd of the adapter.
func (t trial) process(a adapter) (*process, error) {
	if !a.jvm {
		return startChild()
	}
	p, err := t.jvms.take()
	if err == nil {
		p.leave = func() error { return t.jvms.giveBack(p) }
	}
	return p, err
}

// handoffInJVM is handoff between two clients of one JVM.
func handoffInJVM(t trial) (f figures, err error) {
	seen, path, err := t.witness()
	if err != nil {
		return nil, err
	}
	p, err := t.process(t.adapter)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.leave()) }()
	if err := p.do(order{Op: "pair", Address: "redis://" + t.srv.addr, Name: t.name, Witness: path}, nil); err != nil {
		return nil, err
	}
	var first, its turns
	err1 := p.do(order{Op: "handoffs", Nanos: t.warmUp()}, &first)
	before, err2 := t.look(p.cmd.Process.Pid)
	err3 := p.do(order{Op: "handoffs", Nanos: t.plan.span}, &its)
	after, err4 := t.look(p.cmd.Process.Pid)
	f = figures{}
	err = errors.Join(err1, err2, err3, err4, asleepError(first.Asleep+its.Asleep), seen.check(first.Entered+its.Entered), t.connections(f))
	if err != nil {
		return nil, err
	}
	t.costs(f, before, after, float64(its.Entered))
	its.into(f)
	return f, nil
}
