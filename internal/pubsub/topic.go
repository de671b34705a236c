package pubsub

import (
	"slices"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// Listener is who waits for messages on a channel. Neither may block.
type Listener interface {
	// Hear tells of a message, or that one would have been heard from now on.
	Hear(h Hint)
	// HearEcho tells who waits no more of a message that its own release brought.
	HearEcho()
}

// Hint is what a listener hears.
type Hint int

// What a Listener is told.
const (
	HintConfirmed Hint = iota // it is there; before it a message would not have been heard
	HintReleased              // a release of a client like this one
	HintForeign               // a release of a client of another kind
	HintStrange               // no message of any client that is known
)

// topic is one channel.
type topic struct {
	heard   []Listener    // who waits: two keys, "a" and "{a}", share a channel
	ours    Listener      // the last that released: it has to hear the echo, though it may not wait
	ear     *ear          // nil until it is known who has the slot
	slot    int           // on a cluster
	unused  time.Duration // since when
	classic hearing
	sharded hearing
	near    bool          // a classic message is counted by the server that publishes it
	retry   time.Duration // do not subscribe before this
	pause   time.Duration // before the newest retry
	garbage time.Duration // no unknown message counts before this
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

// Join has g hear of the channel's messages. It reports whether the
// subscription was already there: then messages may have passed unheard.
func (s *Subscriber) Join(channel string, slot int, g Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[channel]
	if t == nil {
		t = &topic{near: true, slot: slot}
		s.topics[channel] = t
	}
	if !slices.Contains(t.heard, g) {
		t.heard = append(t.heard, g)
	}
	switch {
	case t.ear != nil:
		t.ear.wake()
	case s.routed:
		s.startRouteLocked()
		s.wakeRoute()
	default:
		t.ear = s.earLocked(transport.Node{})
	}
	return t.classic.confirmed || t.sharded.confirmed
}

// Leave ends g's interest. The subscription stays a while: it is likely to be
// wanted again.
func (s *Subscriber) Leave(channel string, g Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[channel]
	if t == nil {
		return
	}
	if i := slices.Index(t.heard, g); i >= 0 {
		t.heard = slices.Delete(t.heard, i, i+1)
		t.unused = s.r.Clock.Now()
		if t.ear != nil {
			t.ear.wake()
		}
	}
}

// Hears returns how many messages of a release on channel come back to this
// client, and how many of them the release counts among those that it told.
func (s *Subscriber) Hears(channel string) (echoes, counted int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hearsLocked(channel)
}

// Expect is for a release by g: how many messages of it will come back. g is told of
// them also if it does not wait by then.
func (s *Subscriber) Expect(channel string, g Listener) (echoes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if echoes, _ = s.hearsLocked(channel); echoes > 0 {
		s.topics[channel].ours = g
	}
	return echoes
}

func (s *Subscriber) hearsLocked(channel string) (echoes, counted int) {
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

// message hints to whoever waits. A release is "00" or "0", by whose it is; anything unknown
// on the channel may be a stranger's, and counts at a limited rate.
func (s *Subscriber) message(channel, payload string) {
	now := s.r.Clock.Now()
	s.mu.Lock()
	t := s.topics[channel]
	h := HintStrange
	switch payload {
	case wire.ReleasePayload:
		h = HintReleased
	case wire.ForeignPayload:
		h = HintForeign
	}
	if t == nil || h == HintStrange && now < t.garbage {
		s.mu.Unlock()
		return
	}
	if h == HintStrange {
		t.garbage = now + garbageGap
	}
	heard, ours := slices.Clone(t.heard), t.ours
	s.mu.Unlock()
	for _, g := range heard {
		g.Hear(h)
	}
	if ours != nil && h == HintReleased && !slices.Contains(heard, ours) {
		ours.HearEcho()
	}
}

// confirm hints as well: what was released before it went unheard.
func (s *Subscriber) confirm(e *ear, sub subscription) {
	s.mu.Lock()
	var heard []Listener
	if t := s.topics[sub.channel]; t != nil && t.ear == e {
		if sub.sharded {
			t.sharded.confirmed, t.pause = true, 0
		} else {
			t.classic.confirmed = true
		}
		heard = slices.Clone(t.heard)
	}
	s.mu.Unlock()
	for _, g := range heard {
		g.Hear(HintConfirmed)
	}
}
