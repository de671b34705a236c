package watchlock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// subscriber keeps the pub/sub connections, the ears, for all waiters of a client.
// What it hears are hints: waiters poll as well, so a lost message costs time only.
//
// One ear hears classic messages wherever they are published. Sharded ones are
// heard only at the node that has the channel's slot: then there is an ear for each
// such node, and one goroutine, route, that finds out which node that is. It asks
// each second, and sooner when a subscription was refused, ended by the server, or
// lost with its connection. It ends with the last topic, and at Close.
type subscriber struct {
	// immutable
	r       *transport.Runner
	tell    func(info bool, text string, err error) // the caller's logger
	verify  func(*transport.Site)                   // has asked about what is held there; must not block
	classic bool                                    // listen to classic channels
	sharded bool                                    // and to sharded ones
	routed  bool                                    // each topic at the node that has its slot
	look    chan struct{}                           // one slot: ask anew who has the slots

	// atomic
	denied atomic.Bool // warned that the user may not subscribe

	mu sync.Mutex
	// guarded by mu
	topics map[string]*topic
	ears   map[string]*ear          // that run, by the address of their node
	open   map[*transport.Site]*ear // that hear something, by where they are
	quit   context.CancelFunc       // ends route; nil when it does not run
}

// newSubscriber makes one that listens as publish says, a publishX of the keys.
func newSubscriber(r *transport.Runner, publish string, tell func(info bool, text string, err error), verify func(*transport.Site)) *subscriber {
	s := &subscriber{
		r: r, tell: tell, verify: verify, classic: publish != wire.PublishSharded, sharded: publish != wire.PublishClassic,
		look: make(chan struct{}, 1), topics: make(map[string]*topic), ears: make(map[string]*ear), open: make(map[*transport.Site]*ear),
	}
	s.routed = r.Home != nil && (s.sharded || r.Named)
	return s
}

// prove has the ear at a server ask for a sign of life that its connection was open all the time.
// It reports whether there is such an ear.
func (s *subscriber) prove(at *transport.Site) bool {
	s.mu.Lock()
	e := s.open[at]
	s.mu.Unlock()
	if e == nil {
		return false
	}
	e.prove.Store(true)
	e.wake()
	return true
}

// opened notes that e hears its server.
func (s *subscriber) opened(e *ear, at *transport.Site) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[at] = e
}

// shut notes that it does not.
func (s *subscriber) shut(e *ear) {
	at := e.site()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[at] == e {
		delete(s.open, at)
	}
}

// close ends the goroutines, at once.
func (s *subscriber) close() {
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
func (s *subscriber) earLocked(at transport.Node) *ear {
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
func (s *subscriber) stop(e *ear) bool {
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

// relocate has all ears look whether they listen at the primary.
func (s *subscriber) relocate() {
	s.mu.Lock()
	for _, e := range s.ears {
		e.wake()
	}
	s.mu.Unlock()
	s.wakeRoute()
}

// keep has an ear open at each of the nodes where something is held, and at no others
// unless somebody waits.
func (s *subscriber) keep(at map[*transport.Site]bool) {
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
func (s *subscriber) someChannel(e *ear) string {
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
func (s *subscriber) anew(e *ear) {
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
func (s *subscriber) changes(e *ear) changes {
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

// setNear notes whether the server that publishes on channel counts us.
func (s *subscriber) setNear(channel string, near bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.topics[channel]; t != nil {
		t.near = near
	}
}

// moved notes that e's node says it has not got a slot.
func (s *subscriber) moved(e *ear, slot int) {
	s.mu.Lock()
	found := false
	for _, t := range s.topics {
		if t.ear == e && t.slot == slot {
			found = true
			s.lostLocked(t)
		}
	}
	s.mu.Unlock()
	if found {
		s.lookAgain()
	}
}

// gone notes that a sharded subscription has ended. When that was not our wish,
// the slot has left the node.
func (s *subscriber) gone(e *ear, channel string) {
	s.mu.Lock()
	t := s.topics[channel]
	unasked := t != nil && t.ear == e && t.sharded.confirmed
	if unasked {
		s.lostLocked(t)
	}
	s.mu.Unlock()
	if unasked {
		s.lookAgain()
	}
}

// lostLocked has a sharded channel subscribed again: elsewhere, when route finds
// out where, else here in a while.
func (s *subscriber) lostLocked(t *topic) {
	t.sharded = hearing{}
	t.pause = min(max(2*t.pause, redialPause), redialMost)
	t.retry = s.r.Clock.Now() + t.pause
	t.ear.wake()
}

// withoutShards makes e hear classic channels in place of sharded ones. It
// reports whether that is new.
func (s *subscriber) withoutShards(e *ear) bool {
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

// lookAgain has go-redis ask who has the slots, and route follow.
func (s *subscriber) lookAgain() {
	s.r.LookAgain()
	s.wakeRoute()
}

func (s *subscriber) wakeRoute() {
	select {
	case s.look <- struct{}{}:
	default:
	}
}

func (s *subscriber) startRouteLocked() {
	if s.quit != nil {
		return
	}
	ctx, cancel := context.WithCancel(s.r.Root)
	s.quit = cancel
	if !s.r.Spawn(func() { s.route(ctx) }) {
		cancel()
		s.quit = nil
	}
}

// route keeps each topic at the ear of the node that has its slot. While one is not
// confirmed there it looks often: go-redis learns of a move in its own time.
func (s *subscriber) route(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	pause := time.Duration(0)
	for {
		settled := s.follow(ctx)
		if s.stopRoute() {
			return
		}
		pause = min(max(2*pause, redialPause), pingPace)
		if settled {
			pause = pingPace
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-s.look:
			pause = 0
		case <-ctx.Done():
			return
		}
	}
}

// stopRoute ends route when there is no topic any more.
func (s *subscriber) stopRoute() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.topics) > 0 {
		return false
	}
	s.quit()
	s.quit = nil
	return true
}

// follow moves topics to where their slots are. It reports whether all are heard.
func (s *subscriber) follow(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, transport.AttemptTimeout)
	defer cancel()
	settled := true
	for _, channel := range s.channels() {
		at, err := s.r.Home(ctx, channel)
		if err != nil || !s.assign(channel, at) {
			settled = false
		}
	}
	return settled
}

// channels are those of all topics. One that nobody wants any more, and no ear
// has, is forgotten.
func (s *subscriber) channels() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	channels := make([]string, 0, len(s.topics))
	for channel, t := range s.topics {
		if t.ear == nil && len(t.heard) == 0 {
			delete(s.topics, channel)
			continue
		}
		channels = append(channels, channel)
	}
	return channels
}

// assign has the ear at a node hear a channel. It reports whether it does already.
func (s *subscriber) assign(channel string, at transport.Node) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[channel]
	if t == nil {
		return true
	}
	if old := t.ear; old != nil {
		if old.node.Addr() == at.Addr() {
			return len(t.heard) == 0 || t.sharded.confirmed || (old.shardless || !s.sharded) && t.classic.confirmed
		}
		old.drops = append(old.drops, t.subscriptions(channel)...)
		old.wake()
	}
	e := s.earLocked(at)
	if e != nil && t.ear != nil && t.ear.broken.Load() {
		e.broken.Store(true) // what ends the outage comes from there
	}
	t.ear, t.classic, t.sharded, t.retry = e, hearing{}, hearing{}, 0
	return false
}
