package redistest

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// link is one connection on a Wire. Two goroutines carry it, one in each
// direction, and both return when done is closed: by the server's end of
// stream, by a fault, by Cut, or by the client's close once all that the client
// sent has gone out.
type link struct {
	// immutable
	wire   *Wire
	number int
	client *memConn // the wire's end of the pipe that the client holds
	server net.Conn
	done   chan struct{}

	endOnce sync.Once
	silent  atomic.Bool // nothing is delivered to the client any more

	mu      sync.Mutex
	changed sync.Cond // pending or ended is different; L is &mu
	// guarded by mu
	pending []*exchange
	ended   bool
}

// exchange is a command that has gone out and the replies still expected.
type exchange struct {
	plan    plan
	name    string
	frames  int // replies to come; SUBSCRIBE has one for each channel
	discard bool
	began   bool // a reply has come
}

func newLink(w *Wire, client *memConn, server net.Conn) *link {
	l := &link{wire: w, client: client, server: server, done: make(chan struct{})}
	l.changed.L = &l.mu
	return l
}

// end closes both connections. It does not wait for the goroutines: one of
// them may be the caller.
func (l *link) end() {
	l.endOnce.Do(func() {
		l.wire.remove(l)
		close(l.done)
		_ = l.client.Close() // a memConn's Close does not fail
		_ = l.server.Close() // on the way out: there is nobody to tell
		l.mu.Lock()
		defer l.mu.Unlock()
		l.ended = true
		l.changed.Broadcast()
	})
}

// waitFor returns when release is closed or the link ends.
func (l *link) waitFor(release <-chan struct{}) {
	select {
	case <-release:
	case <-l.done:
	}
}

func (l *link) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.done:
	}
}

func (l *link) isDone() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// up carries commands to the server.
func (l *link) up() {
	defer l.end()
	var split splitter
	buf := make([]byte, 16<<10)
	for {
		n, err := l.client.Read(buf)
		split.feed(buf[:n])
		// One write for all commands that need nothing done: a pipeline stays one.
		var out []byte
		for {
			frame, ok := split.next()
			if !ok {
				break
			}
			if out, ok = l.request(out, frame); !ok {
				return
			}
		}
		if !l.send(out) || err != nil {
			return
		}
	}
}

// request does what the rules want with one command and adds its bytes to out,
// which is what goes before it. It reports whether the link goes on.
func (l *link) request(out, frame []byte) ([]byte, bool) {
	c := newCommand(frame, l.number)
	p := l.wire.planFor(c)
	if len(p.before) > 0 || p.dropRequest {
		if !l.send(out) {
			return nil, false
		}
		out = nil
	}
	for _, f := range p.before {
		f(l)
	}
	switch {
	case p.dropRequest:
		l.waitForReplies()
		return nil, false
	case p.loseRequest:
		l.waitForReplies()
		l.hush()
		return out, !l.isDone()
	}
	x := &exchange{plan: p, name: c.Name, frames: replies(c)}
	if p.unrun {
		frame, x.name, x.frames = []byte("*1\r\n$4\r\nPING\r\n"), "PING", 1
	}
	l.expect(x)
	out = append(out, frame...)
	if p.twice {
		l.expect(&exchange{name: c.Name, frames: replies(c), discard: true})
		out = append(out, frame...)
	}
	return out, !l.isDone()
}

// send writes to the server and reports whether it could.
func (l *link) send(out []byte) bool {
	if len(out) == 0 {
		return !l.isDone()
	}
	_, err := l.server.Write(out)
	return err == nil
}

// replies returns how many frames answer a command, 0 for an UNSUBSCRIBE from
// everything: that depends on the subscriptions there are.
func replies(c Command) int {
	switch c.Name {
	case "SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE":
		return max(1, len(c.Args))
	case "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE":
		return len(c.Args)
	}
	return 1
}

func (l *link) expect(x *exchange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = append(l.pending, x)
	l.changed.Broadcast()
}

// waitForReplies returns when the commands that have gone out are answered, or
// can no longer be.
func (l *link) waitForReplies() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.pending) > 0 && !l.ended && !l.silent.Load() {
		l.changed.Wait()
	}
}

// hush makes the link deliver nothing more.
func (l *link) hush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent.Store(true)
	l.changed.Broadcast()
}
