package interop

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// replyWait bounds how long any operation of a peer may take.
const replyWait = 30 * time.Second

// redissons are the versions of Redisson that a conversation is held with.
// WATCHLOCK_REDISSONS names fewer, with a comma between.
func redissons() []string {
	all := []string{"4.1.0", "3.52.0"}
	names := os.Getenv("WATCHLOCK_REDISSONS")
	if names == "" {
		return all
	}
	some := strings.Split(names, ",")
	for _, name := range some {
		if !slices.Contains(all, name) {
			panic(fmt.Sprintf("WATCHLOCK_REDISSONS names %q: want some of %v", name, all))
		}
	}
	return some
}

// peerDir is the folder of a peer as ci/peers.sh built it. Without one the
// test is skipped, in CI it fails.
func peerDir(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv("WATCHLOCK_PEERS")
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(cache, "watchlock", "peers")
	}
	dir = filepath.Join(dir, name)
	if _, err := os.Stat(dir); err != nil {
		report := t.Skipf
		if os.Getenv("CI") != "" {
			report = t.Fatalf
		}
		report("no peer %s: run ci/peers.sh (%v)", name, err)
	}
	return dir
}

// jvm is one process with Redisson, which serves any number of clients. Its
// methods are safe for concurrent use.
type jvm struct {
	version string
	process *os.Process
	gone    chan struct{} // closed when its output has ended

	mu      sync.Mutex
	in      io.WriteCloser
	last    int64
	pending map[int64]chan reply
}

// reply is the answer to one request.
type reply struct {
	ID      int64           `json:"id"`
	OK      bool            `json:"ok"`
	Value   json.RawMessage `json:"value"`
	Nanos   int64           `json:"nanos"` // how long the operation took
	At      int64           `json:"at"`    // when it ended, in µs since 1970, on the clock of this machine
	Error   string          `json:"error"` // the exception's class
	Message string          `json:"message"`
}

// peerGone is the error of a reply that a JVM owed when it ended.
const peerGone = "the JVM is gone"

// ended is when the operation ended, on the peer's reading of the clock. It
// leaves out how long the reply was under way.
func (r reply) ended() time.Time { return time.UnixMicro(r.At) }

func (r reply) took() time.Duration { return time.Duration(r.Nanos) }

// value decodes what an operation returned.
func value[T any](t testing.TB, r reply) T {
	t.Helper()
	var v T
	if !r.OK {
		t.Fatalf("the JVM: %s: %s", r.Error, r.Message)
	}
	if err := json.Unmarshal(r.Value, &v); err != nil {
		t.Fatalf("the JVM's %s: %v", r.Value, err)
	}
	return v
}

// startJVM starts a process that ends with the test, for what would disturb
// the others: being killed, being stopped, logging.
func startJVM(t testing.TB, version string) *jvm {
	t.Helper()
	j, err := newJVM(peerDir(t, "redisson-"+version), version)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.kill)
	return j
}

func newJVM(dir, version string) (*jvm, error) {
	cmd := exec.Command("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m",
		"-cp", filepath.Join(dir, "peer.jar")+":"+filepath.Join(dir, "lib", "*"), "watchlock.interop.MainKt")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	j := &jvm{
		version: version, process: cmd.Process, in: in, gone: make(chan struct{}),
		pending: make(map[int64]chan reply),
	}
	go func() {
		defer close(j.gone)
		j.read(out)
		_ = cmd.Wait()
	}()
	return j, nil
}

// read hands out the replies until there are no more.
func (j *jvm) read(out io.Reader) {
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		var r reply
		if err := json.Unmarshal(line, &r); err != nil {
			panic(fmt.Sprintf("the JVM said %q: %v", line, err))
		}
		j.mu.Lock()
		wanted := j.pending[r.ID]
		delete(j.pending, r.ID)
		j.mu.Unlock()
		wanted <- r
	}
	j.mu.Lock()
	owed := j.pending
	j.pending = nil
	j.mu.Unlock()
	for id, wanted := range owed {
		wanted <- reply{ID: id, Error: peerGone}
	}
}

// send makes one request. Its reply comes on the channel, which has room.
func (j *jvm) send(op string, args map[string]any) <-chan reply {
	answer := make(chan reply, 1)
	request := map[string]any{"op": op}
	maps.Copy(request, args)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.last++
	request["id"] = j.last
	line, err := json.Marshal(request)
	if err != nil {
		panic(err)
	}
	if j.pending == nil {
		answer <- reply{ID: j.last, Error: peerGone}
		return answer
	}
	j.pending[j.last] = answer
	// When this fails the process is going, and read answers.
	_, _ = j.in.Write(append(line, '\n'))
	return answer
}

// stop makes the kernel stop the process, cont lets it run on.
func (j *jvm) stop() { _ = j.process.Signal(syscall.SIGSTOP) }

func (j *jvm) cont() { _ = j.process.Signal(syscall.SIGCONT) }

// kill ends the process with SIGKILL and returns when it is gone.
func (j *jvm) kill() {
	_ = j.process.Kill()
	<-j.gone
}

// close ends the process in good order.
func (j *jvm) close() {
	j.mu.Lock()
	_ = j.in.Close()
	j.mu.Unlock()
	<-j.gone
}

// logged takes what Redisson has logged as a warning or an error since the
// last call.
func (j *jvm) logged(t testing.TB) []string {
	t.Helper()
	return value[[]string](t, await(t, j.send("log", nil)))
}

// mustBeQuiet fails the test when Redisson has logged a warning or an error.
func (j *jvm) mustBeQuiet(t testing.TB) {
	t.Helper()
	for _, line := range j.logged(t) {
		t.Errorf("Redisson %s logged: %s", j.version, line)
	}
}

// await returns the reply, or ends the test when it does not come.
func await(t testing.TB, answer <-chan reply) reply {
	t.Helper()
	select {
	case r := <-answer:
		return r
	case <-time.After(replyWait):
		t.Fatalf("the JVM has not answered for %v", replyWait)
		return reply{}
	}
}

var shared struct {
	mu   sync.Mutex
	jvms map[string]*jvm
}

// sharedJVM is the one process of the version for all tests that do no harm
// to it.
func sharedJVM(t testing.TB, version string) *jvm {
	t.Helper()
	dir := peerDir(t, "redisson-"+version)
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if j := shared.jvms[version]; j != nil {
		return j
	}
	j, err := newJVM(dir, version)
	if err != nil {
		t.Fatal(err)
	}
	if shared.jvms == nil {
		shared.jvms = make(map[string]*jvm)
	}
	shared.jvms[version] = j
	return j
}

func closeSharedJVMs() {
	for _, j := range shared.jvms {
		j.close()
	}
}

// jvmOptions say how a Redisson client is configured. The zero value is its
// default, on one server.
type jvmOptions struct {
	watchdog time.Duration // lockWatchdogTimeout
	prefix   string        // of a NameMapper
	cluster  []string      // addresses of nodes, instead of a server
	sharded  string        // auto, on or off, on a cluster
}

// jvmClient is one Redisson client. Its methods belong to the goroutine of
// the test, but for start.
type jvmClient struct {
	*jvm
	t    testing.TB
	name string
	id   string // the UUID that starts its owners
}

// open makes a client of s, which is shut down when the test ends; s may be
// nil when opts names a cluster.
func (j *jvm) open(t testing.TB, s *redistest.Server, opts ...jvmOptions) *jvmClient {
	t.Helper()
	var o jvmOptions
	if len(opts) > 0 {
		o = opts[0]
	}
	clients.mu.Lock()
	clients.last++
	c := &jvmClient{jvm: j, t: t, name: fmt.Sprintf("c%d", clients.last)}
	clients.mu.Unlock()
	args := map[string]any{"client": c.name}
	if s != nil {
		if s.Network() != "tcp" {
			t.Fatal("Redisson speaks TCP: start the server WithTCP")
		}
		args["address"] = "redis://" + s.Addr()
	}
	if o.watchdog != 0 {
		args["watchdog"] = o.watchdog.Milliseconds()
	}
	if o.prefix != "" {
		args["prefix"] = o.prefix
	}
	if o.cluster != nil {
		nodes := make([]string, len(o.cluster))
		for i, addr := range o.cluster {
			nodes[i] = "redis://" + addr
		}
		args["cluster"] = nodes
	}
	if o.sharded != "" {
		args["sharded"] = o.sharded
	}
	c.id = value[string](t, await(t, j.send("open", args)))
	t.Cleanup(func() { await(t, j.send("close", map[string]any{"client": c.name})) })
	return c
}

var clients struct {
	mu   sync.Mutex
	last int
}

// start makes a request whose reply comes on the channel, for what blocks.
// args are keys, each with its value after it.
func (c *jvmClient) start(op, thread, name string, args ...any) <-chan reply {
	request := map[string]any{"client": c.name, "thread": thread, "name": name}
	for i := 0; i < len(args); i += 2 {
		request[args[i].(string)] = args[i+1]
	}
	return c.send(op, request)
}

// call makes a request and returns its reply, or ends the test when none
// comes.
func (c *jvmClient) call(op, thread, name string, args ...any) reply {
	c.t.Helper()
	return await(c.t, c.start(op, thread, name, args...))
}

// must is call, and ends the test when the operation raised an exception.
func (c *jvmClient) must(op, thread, name string, args ...any) reply {
	c.t.Helper()
	r := c.call(op, thread, name, args...)
	if !r.OK {
		c.t.Fatalf("the JVM's %s of %q on %s: %s: %s", op, name, thread, r.Error, r.Message)
	}
	return r
}

// owner is the field of the thread in the hash of a lock that it holds.
func (c *jvmClient) owner(thread string) string {
	c.t.Helper()
	return fmt.Sprintf("%s:%d", c.id, value[int64](c.t, c.must("threadId", thread, "")))
}

// onEachPeer holds one conversation on each server family with each version
// of Redisson, one after another, each with a server of its own and the
// shared JVM. At the end Redisson must have logged nothing, and the outcome
// goes into the table.
func onEachPeer(t *testing.T, f func(t *testing.T, s *redistest.Server, j *jvm)) {
	eachPeer(t, false, f)
}

// onEachPeerAtOnce is onEachPeer in parallel with itself and with the other
// tests that are parallel, for what mostly waits and measures nothing short.
func onEachPeerAtOnce(t *testing.T, f func(t *testing.T, s *redistest.Server, j *jvm)) {
	t.Parallel()
	eachPeer(t, true, f)
}

func eachPeer(t *testing.T, parallel bool, f func(t *testing.T, s *redistest.Server, j *jvm)) {
	conversation := t.Name()
	for _, family := range redistest.Families() {
		for _, version := range redissons() {
			t.Run(string(family)+"/redisson-"+version, func(t *testing.T) {
				if parallel {
					t.Parallel()
				}
				tell(t, conversation, string(family), "Redisson "+version)
				s := redistest.Start(t, redistest.On(family), redistest.WithTCP())
				j := sharedJVM(t, version)
				t.Cleanup(func() { j.mustBeQuiet(t) })
				f(t, s, j)
			})
		}
	}
}

// side is one server of a conversation with a JVM that a test kills or stops,
// which starts once for all servers.
type side struct {
	server *redistest.Server
	peer   *jvmClient
	judge  func(t *testing.T, f func(t *testing.T)) // runs f as a subtest with a row in the table
}

// onEachVictim holds a conversation in parallel with each version, in a
// process of its own, which has a client on a server of each family.
func onEachVictim(t *testing.T, watchdog time.Duration, f func(t *testing.T, j *jvm, sides []side)) {
	t.Parallel()
	conversation := t.Name()
	for _, version := range redissons() {
		t.Run("redisson-"+version, func(t *testing.T) {
			t.Parallel()
			j := startJVM(t, version)
			var sides []side
			for _, family := range redistest.Families() {
				s := redistest.Start(t, redistest.On(family), redistest.WithTCP())
				judge := func(t *testing.T, f func(t *testing.T)) {
					t.Run(string(family), func(t *testing.T) {
						tell(t, conversation, string(family), "Redisson "+version)
						f(t)
					})
				}
				sides = append(sides, side{s, j.open(t, s, jvmOptions{watchdog: watchdog}), judge})
			}
			f(t, j, sides)
		})
	}
}
