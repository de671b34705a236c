package redistest

import (
	"context"
	"net"
	"sync"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// Wire stands between clients and a server and follows what they say, command
// by command and reply by reply, in RESP2 and RESP3. Without rules it changes
// nothing. It works in a bubble and over sockets; in a bubble, make it there.
// Its methods are safe for concurrent use.
//
// CLIENT REPLY and MONITOR, which break the order of replies, are not for it.
type Wire struct {
	log commandLog

	mu sync.Mutex
	// guarded by mu
	rules   []*Rule
	links   map[*link]struct{}
	dialled int
	refuse  bool
}

// NewWire returns a wire without rules. Connections that a HoldRequest keeps
// are to be released, or cut, before the test ends.
func NewWire() *Wire {
	return &Wire{links: map[*link]struct{}{}}
}

type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// Dialer returns a dialer that connects with next and puts the wire in between.
func (w *Wire) Dialer(next dialer) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if w.refuses() {
			return nil, refused(network)
		}
		server, err := next(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		client, near := memPipe()
		l := newLink(w, near, server)
		if !w.add(l) {
			_ = server.Close() // nothing has been sent
			return nil, refused(network)
		}
		go l.up()
		go l.down()
		return client, nil
	}
}

// Options returns an option of Virtual.Client and Server.Client that puts the
// wire between that client and its server.
func (w *Wire) Options() func(*redis.Options) {
	return func(opt *redis.Options) {
		next := opt.Dialer
		if next == nil {
			next = redis.NewDialer(opt)
		}
		opt.Dialer = w.Dialer(next)
	}
}

// On adds a rule: action is done to the first command from now on that match
// chooses, or as Times and Skip say. Of several rules that could act on a
// command, the one added first does.
func (w *Wire) On(match Match, action Action) *Rule {
	r := &Rule{command: match, times: 1, fired: make(chan struct{})}
	action.apply(&r.plan)
	return w.addRule(r)
}

// OnPush adds a rule about messages that subscriptions deliver. A chosen one is
// left out if drop is set, and only counted if it is not.
func (w *Wire) OnPush(match func(channel, payload string) bool, drop bool) *Rule {
	return w.addRule(&Rule{message: match, drop: drop, times: 1, fired: make(chan struct{})})
}

// DropPush leaves out the next n messages of any channel, all of them if n is 0.
func (w *Wire) DropPush(n int) *Rule {
	return w.OnPush(func(string, string) bool { return true }, true).Times(n)
}

func (w *Wire) addRule(r *Rule) *Rule {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rules = append(w.rules, r)
	return r
}

// Clear removes all rules. What they have begun goes on.
func (w *Wire) Clear() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rules = nil
}

// Cut closes all connections, whatever is in flight or held. It may be called
// from Call and CallReply: then the command, or its reply, is the first thing
// that does not arrive.
func (w *Wire) Cut() {
	for _, l := range w.all() {
		l.end()
	}
}

// Conns returns how many connections the wire carries.
func (w *Wire) Conns() int { return len(w.all()) }

// Refuse makes dials fail with ECONNREFUSED, until it is called with false.
// Connections that exist are not touched.
func (w *Wire) Refuse(refuse bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuse = refuse
}

// Seen returns the commands that clients have sent, in the order in which they
// came to the wire, those included that never reached the server.
func (w *Wire) Seen() []Command { return w.log.all() }

// Count returns how many commands that match have been seen since the last
// Reset.
func (w *Wire) Count(match Match) int { return w.log.count(match) }

// Reset empties the list of commands.
func (w *Wire) Reset() { w.log.reset() }

// planFor logs a command and returns what to do with it.
func (w *Wire) planFor(c Command) plan {
	w.log.add(c)
	for _, r := range w.currentRules() {
		if r.command != nil && r.command(c) && r.hit() {
			return r.plan
		}
	}
	return plan{}
}

// drops reports whether a message is to be left out.
func (w *Wire) drops(channel, payload string) bool {
	for _, r := range w.currentRules() {
		if r.message != nil && r.message(channel, payload) && r.hit() {
			return r.drop
		}
	}
	return false
}

func (w *Wire) currentRules() []*Rule {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rules[:len(w.rules):len(w.rules)]
}

func (w *Wire) refuses() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.refuse
}

// add numbers a link and keeps it, unless dials have been refused meanwhile.
func (w *Wire) add(l *link) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse {
		return false
	}
	w.dialled++
	l.number = w.dialled
	w.links[l] = struct{}{}
	return true
}

func (w *Wire) remove(l *link) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.links, l)
}

func (w *Wire) all() []*link {
	w.mu.Lock()
	defer w.mu.Unlock()
	links := make([]*link, 0, len(w.links))
	for l := range w.links {
		links = append(links, l)
	}
	return links
}

func refused(network string) error {
	return &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
}
