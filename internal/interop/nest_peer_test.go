package interop

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

const nestTimeout = 30 * time.Second // for the service to start, or to answer

// nest is a NestJS service with ioredis that locks by the recipe of SET NX PX. It
// is asked by HTTP as its users do, and by lines of JSON where a test needs more.
type nest struct {
	t       testing.TB
	process *exec.Cmd
	url     string
	http    *http.Client
	exited  chan struct{} // closed when the process is gone and all is read
	log     bytes.Buffer  // of its errors, to be read after exited

	mu      sync.Mutex
	stdin   io.WriteCloser
	last    int
	waiting map[int]chan nestReply
}

// nestReply is the answer to one line.
type nestReply struct {
	ID      int             `json:"id"`
	OK      bool            `json:"ok"`
	Value   json.RawMessage `json:"value"`
	Error   string          `json:"error"` // the exception's name
	Message string          `json:"message"`
}

// nestArgs are the arguments of an operation. Times are in milliseconds.
type nestArgs map[string]any

var errNestGone = errors.New("the Nest service has ended")

// startNest returns a service that keeps its locks in s and does its sections in
// the folder of sec. It is killed when the test ends.
func startNest(t *testing.T, s *redistest.Server, sec section) *nest {
	t.Helper()
	if s.Network() == "tcp" {
		return startNestOn(t, "redis://"+s.Addr(), sec)
	}
	return startNestOn(t, s.Addr(), sec)
}

// startNestOn is startNest for a Redis that url says how to reach: a URL, or a
// socket's path.
func startNestOn(t *testing.T, url string, sec section) *nest {
	t.Helper()
	n := &nest{t: t, http: &http.Client{Timeout: nestTimeout}, exited: make(chan struct{}), waiting: make(map[int]chan nestReply)}
	dir := peerDir(t, "nest")
	n.process = exec.Command(filepath.Join(dir, "node"), filepath.Join(dir, "dist", "main.js"))
	n.process.Env = append(os.Environ(), "REDIS_URL="+url, "SECTION_FOLDER="+string(sec))
	n.process.Stderr = &n.log
	var err error
	if n.stdin, err = n.process.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := n.process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	ready := make(chan nestReply, 1)
	n.waiting[0] = ready
	if err := n.process.Start(); err != nil {
		t.Fatalf("the Nest service: %v", err)
	}
	go n.read(stdout)
	t.Cleanup(n.close)
	if err := json.Unmarshal(n.await(ready).Value, &n.url); err != nil {
		t.Fatalf("the Nest service's URL: %v", err)
	}
	return n
}

// read hands out replies until the process ends.
func (n *nest) read(stdout io.Reader) {
	defer close(n.exited)
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		var r nestReply
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			n.t.Errorf("the Nest service said %q: %v", lines.Text(), err)
			continue
		}
		n.mu.Lock()
		to := n.waiting[r.ID]
		delete(n.waiting, r.ID)
		n.mu.Unlock()
		if to == nil {
			n.t.Errorf("the Nest service answered what nobody asked: %q", lines.Text())
			continue
		}
		to <- r
	}
	_ = n.process.Wait() // most are killed
}

func (n *nest) close() {
	n.kill()
	if n.log.Len() > 0 {
		n.t.Logf("errors of the Nest service:\n%s", n.log.String())
	}
	n.http.CloseIdleConnections()
}

// kill ends the process as a crash does, and returns when it is gone.
func (n *nest) kill() {
	_ = n.process.Process.Kill()
	<-n.exited
}

// start asks for an operation on the lock called name. The channel gets the reply.
func (n *nest) start(op, name string, args nestArgs) <-chan nestReply {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last++
	request := nestArgs{"id": n.last, "op": op, "name": name}
	for k, v := range args {
		request[k] = v
	}
	line, err := json.Marshal(request)
	if err != nil {
		n.t.Fatal(err)
	}
	reply := make(chan nestReply, 1)
	n.waiting[n.last] = reply
	if _, err := n.stdin.Write(append(line, '\n')); err != nil {
		n.t.Fatalf("%v: %v", errNestGone, err)
	}
	return reply
}

// await returns the reply of an operation that was started.
func (n *nest) await(reply <-chan nestReply) nestReply {
	n.t.Helper()
	timer := time.NewTimer(nestTimeout)
	defer timer.Stop()
	select {
	case r := <-reply:
		return r
	case <-n.exited:
		n.t.Fatalf("%v: %s", errNestGone, n.log.String())
	case <-timer.C:
		n.t.Fatal("the Nest service does not answer")
	}
	return nestReply{}
}

func (n *nest) call(op, name string, args nestArgs) nestReply {
	n.t.Helper()
	return n.await(n.start(op, name, args))
}

// lock takes the lock called name for ttl, and returns its token.
func (n *nest) lock(name string, ttl time.Duration) (token string, err error) {
	n.t.Helper()
	r := n.call("lock", name, nestArgs{"ttl": ttl.Milliseconds()})
	switch {
	case r.Error == "ConflictException":
		return "", errBusy
	case !r.OK:
		return "", fmt.Errorf("%s: %s", r.Error, r.Message)
	}
	return token, json.Unmarshal(r.Value, &token)
}

// unlock reports whether the key was still the token's and was deleted.
func (n *nest) unlock(name, token string) (mine bool, err error) {
	n.t.Helper()
	r := n.call("unlock", name, nestArgs{"token": token})
	if !r.OK {
		return false, fmt.Errorf("%s: %s", r.Error, r.Message)
	}
	return mine, json.Unmarshal(r.Value, &mine)
}

// orderLock is the lock under which an order is shipped.
func orderLock(id string) string { return "lock:order:" + id }

// ship posts an order, whose section lasts at least hold, under a lock that lasts
// for ttl. It returns the status and, when that is 201, the number of the section.
func (n *nest) ship(ctx context.Context, id string, hold, ttl time.Duration) (status, shipped int, err error) {
	body, err := json.Marshal(nestArgs{"holdMs": hold.Milliseconds(), "ttlMs": ttl.Milliseconds()})
	if err != nil {
		return 0, 0, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, n.url+"/orders/"+id+"/ship", bytes.NewReader(body))
	if err != nil {
		return 0, 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := n.http.Do(request)
	if err != nil {
		return 0, 0, err
	}
	defer response.Body.Close()
	var answer struct {
		Shipped int `json:"shipped"`
	}
	err = json.NewDecoder(response.Body).Decode(&answer)
	return response.StatusCode, answer.Shipped, err
}

// shipment is the answer to an order that was posted.
type shipment struct {
	status, shipped int
	err             error
	answered        time.Time
}

// startShipping posts an order and returns when its section holds the lock. The
// channel gets the answer.
func (n *nest) startShipping(ctx context.Context, s *redistest.Server, id string, hold, ttl time.Duration) <-chan shipment {
	n.t.Helper()
	answer := make(chan shipment, 1)
	go func() {
		var a shipment
		a.status, a.shipped, a.err = n.ship(ctx, id, hold, ttl)
		a.answered = time.Now()
		answer <- a
	}()
	waitUntil(n.t, "the Nest service holds the lock", func() bool { return exists(n.t, s, orderLock(id)) })
	return answer
}
