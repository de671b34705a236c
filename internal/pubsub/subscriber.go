package pubsub

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// Subscriber keeps the pub/sub connections, the ears, for all waiters of a client.
// What it hears are hints: waiters poll as well, so a lost message costs time only.
//
// One ear hears classic messages wherever they are published. Sharded ones are
// heard only at the node that has the channel's slot: then there is an ear for each
// such node, and one goroutine, route, that finds out which node that is. It asks
// each second, and sooner when a subscription was refused, ended by the server, or
// lost with its connection. It ends with the last topic, and at Close.
type Subscriber struct {
	// immutable
	r       *transport.Runner
	tell    func(info bool, text string, err error) // the caller's logger
	verify  func(*transport.Site)                   // has asked about what is held there; must not block
	classic bool                                    // listen to classic channels
	sharded bool                                    // and to sharded ones
	routed  bool                                    // each topic at the node that has its slot
	reroute chan struct{}                           // one slot: ask anew who has the slots

	// atomic
	denied atomic.Bool // warned that the user may not subscribe

	mu sync.Mutex
	// guarded by mu
	topics map[string]*topic
	ears   map[string]*ear          // that run, by the address of their node
	open   map[*transport.Site]*ear // that hear something, by where they are
	quit   context.CancelFunc       // ends route; nil when it does not run
}

// New makes one that listens as publish says, a publishX of the keys.
func New(r *transport.Runner, publish string, tell func(info bool, text string, err error), verify func(*transport.Site)) *Subscriber {
	s := &Subscriber{
		r: r, tell: tell, verify: verify, classic: publish != wire.PublishSharded, sharded: publish != wire.PublishClassic,
		reroute: make(chan struct{}, 1), topics: make(map[string]*topic), ears: make(map[string]*ear), open: make(map[*transport.Site]*ear),
	}
	s.routed = r.Home != nil && (s.sharded || r.Named)
	return s
}

// Prove has the ear at a server ask for a sign of life that its connection was open all the time.
// It reports whether there is such an ear.
func (s *Subscriber) Prove(at *transport.Site) bool {
	e := s.openAt(at)
	if e == nil {
		return false
	}
	e.prove.Store(true)
	e.wake()
	return true
}

// Open reports whether there is an ear that hears a server.
func (s *Subscriber) Open(at *transport.Site) bool { return s.openAt(at) != nil }

func (s *Subscriber) openAt(at *transport.Site) *ear {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[at]
}

// Idle reports whether nothing is listened for and nothing is left of what was.
func (s *Subscriber) Idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.topics)+len(s.ears) == 0 && s.quit == nil
}

// Refused reports whether a subscription to channel was refused or ended, and is to be tried again.
func (s *Subscriber) Refused(channel string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[channel]
	return t != nil && t.pause > 0
}

// opened notes that e hears its server.
func (s *Subscriber) opened(e *ear, at *transport.Site) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[at] = e
}

// shut notes that it does not.
func (s *Subscriber) shut(e *ear) {
	at := e.site()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[at] == e {
		delete(s.open, at)
	}
}

// Close ends the goroutines, at once.
func (s *Subscriber) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.ears {
		e.quit()
	}
	if s.quit != nil {
		s.quit()
	}
}

// earLocked is the ear at a node, which it starts if there is none. It returns
// nil when the client is closed.
func (s *Subscriber) earLocked(at transport.Node) *ear {
	e := s.ears[at.Addr()]
	if e == nil {
		ctx, cancel := context.WithCancel(s.r.Root)
		e = &ear{s: s, node: at, poke: make(chan struct{}, 1), quit: cancel}
		if !s.r.Spawn(func() { e.run(ctx) }) {
			cancel()
			return nil
		}
		s.ears[at.Addr()] = e
	}
	e.wake()
	return e
}

// stop ends an ear when it has no topic any more.
func (s *Subscriber) stop(e *ear) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.kept {
		return false
	}
	for _, t := range s.topics {
		if t.ear == e {
			return false
		}
	}
	delete(s.ears, e.node.Addr())
	e.quit()
	return true
}

// Relocate has all ears look whether they listen at the primary.
func (s *Subscriber) Relocate() {
	s.mu.Lock()
	for _, e := range s.ears {
		e.wake()
	}
	s.mu.Unlock()
	s.wakeRoute()
}

// Keep has an ear open at each of the nodes where something is held, and at no others
// unless somebody waits.
func (s *Subscriber) Keep(at map[*transport.Site]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.ears {
		e.kept = false
	}
	for node := range at {
		if e := s.ears[node.Node.Addr()]; e != nil {
			e.kept = true
		} else if e := s.earLocked(node.Node); e != nil {
			e.kept = true
		}
	}
	for _, e := range s.ears {
		e.wake()
	}
}

// someChannel is one that e has to hear.
func (s *Subscriber) someChannel(e *ear) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for channel, t := range s.topics {
		if t.ear == e {
			return channel
		}
	}
	return ""
}

// anew forgets what was subscribed on e's last connection.
func (s *Subscriber) anew(e *ear) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.drops, e.shardless = nil, false
	for _, t := range s.topics {
		if t.ear == e {
			t.classic, t.sharded = hearing{}, hearing{}
		}
	}
}

// changes is what an ear has to do.
type changes struct {
	add, remove []subscription
	waiting     bool          // somebody does
	kept        bool          // something is held
	next        time.Duration // when there may be more
}

// changes returns what e is to subscribe and what to give up.
func (s *Subscriber) changes(e *ear) changes {
	now := s.r.Clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	todo := changes{remove: e.drops, kept: e.kept, next: bootclock.Never}
	e.drops = nil
	for channel, t := range s.topics {
		switch {
		case t.ear != e:
		case len(t.heard) == 0 && now-t.unused >= topicLinger:
			delete(s.topics, channel)
			todo.remove = append(todo.remove, t.subscriptions(channel)...)
		case len(t.heard) > 0:
			todo.waiting = true
			if now < t.retry {
				todo.next = min(todo.next, t.retry-now)
				continue
			}
			if (s.classic || e.shardless) && !t.classic.sent {
				t.classic.sent = true
				todo.add = append(todo.add, subscription{channel, false})
			}
			if s.sharded && !e.shardless && !t.sharded.sent {
				t.sharded.sent = true
				todo.add = append(todo.add, subscription{channel, true})
			}
		}
	}
	return todo
}

// subscriptions are those that were asked for.
func (t *topic) subscriptions(channel string) []subscription {
	var subs []subscription
	if t.classic.sent {
		subs = append(subs, subscription{channel, false})
	}
	if t.sharded.sent {
		subs = append(subs, subscription{channel, true})
	}
	return subs
}

// withoutShards makes e hear classic channels in place of sharded ones. It
// reports whether that is new.
func (s *Subscriber) withoutShards(e *ear) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.topics {
		if t.ear == e {
			t.sharded = hearing{}
		}
	}
	was := e.shardless
	e.shardless = true
	e.wake()
	return !was
}
