package transport

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Site is what is known of one server. Nothing of one waits for, is counted with, or is
// judged by another's.
type Site struct {
	// immutable
	Node     Node // of a cluster; the zero node while that is unknown, and of the one server
	renewals *lane

	// atomic
	broken     atomic.Bool  // it gave no answer, and none has come since
	heard      atomic.Int64 // when its newest answer came
	VerifiedAt atomic.Int64 // when all that is held there was last asked about, or will be; 0 never
}

// Node is one of a cluster's. The zero node is the only one there is.
type Node struct{ rdb *redis.Client }

// Known reports whether n is one of a cluster's.
func (n Node) Known() bool { return n.rdb != nil }

// Addr is where it listens; empty for the zero node.
func (n Node) Addr() string {
	if n.rdb == nil {
		return ""
	}
	return n.rdb.Options().Addr
}

func (r *Runner) newSite(at Node) *Site {
	return &Site{Node: at, renewals: r.newLane(true)}
}

// Site is the server that has a key, as far as is known. It asks nobody.
func (r *Runner) Site(key string) *Site {
	if r.Cluster == nil {
		return r.one
	}
	at, err := r.Home(endedContext{r.Root}, key)
	if err != nil || !at.Known() {
		return r.one // nobody knows
	}
	return r.SiteAt(at)
}

// SiteAt is the server that a node is.
func (r *Runner) SiteAt(at Node) *Site {
	if !at.Known() {
		return r.one
	}
	addr := at.Addr()
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sites[addr]
	if s == nil {
		s = r.newSite(at)
		r.sites[addr] = s
	}
	return s
}

// endedContext is a context for questions that must not wait for an answer.
type endedContext struct{ context.Context }

func (endedContext) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

func (endedContext) Err() error { return context.Canceled }

// observe notes how a call to s went that was sent at the instant sentAt. When a server
// is back, what it knew may be gone with a restart or a failover, so leases there are
// verified at once. One command without an answer is no outage while others have theirs.
func (r *Runner) observe(s *Site, res *Result, sentAt time.Duration) {
	switch res.Fate {
	case Unknown, Dubious, Unsent, Barred:
		if time.Duration(s.heard.Load()) <= sentAt {
			s.broken.Store(true)
			r.AskSlots()
		}
		return
	case Later:
		r.AskSlots() // a node that was cut off answers, and will for long
		if neverSent(res.Err) {
			return
		}
	}
	s.heard.Store(int64(r.Clock.Now()))
	if s.broken.Load() && s.broken.CompareAndSwap(true, false) {
		r.OnBack(s)
	}
}

// AskSlots has go-redis ask anew which nodes of a cluster have which slots. By
// itself it does so when a node tells it of a move, which one that is dead does
// not, or each 10 s.
func (r *Runner) AskSlots() {
	if r.Cluster == nil {
		return
	}
	now, last := int64(r.Clock.Now()), r.slotsAskedAt.Load()
	if last != 0 && now-last < int64(slotsGap) || !r.askingSlots.CompareAndSwap(false, true) {
		return
	}
	r.slotsAskedAt.Store(now)
	if !r.Spawn(r.reload) {
		r.askingSlots.Store(false)
	}
}

// reload is askSlots's goroutine. ReloadState would start one that nobody waits for.
func (r *Runner) reload() {
	defer r.askingSlots.Store(false)
	ctx, cancel := context.WithTimeout(r.Root, AttemptTimeout)
	defer cancel()
	_ = r.Cluster.ForEachMaster(ctx, func(context.Context, *redis.Client) error { return nil })
}
