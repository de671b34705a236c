package watchlock

import (
	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/pubsub"
)

// Hear says that the lock may have become free. While we believe we hold, that means
// that somebody may have released or forced it, so Redis is asked: at once, or when the
// last such question is verifyGap ago. (A subscription that begins soon after Redis's
// last word leaves little unheard.)
func (g *gate) Hear(h pubsub.Hint) {
	now := g.c.clock.Now()
	g.mu.Lock()
	message := h != pubsub.HintConfirmed
	echo := h == pubsub.HintReleased && now < g.echoBy
	g.hints++
	b := g.held
	next := bootclock.Never
	switch {
	case echo:
		// The message of our own release, most likely. If not, a look soon does.
		if g.echoes--; g.echoes <= 0 {
			g.echoBy = 0
		}
		if b != nil {
			b.verifyAt = min(b.verifyAt, now+verifyGap)
			next = b.nextLocked()
		}
		if g.releasing != nil && g.attempt != nil {
			g.attempt.doubted = true // a relay, which has no message if it is granted
		}
	case b != nil && (message || now-b.answered > confirmedAge):
		next = b.verifyLocked(max(now, b.verified+verifyGap))
	case message && g.attempt != nil:
		g.attempt.doubted = true
	}
	if h == pubsub.HintForeign || h == pubsub.HintReleased && !echo {
		g.othersLocked().heard(now, h == pubsub.HintForeign)
	}
	g.wakeLocked()
	g.mu.Unlock()
	if next != bootclock.Never {
		g.c.dog.schedule(b, next)
	}
}

// HearEcho is a message that came while nobody here waited: that of our own release. The
// next, if somebody waits by then, is not.
func (g *gate) HearEcho() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.echoes--; g.echoes <= 0 {
		g.echoes, g.echoBy = 0, 0
	}
}

// subscribeLocked asks for the messages of this lock. A subscription that was
// still there may have missed nothing or much, so it counts as a hint.
func (g *gate) subscribeLocked() {
	if g.joined {
		return
	}
	g.joined = true
	if g.c.subs.Join(g.keys.Channel, g.keys.Slot, g) {
		g.hints++
	}
}

func (g *gate) unsubscribeLocked() {
	if g.joined {
		g.joined = false
		g.c.subs.Leave(g.keys.Channel, g)
	}
}
