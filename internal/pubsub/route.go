package pubsub

import (
	"context"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// setNear notes whether the server that publishes on channel counts us.
func (s *Subscriber) setNear(channel string, near bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.topics[channel]; t != nil {
		t.near = near
	}
}

// moved notes that e's node says it has not got a slot.
func (s *Subscriber) moved(e *ear, slot int) {
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
		s.askSlots()
	}
}

// gone notes that a sharded subscription has ended. When that was not our wish,
// the slot has left the node.
func (s *Subscriber) gone(e *ear, channel string) {
	s.mu.Lock()
	t := s.topics[channel]
	unasked := t != nil && t.ear == e && t.sharded.confirmed
	if unasked {
		s.lostLocked(t)
	}
	s.mu.Unlock()
	if unasked {
		s.askSlots()
	}
}

// lostLocked has a sharded channel subscribed again: elsewhere, when route finds
// out where, else here in a while.
func (s *Subscriber) lostLocked(t *topic) {
	t.sharded = hearing{}
	t.pause = min(max(2*t.pause, redialPause), redialMost)
	t.retry = s.r.Clock.Now() + t.pause
	t.ear.wake()
}

// askSlots has go-redis ask who has the slots, and route follow.
func (s *Subscriber) askSlots() {
	s.r.AskSlots()
	s.wakeRoute()
}

func (s *Subscriber) wakeRoute() {
	select {
	case s.reroute <- struct{}{}:
	default:
	}
}

func (s *Subscriber) startRouteLocked() {
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
func (s *Subscriber) route(ctx context.Context) {
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
		case <-s.reroute:
			pause = 0
		case <-ctx.Done():
			return
		}
	}
}

// stopRoute ends route when there is no topic any more.
func (s *Subscriber) stopRoute() bool {
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
func (s *Subscriber) follow(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, transport.AttemptTimeout)
	defer cancel()
	settled := true
	for _, channel := range s.channels() {
		at, err := s.r.Home(ctx, channel)
		if err != nil || !s.Assign(channel, at) {
			settled = false
		}
	}
	return settled
}

// channels are those of all topics. One that nobody wants any more, and no ear
// has, is forgotten.
func (s *Subscriber) channels() []string {
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

// Assign has the ear at a node hear a channel. It reports whether it does already.
func (s *Subscriber) Assign(channel string, at transport.Node) bool {
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
