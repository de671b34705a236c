package redistest

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// FakeSentinel says what a sentinel says to clients: who is the primary. That is
// whoever the test says, and no server hears of it. It listens on a port of
// 127.0.0.1. Its methods are safe for concurrent use.
type FakeSentinel struct {
	t  testing.TB
	ln net.Listener
	wg sync.WaitGroup // goroutines: one that accepts, and one for each connection

	mu sync.Mutex
	// guarded by mu
	primary string
	conns   map[net.Conn]*fakeConn
	asked   int
	thawed  chan struct{} // closed unless it is frozen
	closed  bool
}

// fakeConn is a client's connection.
type fakeConn struct {
	writing sync.Mutex // around each write, so that a message never lands in a reply
	net.Conn
	hears bool // of +switch-master; guarded by FakeSentinel.mu
}

// NewFakeSentinel returns a sentinel that names the server at addr the primary,
// without replicas and without other sentinels. It ends when the test does.
func NewFakeSentinel(t testing.TB, addr string) *FakeSentinel {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("redistest: fake sentinel: %v", err)
	}
	f := &FakeSentinel{
		t: t, ln: ln, primary: addr, conns: map[net.Conn]*fakeConn{}, thawed: make(chan struct{}),
	}
	close(f.thawed)
	f.wg.Add(1)
	go f.accept()
	t.Cleanup(f.Close)
	return f
}

// Addr is where it listens.
func (f *FakeSentinel) Addr() string { return f.ln.Addr().String() }

// Client returns a new client of the primary, as NewFailoverClient makes it, that is
// closed when the test ends; opts may change its options, and add sentinels.
func (f *FakeSentinel) Client(opts ...func(*redis.FailoverOptions)) *redis.Client {
	return failoverClient(f.t, redis.NewFailoverClient, f.options(), opts)
}

// ClusterTypeClient is Client with NewFailoverClusterClient; see Sentinel's.
func (f *FakeSentinel) ClusterTypeClient(opts ...func(*redis.FailoverOptions)) *redis.ClusterClient {
	return clusterTypeClient(f.t, f.options(), opts)
}

func (f *FakeSentinel) options() *redis.FailoverOptions {
	o := quietFailover()
	o.SentinelAddrs = []string{f.Addr()}
	return o
}

// SetPrimary names another primary: to all who ask from now on, and by message to
// all who listen. It may be called with the address of what is the primary already.
func (f *FakeSentinel) SetPrimary(addr string) {
	old := f.Name(addr)
	text := strings.ReplaceAll(SentinelMaster+" "+old+" "+addr, ":", " ")
	for _, c := range f.listeners() {
		c.say("*3\r\n" + bulks("message", "+switch-master", text))
	}
}

// Name is SetPrimary without the message, as when it is lost. It returns who was
// the primary.
func (f *FakeSentinel) Name(addr string) (old string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old, f.primary = f.primary, addr
	return old
}

// Freeze stops answers, as SIGSTOP does: connections are accepted and stay open.
// Messages are lost meanwhile.
func (f *FakeSentinel) Freeze() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if isClosed(f.thawed) {
		f.thawed = make(chan struct{})
	}
}

// Thaw ends Freeze. What was asked meanwhile is answered.
func (f *FakeSentinel) Thaw() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !isClosed(f.thawed) {
		close(f.thawed)
	}
}

// Asked returns how often it was asked who is the primary.
func (f *FakeSentinel) Asked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

// Listeners returns how many connections hear of another primary by message.
func (f *FakeSentinel) Listeners() int { return len(f.listeners()) }

// Conns returns how many connections it has.
func (f *FakeSentinel) Conns() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.conns)
}

// Close ends it, as kill -9 does. More calls do nothing.
func (f *FakeSentinel) Close() {
	f.mu.Lock()
	f.closed = true
	_ = f.ln.Close()
	for conn := range f.conns {
		_ = conn.Close()
	}
	f.mu.Unlock()
	f.Thaw()
	f.wg.Wait()
}

func (f *FakeSentinel) listeners() []*fakeConn {
	f.mu.Lock()
	defer f.mu.Unlock()
	var hear []*fakeConn
	for _, c := range f.conns {
		if c.hears && isClosed(f.thawed) {
			hear = append(hear, c)
		}
	}
	return hear
}

func (f *FakeSentinel) accept() {
	defer f.wg.Done()
	for {
		conn, err := f.ln.Accept()
		if err != nil {
			return
		}
		f.mu.Lock()
		if f.closed {
			f.mu.Unlock()
			_ = conn.Close()
			return
		}
		c := &fakeConn{Conn: conn}
		f.conns[conn] = c
		f.wg.Add(1)
		f.mu.Unlock()
		go f.serve(c)
	}
}

func (f *FakeSentinel) serve(c *fakeConn) {
	defer f.wg.Done()
	defer func() {
		f.mu.Lock()
		delete(f.conns, c.Conn)
		f.mu.Unlock()
		_ = c.Close()
	}()
	var split splitter
	buf := make([]byte, 4096)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		split.feed(buf[:n])
		for {
			frame, ok := split.next()
			if !ok {
				break
			}
			f.mu.Lock()
			thawed := f.thawed
			f.mu.Unlock()
			<-thawed
			c.say(f.answer(c, newCommand(frame, 0)))
		}
	}
}

// answer is the reply to a command in RESP2, which is what a client speaks to a
// server that does not know HELLO.
func (f *FakeSentinel) answer(c *fakeConn, cmd Command) string {
	switch verb := strings.ToLower(cmd.Name + " " + cmd.Arg(0)); {
	case verb == "sentinel get-master-addr-by-name":
		f.mu.Lock()
		defer f.mu.Unlock()
		f.asked++
		host, port, _ := net.SplitHostPort(f.primary)
		return "*2\r\n" + bulks(host, port)
	case cmd.Name == "SENTINEL":
		return "*0\r\n" // other sentinels, replicas
	case cmd.Name == "SUBSCRIBE", cmd.Name == "UNSUBSCRIBE":
		var reply strings.Builder
		for i, channel := range cmd.Args {
			fmt.Fprintf(&reply, "*3\r\n%s:%d\r\n", bulks(strings.ToLower(cmd.Name), channel), i+1)
			f.mu.Lock()
			c.hears = cmd.Name == "SUBSCRIBE" && (c.hears || channel == "+switch-master")
			f.mu.Unlock()
		}
		return reply.String()
	case cmd.Name == "PING":
		return "+PONG\r\n"
	case cmd.Name == "CLIENT", cmd.Name == "AUTH":
		return "+OK\r\n"
	}
	return "-ERR unknown command '" + cmd.Name + "'\r\n"
}

// say sends a reply or a message. A client that is gone does not hear it.
func (c *fakeConn) say(text string) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if _, err := c.Write([]byte(text)); err != nil && !errors.Is(err, net.ErrClosed) {
		_ = c.Close() // the reader then ends
	}
}

// bulks are elements of an array.
func bulks(texts ...string) string {
	var b strings.Builder
	for _, text := range texts {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(text), text)
	}
	return b.String()
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
