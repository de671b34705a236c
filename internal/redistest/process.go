package redistest

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// process is a running child. Its exited channel is closed when it is gone and
// has been waited for.
type process struct {
	os     *os.Process
	exited chan struct{}
}

// startProcess runs a program in a process group of its own. The child is
// killed when this process dies, on Linux however it does.
func startProcess(program string, args []string, output *os.File) (*process, error) {
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = childAttributes()
	p := &process{exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel sends Pdeathsig when the thread that forked ends, and Go
		// ends threads at will: this one is kept for as long as the child lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		p.os = cmd.Process
		started <- err
		if err != nil {
			return
		}
		_ = cmd.Wait() // how it ended does not matter: most are killed
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) alive() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// signal sends a signal; a process that is gone already is none of its concern.
func (p *process) signal(sig syscall.Signal) {
	if p.alive() {
		_ = p.os.Signal(sig)
	}
}

// kill ends the process at once and returns when it is gone.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.exited
}

// terminate lets the process, stopped or not, end by itself, and kills it when
// it has not after grace. It returns when the process is gone.
func (p *process) terminate(grace time.Duration) {
	p.signal(syscall.SIGTERM)
	p.signal(syscall.SIGCONT)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-timer.C:
		p.kill()
	}
}
