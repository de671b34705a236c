package pubsub

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// connection is one pub/sub connection and its reader.
type connection struct {
	ps     *transport.Messages
	ctx    context.Context // ends with the connection
	cancel context.CancelFunc
	since  time.Duration
	failed chan error // one slot; the reader's last word

	// owned by run
	reading bool          // something was subscribed, and listen runs
	placed  time.Duration // when its node was last seen to have a slot of ours
	asked   bool          // a ping is not answered yet
	pinged  time.Duration // when it left

	// atomic
	heard   atomic.Int64 // when something last came in
	greeted atomic.Bool  // something has
}

// deny tells once that waiting goes by polling alone.
func (s *Subscriber) deny(err redis.Error) {
	if s.denied.CompareAndSwap(false, true) {
		s.tell(false, "cannot subscribe to releases; waiters poll", err)
	}
}

func (cn *connection) unsubscribe(sub subscription) error {
	if sub.sharded {
		return cn.ps.SUnsubscribe(cn.ctx, sub.channel)
	}
	return cn.ps.Unsubscribe(cn.ctx, sub.channel)
}

// connect makes a connection object; go-redis dials when the first command is
// written. Everything wanted has to be subscribed on it anew.
func (e *ear) connect(ctx context.Context) (*connection, error) {
	at, err := e.place(ctx)
	if err != nil {
		return nil, err
	}
	e.s.anew(e)
	e.at.Store(e.s.r.SiteAt(at))
	ctx, cancel := transport.WithSocket(ctx)
	return &connection{
		ps: e.s.r.Listen(ctx, at), ctx: ctx, cancel: cancel,
		since: e.s.r.Clock.Now(), placed: e.s.r.Clock.Now(), failed: make(chan error, 1),
	}, nil
}

// place is where to connect to: on a cluster, classic messages are heard at any
// node, so at one that has a channel's slot.
func (e *ear) place(ctx context.Context) (transport.Node, error) {
	r := e.s.r
	if e.node.Known() || r.Home == nil {
		return e.node, nil
	}
	ctx, cancel := context.WithTimeout(ctx, transport.AttemptTimeout)
	defer cancel()
	return r.Home(ctx, e.s.someChannel(e))
}

// drop closes a connection; its reader ends by that.
func (e *ear) drop(cn *connection) {
	if cn != nil {
		cn.cancel()
		_ = cn.ps.Close()
	}
}

// strayed reports whether a connection for classic messages is to a node that has no
// slot of any of its channels. It may have left the cluster: then it answers pings and
// hears nothing.
func (e *ear) strayed(cn *connection) bool {
	r, now := e.s.r, e.s.r.Clock.Now()
	if e.node.Known() || r.Home == nil || now-cn.placed < pingPace {
		return false
	}
	cn.placed = now
	ctx, cancel := context.WithTimeout(cn.ctx, transport.AttemptTimeout)
	defer cancel()
	for _, channel := range e.s.channels() {
		at, err := r.Home(ctx, channel)
		if err != nil || at.Addr() == cn.ps.At.Addr() {
			return false
		}
	}
	return true
}

var errStrayed = errors.New("the node has none of the slots that are listened for")
