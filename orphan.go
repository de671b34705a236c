package watchlock

import (
	"sync"
	"time"
)

const (
	orphanPace  = time.Second // between two releases of the same orphan
	orphanExtra = 5 * time.Second
	orphanMost  = 2 * time.Minute
	batchSize   = 100 // keys in one script
)

// orphanage releases owners that nobody believes in: of attempts whose outcome
// is unknown, of grants that nobody wants, and of releases that got no answer.
//
// An attempt of unknown outcome may run yet: a server that was stopped reads its
// sockets in any order, and a network may hold bytes back. So its release is
// repeated, well past the first answer. A known grant needs one answer.
type orphanage struct {
	c    *Client
	poke chan struct{} // one slot
	turn chan struct{} // one slot, full during a pass

	mute bool // the newest pass got no answer; owned by who has the turn

	mu      sync.Mutex
	byKey   map[string][]*orphan
	running bool
}

type orphan struct {
	kind     kind
	owned    ownedKey
	known    bool          // the grant ran, and runs no more
	answered time.Duration // when a release of it was first answered; 0 not yet
	next     time.Duration // when to release it again
	alone    bool          // company failed for good
	done     bool
}

func newOrphanage(c *Client) *orphanage {
	return &orphanage{c: c, poke: make(chan struct{}, 1), turn: make(chan struct{}, 1), byKey: make(map[string][]*orphan)}
}

// add releases o in the background, now and until it is certain. known says
// that the acquire of this owner has certainly run.
func (s *orphanage) add(k kind, o ownedKey, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byKey[o.keys.key] = append(s.byKey[o.keys.key], &orphan{kind: k, owned: o, known: known})
	if !s.running {
		s.running = s.c.spawn(s.run)
		return
	}
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

// of returns the owners of a key that may hold it though nobody believes so.
func (s *orphanage) of(key string) []owner {
	s.mu.Lock()
	defer s.mu.Unlock()
	var owners []owner
	for _, o := range s.byKey[key] {
		owners = append(owners, o.owned.owner)
	}
	return owners
}

// run releases each orphan about once a second, new ones at once, until there is
// nothing left or the client stops.
func (s *orphanage) run() {
	for {
		s.pass()
		if s.clear() {
			return
		}
		timer := time.NewTimer(orphanPace)
		select {
		case <-s.poke:
		case <-timer.C:
		case <-s.c.stopping:
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// pass releases what is due. It ends at the first batch that gets no answer, so
// that it is bounded by one timeout.
func (s *orphanage) pass() {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	s.passInTurn()
}

func (s *orphanage) passInTurn() {
	s.mute = false
	for _, batch := range s.batches() {
		if s.mute = s.release(batch) == unknown; s.mute {
			return
		}
	}
}

// last is the pass that Close makes. When one is under way it waits for that,
// and makes its own only if Redis answered.
func (s *orphanage) last() {
	waited := false
	select {
	case s.turn <- struct{}{}:
	default:
		s.turn <- struct{}{}
		waited = true
	}
	defer func() { <-s.turn }()
	if !waited || !s.mute {
		s.passInTurn()
	}
}

// clear forgets what is certain and reports whether nothing is left.
func (s *orphanage) clear() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.c.clock.now()
	for key, list := range s.byKey {
		rest := list[:0]
		for _, o := range list {
			if !o.done && (o.answered == 0 || now < o.answered+retention(o.owned.lease)) {
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

// batches groups what can go in one script: a kind, a slot on a cluster, and
// only what has not made company fail.
func (s *orphanage) batches() [][]*orphan {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.c.clock.now()
	var due []*orphan
	for _, list := range s.byKey {
		for _, o := range list {
			if o.next <= now && !o.done {
				o.next = now + orphanPace - orphanPace/10
				due = append(due, o)
			}
		}
	}
	return inBatches(due, func(o *orphan) batchKey { return s.c.batchOf(o.kind, o.owned.keys, o.alone) })
}

// release sends one batch and notes what was answered. A refusal for good is an
// answer too: it will not change, and the key has its TTL.
func (s *orphanage) release(batch []*orphan) fate {
	owned := make([]ownedKey, len(batch))
	for i, o := range batch {
		owned[i] = o.owned
	}
	_, res := batch[0].kind.release(s.c.runner.on(s.c.root, attemptTimeout, nil), owned)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range batch {
		switch {
		case res.fate == replied && o.known:
			o.done = true
		case (res.fate == replied || res.fate == refused) && o.answered == 0:
			o.answered = s.c.clock.now()
		}
		o.alone = o.alone || res.fate == refused && len(batch) > 1
	}
	return res.fate
}

// batchKey says what can share a script. Slot is -1 where all keys can.
type batchKey struct {
	kind kind
	slot int
	key  string // of one that goes alone
}

// batchOf says with what a lock can share a script.
func (c *Client) batchOf(k kind, keys *lockKeys, alone bool) batchKey {
	b := batchKey{kind: k, slot: -1}
	if c.runner.bySlot {
		b.slot = keys.slot
	}
	if alone {
		b.key = keys.key
	}
	return b
}

// inBatches splits items into groups of one batchKey and at most batchSize.
func inBatches[T any](items []T, key func(T) batchKey) [][]T {
	var batches [][]T
	open := make(map[batchKey]int)
	for _, it := range items {
		k := key(it)
		i, ok := open[k]
		if !ok || len(batches[i]) == batchSize {
			i = len(batches)
			open[k] = i
			batches = append(batches, nil)
		}
		batches[i] = append(batches[i], it)
	}
	return batches
}
