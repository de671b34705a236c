package orphans

import (
	"sync"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// mostRemembered bounds how many released owners a client remembers.
const mostRemembered = 10_000

// Ghosts remembers the owners that this client released, for as long as Redis would have kept
// them otherwise. A server that takes another's place may have missed the release, and one that
// comes back may have forgotten it: then the lock stays taken by somebody who knows
// that it let go.
//
//  1. Only what this client knows that it released is a ghost. An owner that was lost is none:
//     work may still be stopping, and its key is left to its TTL. Nor is one that is in
//     flight, believed or orphaned.
//  2. Releasing one again can only remove that owner, and no two attempts share one.
//  3. When the primary changes, a slot has another node, or a server is back after an
//     outage, all that it may have kept are released again.
//  4. A server may be replaced without anybody noticing but by new connections. So who is
//     refused, and has let go of that lock before the newest of them, asks who has it.
type Ghosts struct {
	r       *transport.Runner
	orphans *Orphanage
	least   time.Duration // for which an owner is remembered

	mu sync.Mutex
	// guarded by mu
	list []Released // a ring
	head int        // its oldest
	n    int        // how many are in it
}

// Released is one owner that was released.
type Released struct {
	kind  wire.Kind
	owned wire.Owned
	At    *transport.Site // that released it
	until time.Duration   // when its TTL would have ended
	dials int64           // connections that had been made by then
}

// Remember notes that o was released just now.
func (s *Ghosts) Remember(k wire.Kind, o *wire.Owned) {
	now := s.r.Clock.Now()
	r := Released{k, *o, s.r.Site(o.Keys.Key), now + max(o.Lease, s.least), s.r.Dials.Load()}
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.n > 0 && (s.list[s.head].until <= now || s.n == mostRemembered) {
		s.dropLocked()
	}
	if s.n == len(s.list) {
		s.growLocked()
	}
	s.list[(s.head+s.n)%len(s.list)] = r
	s.n++
}

func (s *Ghosts) dropLocked() {
	s.list[s.head] = Released{}
	s.head = (s.head + 1) % len(s.list)
	s.n--
}

func (s *Ghosts) growLocked() {
	list := make([]Released, min(max(16, 2*len(s.list)), mostRemembered))
	for i := range s.n {
		list[i] = s.list[(s.head+i)%len(s.list)]
	}
	s.list, s.head = list, 0
}

// Count is how many are remembered.
func (s *Ghosts) Count() int {
	now := s.r.Clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.n > 0 && s.list[s.head].until <= now {
		s.dropLocked()
	}
	return s.n
}

// Again releases once more what pick picks of those that Redis may still keep.
func (s *Ghosts) Again(pick func(r *Released) bool) {
	now := s.r.Clock.Now()
	var found []Released
	s.mu.Lock()
	for i := range s.n {
		if r := &s.list[(s.head+i)%len(s.list)]; r.until > now && pick(r) {
			found = append(found, *r)
		}
	}
	s.mu.Unlock()
	for _, r := range found {
		s.orphans.addGhost(r.kind, r.owned)
	}
}

// Moved releases again what has another server by now than the one that released it.
func (s *Ghosts) Moved() {
	s.Again(func(r *Released) bool {
		at := s.r.Site(r.owned.Keys.Key)
		moved := at != r.At
		r.At = at
		return moved
	})
}

// Suspects reports whether the holder of a key may be an owner that was released before the
// newest connection was made. It does so once for each such connection.
func (s *Ghosts) Suspects(key string) bool {
	dials, now, found := s.r.Dials.Load(), s.r.Clock.Now(), false
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n == 0 || s.list[s.head].dials == dials {
		return false // as are all behind it
	}
	for i := range s.n {
		if r := &s.list[(s.head+i)%len(s.list)]; r.dials != dials && r.until > now && r.owned.Keys.Key == key {
			r.dials, found = dials, true
		}
	}
	return found
}

// Exorcise asks who holds a lock that was refused to us, and releases a ghost. It reports
// whether it found one.
func (s *Ghosts) Exorcise(k wire.Kind, keys *wire.Keys) (found bool) {
	info, res := k.Info(s.r.On(s.r.Root, transport.AttemptTimeout, nil), keys)
	if res.Fate != transport.Replied || !info.Held {
		return false
	}
	s.Again(func(r *Released) bool {
		is := r.owned.Owner == wire.Owner(info.Owner) && r.owned.Keys.Key == keys.Key
		found = found || is
		return is
	})
	return found
}
