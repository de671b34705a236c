package orphans

import (
	"sync"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

const (
	orphanPace  = time.Second // between two releases of the same orphan
	orphanExtra = 5 * time.Second
	orphanMost  = 2 * time.Minute
	mostEarlier = 1000 // owners of earlier attempts that one attempt names
)

// Orphanage releases owners that nobody believes in: of attempts whose outcome
// is unknown, of grants that nobody wants, and of releases that got no answer.
//
// An attempt of unknown outcome may run yet: a server that was stopped reads its
// sockets in any order, and a network may hold bytes back. So its release is
// repeated, well past the first answer. A known grant needs one answer.
//
// One goroutine, run, says what is due, and each server's releases are a pass of their own:
// one that does not answer delays no other's. What is new is sent at once, beside a pass
// that repeats.
type Orphanage struct {
	r      *transport.Runner
	Ghosts *Ghosts
	poke   chan struct{} // one slot

	passes sync.WaitGroup // under way; added to under mu only

	mu sync.Mutex
	// guarded by mu
	byKey   map[string][]*orphan
	running bool
	busy    map[*transport.Site]bool // it repeats there
	mute    map[*transport.Site]bool // the newest pass there got no answer
	closing bool                     // Close makes the last passes
}

type orphan struct {
	kind     wire.Kind
	owned    wire.Owned
	known    bool          // the grant ran, and runs no more
	ghost    bool          // it was released before, and is remembered already
	tried    bool          // its release was sent
	answered time.Duration // when a release of it was first answered; 0 not yet
	next     time.Duration // when to release it again
	alone    bool          // company failed
	done     bool
}

// New makes one with its ghosts, which are remembered for remember at least.
func New(r *transport.Runner, remember time.Duration) *Orphanage {
	s := &Orphanage{
		r: r, poke: make(chan struct{}, 1), byKey: make(map[string][]*orphan),
		busy: make(map[*transport.Site]bool), mute: make(map[*transport.Site]bool),
	}
	s.Ghosts = &Ghosts{r: r, orphans: s, least: remember}
	return s
}

// Add releases o in the background, now and until it is certain. known says
// that the acquire of this owner has certainly run.
func (s *Orphanage) Add(k wire.Kind, o wire.Owned, known bool) {
	s.admit(&orphan{kind: k, owned: o, known: known})
}

// addGhost releases once more what was released before.
func (s *Orphanage) addGhost(k wire.Kind, o wire.Owned) {
	s.admit(&orphan{kind: k, owned: o, known: true, ghost: true})
}

func (s *Orphanage) admit(o *orphan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := o.owned.Keys.Key
	s.byKey[key] = append(s.byKey[key], o)
	if !s.running {
		s.running = s.r.Spawn(s.run)
		return
	}
	s.wakeLocked()
}

// wakeLocked has run look what is due.
func (s *Orphanage) wakeLocked() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

// Orphan is an owner that is being released.
type Orphan struct {
	Owner wire.Owner
	Known bool // its grant ran; else nobody knows what became of it
}

// All are the owners that are being released now.
func (s *Orphanage) All() []Orphan {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Orphan
	for _, list := range s.byKey {
		for _, o := range list {
			all = append(all, Orphan{o.owned.Owner, o.known})
		}
	}
	return all
}

// Of returns the newest owners of a key that may hold it though nobody believes so. There
// may be thousands after a long outage: older ones are released by passes alone.
func (s *Orphanage) Of(key string) []wire.Owner {
	s.mu.Lock()
	defer s.mu.Unlock()
	var owners []wire.Owner
	list := s.byKey[key]
	for _, o := range list[max(0, len(list)-mostEarlier):] {
		owners = append(owners, o.owned.Owner)
	}
	return owners
}

// run releases each orphan about once a second, new ones at once, until there is
// nothing left or the client stops.
func (s *Orphanage) run() {
	timer := time.NewTimer(orphanPace)
	defer timer.Stop()
	for {
		s.start()
		if s.clear() {
			return
		}
		timer.Reset(orphanPace)
		select {
		case <-s.poke:
		case <-timer.C:
		case <-s.r.Ended.Done():
			return
		}
	}
}

// start begins the passes that are due.
func (s *Orphanage) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return
	}
	fresh, again := s.dueLocked()
	for at, list := range fresh {
		s.passLocked(at, list, false)
	}
	for at, list := range again {
		s.busy[at] = true
		s.passLocked(at, list, true)
	}
}

// dueLocked is what is to be released now, by the server that has it: what was never
// sent, and the rest but of those servers where a pass is under way.
func (s *Orphanage) dueLocked() (fresh, again map[*transport.Site][]*orphan) {
	now := s.r.Clock.Now()
	fresh, again = make(map[*transport.Site][]*orphan), make(map[*transport.Site][]*orphan)
	for key, list := range s.byKey {
		at := s.r.Site(key)
		for _, o := range list {
			switch {
			case o.done || now < o.next:
				continue
			case !o.tried:
				fresh[at] = append(fresh[at], o)
			case s.busy[at]:
				continue
			default:
				again[at] = append(again[at], o)
			}
			o.tried, o.next = true, now+orphanPace-orphanPace/10
		}
	}
	return fresh, again
}

// passLocked releases some of a server's orphans.
func (s *Orphanage) passLocked(at *transport.Site, list []*orphan, repeats bool) {
	batches := wire.InBatches(list, func(o *orphan) wire.BatchKey { return wire.BatchOf(s.r, o.kind, o.owned.Keys, o.alone) })
	s.passes.Add(1)
	if !s.r.Spawn(func() { s.pass(at, batches, repeats) }) {
		s.passes.Done()
	}
}

// pass releases batches one after the other, and ends at the first that gets no answer,
// so that it is bounded by one timeout.
func (s *Orphanage) pass(at *transport.Site, batches [][]*orphan, repeats bool) {
	defer s.passes.Done()
	mute := false
	for _, batch := range batches {
		if mute = s.release(batch, repeats) == transport.Unknown; mute {
			break
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mute[at] = mute
	if repeats {
		delete(s.busy, at)
	}
}

// Last is the passes that Close makes. It waits for those that are under way, and makes
// its own but where one of them got no answer.
func (s *Orphanage) Last() {
	s.mu.Lock()
	s.closing = true
	clear(s.mute)
	s.mu.Unlock()
	s.passes.Wait()
	s.mu.Lock()
	for _, list := range s.byKey {
		for _, o := range list {
			o.next = 0
		}
	}
	fresh, again := s.dueLocked()
	for at, list := range again {
		fresh[at] = append(fresh[at], list...)
	}
	for at, list := range fresh {
		if !s.mute[at] {
			s.passLocked(at, list, false)
		}
	}
	s.mu.Unlock()
	s.passes.Wait()
}

// clear forgets what is certain and reports whether nothing is left.
func (s *Orphanage) clear() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.r.Clock.Now()
	for key, list := range s.byKey {
		rest := list[:0]
		for _, o := range list {
			if !o.done && (o.answered == 0 || now < o.answered+retention(o.owned.Lease)) {
				rest = append(rest, o)
			}
		}
		if s.byKey[key] = rest; len(rest) == 0 {
			delete(s.byKey, key)
		}
	}
	if len(s.byKey) > 0 {
		return false
	}
	s.running = false
	return true
}

// retention is how long after the first answer an attempt of unknown outcome is
// still released: one lease covers what a stopped server runs late; the rest is
// for bytes that the network held back.
func retention(lease time.Duration) time.Duration {
	return lease + min(2*lease+orphanExtra, orphanMost)
}

// release sends one batch and notes what was answered. A refusal for good is an
// answer too: it will not change, and the key has its TTL. So is an error that is
// nobody's known answer: a proxy may send it for ever. What is not answered for all is
// asked for each.
func (s *Orphanage) release(batch []*orphan, again bool) transport.Fate {
	owned := make([]wire.Owned, len(batch))
	for i, o := range batch {
		owned[i] = o.owned
		owned[i].Unsure = !o.known
	}
	do := s.r.On(s.r.Root, transport.AttemptTimeout, nil)
	if !again && batch[0].known {
		// Among the renewals, where as a rule nothing is on its way: elsewhere the lock would
		// stay taken for a round trip more.
		do = s.r.OnLane(s.r.Root, transport.AttemptTimeout)
	}
	_, res := batch[0].kind.Release(do, owned)
	for _, o := range batch {
		if res.Fate == transport.Replied && o.known && !o.ghost {
			s.Ghosts.Remember(o.kind, &o.owned)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	failed := len(batch) > 1 && (res.Fate.Final() || res.Fate == transport.Later)
	for _, o := range batch {
		switch {
		case res.Fate == transport.Replied && o.known:
			o.done = true
		case failed && !o.alone: // once: those of one key stay together
			o.alone, o.next = true, 0
			s.wakeLocked()
		case (res.Fate == transport.Replied || res.Fate == transport.Refused || res.Fate == transport.Dubious) && o.answered == 0:
			o.answered = s.r.Clock.Now()
		}
	}
	return res.Fate
}
