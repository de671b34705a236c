package redistest

import "sync"

// Rule is what a Wire has been told to do with some commands or messages. Its
// methods are safe for concurrent use; Times and Skip belong before the
// traffic that they are about.
type Rule struct {
	command Match                              // nil in a rule about messages
	message func(channel, payload string) bool // nil in a rule about commands
	plan    plan
	drop    bool

	fired chan struct{} // closed at the first hit

	mu sync.Mutex
	// guarded by mu
	times int
	skip  int
	hits  int
}

// Times sets how many matches the rule acts on, 0 for all of them. The default
// is 1.
func (r *Rule) Times(n int) *Rule {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.times = n
	return r
}

// Skip makes the rule let the next n matches pass.
func (r *Rule) Skip(n int) *Rule {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.skip = n
	return r
}

// Hits returns how many commands or messages the rule has chosen. A command
// counts when it arrives at the wire, before anything is done with it.
func (r *Rule) Hits() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hits
}

// Fired returns a channel that is closed when the rule chooses for the first
// time.
func (r *Rule) Fired() <-chan struct{} { return r.fired }

// hit reports whether the rule acts on something that it matches.
func (r *Rule) hit() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.times > 0 && r.hits >= r.times {
		return false
	}
	if r.skip > 0 {
		r.skip--
		return false
	}
	if r.hits++; r.hits == 1 {
		close(r.fired)
	}
	return true
}
