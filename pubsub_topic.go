package watchlock

import (
	"slices"
	"time"
)

// topic is one channel.
type topic struct {
	gates   []*gate       // who waits: two keys, "a" and "{a}", share a channel
	ours    *gate         // the last that released: it has to hear the echo, though it may not wait
	ear     *ear          // nil until it is known who has the slot
	slot    int           // on a cluster
	unused  time.Duration // since when
	classic hearing
	sharded hearing
	near    bool          // a classic message is counted by the server that publishes it
	retry   time.Duration // do not subscribe before this
	pause   time.Duration // before the newest retry
	garbage time.Duration // when an unknown message last counted
}

// hearing is how far a subscription has come on the present connection.
type hearing struct {
	sent      bool
	confirmed bool
}

// subscription is what one command asks for, or ends.
type subscription struct {
	channel string
	sharded bool
}

// join has g hear of the channel's messages. It reports whether the
// subscription was already there: then messages may have passed unheard.
func (s *subscriber) join(channel string, g *gate) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[channel]
	if t == nil {
		t = &topic{near: true, slot: g.keys.slot}
		s.topics[channel] = t
	}
	if !slices.Contains(t.gates, g) {
		t.gates = append(t.gates, g)
	}
	switch {
	case t.ear != nil:
		t.ear.wake()
	case s.routed:
		s.startRouteLocked()
		s.wakeRoute()
	default:
		t.ear = s.earLocked(node{})
	}
	return t.classic.confirmed || t.sharded.confirmed
}

// leave ends g's interest. The subscription stays a while: it is likely to be
// wanted again.
func (s *subscriber) leave(channel string, g *gate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[channel]
	if t == nil {
		return
	}
	if i := slices.Index(t.gates, g); i >= 0 {
		t.gates = slices.Delete(t.gates, i, i+1)
		t.unused = s.c.clock.now()
		if t.ear != nil {
			t.ear.wake()
		}
	}
}

// hears returns how many messages of a release on channel come back to this
// client, and how many of them the release counts among those that it told.
func (s *subscriber) hears(channel string) (echoes, counted int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hearsLocked(channel)
}

// expect is for a release by g: how many messages of it will come back. g is told of
// them also if it does not wait by then.
func (s *subscriber) expect(channel string, g *gate) (echoes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if echoes, _ = s.hearsLocked(channel); echoes > 0 {
		s.topics[channel].ours = g
	}
	return echoes
}

func (s *subscriber) hearsLocked(channel string) (echoes, counted int) {
	t := s.topics[channel]
	if t == nil {
		return 0, 0
	}
	if t.classic.confirmed {
		echoes++
		if t.near {
			counted++
		}
	}
	if t.sharded.confirmed {
		echoes++
		counted++
	}
	return echoes, counted
}

// message hints to whoever waits. A release is "0"; anything unknown on the channel
// may be a stranger's, and counts at a limited rate.
func (s *subscriber) message(channel, payload string) {
	now := s.c.clock.now()
	s.mu.Lock()
	t := s.topics[channel]
	h := hintStrange
	switch payload {
	case releasePayload:
		h = hintReleased
	case claimPayload:
		h = hintClaimed
	}
	if t == nil || h == hintStrange && now-t.garbage < garbageGap {
		s.mu.Unlock()
		return
	}
	if h == hintStrange {
		t.garbage = now
	}
	gates, ours := slices.Clone(t.gates), t.ours
	s.mu.Unlock()
	for _, g := range gates {
		g.hint(h)
	}
	if ours != nil && h != hintClaimed && !slices.Contains(gates, ours) {
		ours.echoed()
	}
}

// confirm hints as well: what was released before it went unheard.
func (s *subscriber) confirm(e *ear, sub subscription) {
	s.mu.Lock()
	var gates []*gate
	if t := s.topics[sub.channel]; t != nil && t.ear == e {
		if sub.sharded {
			t.sharded.confirmed, t.pause = true, 0
		} else {
			t.classic.confirmed = true
		}
		gates = slices.Clone(t.gates)
	}
	s.mu.Unlock()
	for _, g := range gates {
		g.hint(hintConfirmed)
	}
}
