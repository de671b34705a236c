package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// process is one that has a crowd: this program once more, or a JVM. It does one
// order after another, each a line of JSON, and ends with its input.
type process struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *json.Decoder
	last  int64
	broke error        // it is of no more use
	leave func() error // after the last order of a measurement
}

// order is what a process has to do.
type order struct {
	ID            int64         `json:"id"`
	Op            string        `json:"op"`
	Adapter       string        `json:"adapter,omitempty"`
	Address       string        `json:"address,omitempty"`
	Name          string        `json:"name,omitempty"`
	Threads       int           `json:"threads,omitempty"`
	Section       time.Duration `json:"section,omitempty"`
	Own           int           `json:"own,omitempty"`           // not 0: each has a lock of its own
	Interruptibly int           `json:"interruptibly,omitempty"` // not 0: their context can end
	Witness       string        `json:"witness,omitempty"`       // the file of a shared one
	Nanos         time.Duration `json:"nanos,omitempty"`
}

type answer struct {
	ID             int64
	OK             bool
	Value          json.RawMessage
	Error, Message string
}

// patience bounds how long a process may take for an order, beyond the time that
// it is told to work.
const patience = time.Minute

func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd}
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	p.in, p.out = in, json.NewDecoder(out)
	return p, errors.Join(err1, err2, cmd.Start())
}

// startChild runs this program once more.
func startChild() (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), childVariable+"=1")
	p, err := startProcess(cmd)
	p.leave = func() error {
		p.stop()
		return nil
	}
	return p, err
}

// do gives an order and waits for the answer, which goes to value unless it is nil.
func (p *process) do(o order, value any) error {
	if p.broke != nil {
		return p.broke
	}
	p.last++
	o.ID = p.last
	kill := time.AfterFunc(o.Nanos+patience, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	var a answer
	err := json.NewEncoder(p.in).Encode(o)
	if err == nil {
		err = p.out.Decode(&a)
	}
	switch {
	case err != nil || a.ID != o.ID:
		p.broke = fmt.Errorf("%s does not answer: %w", p.cmd.Path, errors.Join(err, io.ErrUnexpectedEOF))
		return p.broke
	case !a.OK:
		return fmt.Errorf("%s: %s %s", o.Op, a.Error, a.Message)
	case value == nil:
		return nil
	}
	return json.Unmarshal(a.Value, value)
}

// stop ends the process.
func (p *process) stop() {
	_ = p.in.Close()
	kill := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	_ = p.cmd.Wait()
}

// inEach does something in all processes at once.
func inEach(list []*process, do func(i int, p *process) error) error {
	failures := make([]error, len(list))
	var all sync.WaitGroup
	for i, p := range list {
		all.Go(func() { failures[i] = do(i, p) })
	}
	all.Wait()
	return errors.Join(failures...)
}
