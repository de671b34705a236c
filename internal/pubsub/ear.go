package pubsub

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/transport"
)

const (
	pingPace    = time.Second // while somebody waits
	pingAnswer  = time.Second // no answer in this time: another connection
	topicLinger = time.Second // a channel outlives its last waiter by this
	garbageGap  = 50 * time.Millisecond
	redialPause = 50 * time.Millisecond
	redialMost  = time.Second
)

// ear is one pub/sub connection, with all that is subscribed on it.
//
// One goroutine, run, owns the connection and all that is written to it; one
// more per connection, listen, reads from it. Both end when no channel of the ear
// has been wanted for a while, and at Close.
type ear struct {
	// immutable
	s    *Subscriber
	node transport.Node // where to listen; the zero node leaves that to the connection
	poke chan struct{}  // one slot: what is wanted has changed

	// atomic
	broken atomic.Bool                    // the connection failed, and none has been greeted since
	prove  atomic.Bool                    // ask for a sign of life at once
	at     atomic.Pointer[transport.Site] // where the newest connection leads

	// guarded by s.mu
	quit      context.CancelFunc // ends run's connection
	shardless bool               // the server does not know sharded channels
	kept      bool               // something is held at its node
	drops     []subscription     // of topics that are heard elsewhere now
}

// site is the server that it listens at.
func (e *ear) site() *transport.Site {
	if at := e.at.Load(); at != nil {
		return at
	}
	return e.s.r.SiteAt(e.node)
}

func (e *ear) wake() {
	select {
	case e.poke <- struct{}{}:
	default:
	}
}

// run owns the connection.
func (e *ear) run(ctx context.Context) {
	clock := e.s.r.Clock
	var cn *connection
	var pause, redial time.Duration // between two connections; when to make the next
	fail := func(lived time.Duration) {
		e.broken.Store(true)
		e.s.shut(e)
		if lived < redialMost {
			pause = min(max(2*pause, redialPause), redialMost)
		} else {
			pause = 0
		}
		redial = clock.Now() + pause
		e.drop(cn)
		cn = nil
		e.s.askSlots()
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		next := redial - clock.Now()
		if cn == nil && next <= 0 {
			var err error
			if cn, err = e.connect(ctx); err != nil {
				fail(0)
				next = pause
			}
		}
		var failed chan error
		if cn != nil {
			var err error
			if next, err = e.tend(cn); err != nil {
				fail(clock.Now() - cn.since)
				continue
			}
			failed = cn.failed
		}
		if e.s.stop(e) {
			e.s.shut(e)
			e.drop(cn)
			return
		}
		timer.Reset(next)
		select {
		case <-timer.C:
		case <-e.poke:
		case err := <-failed:
			e.s.tell(true, "connection for messages lost", err)
			fail(clock.Now() - cn.since)
		case <-ctx.Done():
			e.drop(cn)
			return
		}
	}
}

// tend writes what has to be written: subscriptions, cancellations, a ping. It
// returns when to be called again at the latest.
func (e *ear) tend(cn *connection) (time.Duration, error) {
	if cn.ps.Term != e.s.r.Term() && !e.node.Known() {
		return 0, transport.ErrMoved
	}
	todo := e.s.changes(e)
	// First: a channel that went elsewhere and came back is in both.
	for _, sub := range todo.remove {
		if err := cn.unsubscribe(sub); err != nil {
			return 0, err
		}
	}
	for _, sub := range todo.add {
		if err := e.subscribe(cn, sub); err != nil {
			return 0, err
		}
	}
	if todo.kept && !cn.reading {
		if err := e.greet(cn); err != nil {
			return 0, err
		}
	}
	if todo.waiting && e.strayed(cn) {
		return 0, errStrayed
	}
	next, err := e.ping(cn, todo.waiting)
	return min(next, todo.next), err
}

// greet opens a connection on which nothing is subscribed: while something is held at a
// node, the end of the connection there tells of a restart at once.
func (e *ear) greet(cn *connection) error {
	dial, cancel := context.WithTimeout(cn.ctx, transport.AttemptTimeout)
	defer cancel()
	if err := cn.ps.Ping(dial); err != nil {
		return err
	}
	return e.read(cn)
}

// read starts the reader of a connection, which is open.
func (e *ear) read(cn *connection) error {
	if cn.reading {
		return nil
	}
	cn.reading = true
	cn.heard.Store(int64(e.s.r.Clock.Now()))
	if !e.s.r.Spawn(func() { e.listen(cn) }) {
		return transport.ErrClosed
	}
	return nil
}

// greeted follows the first that comes in on a connection. When it is not the first that the
// ear has, what is held there is verified: it may have gone with the last.
func (e *ear) greeted(cn *connection) {
	if !cn.greeted.CompareAndSwap(false, true) {
		return
	}
	at := e.site()
	e.s.opened(e, at)
	if e.broken.CompareAndSwap(true, false) {
		e.s.verify(at)
	}
}

// subscribe writes one SUBSCRIBE, each channel its own so that a user who lacks
// the right to one is refused only that, and starts the reader with the first.
func (e *ear) subscribe(cn *connection, sub subscription) error {
	dial, cancel := context.WithTimeout(cn.ctx, transport.AttemptTimeout)
	defer cancel()
	write := cn.ps.Subscribe
	if sub.sharded {
		write = cn.ps.SSubscribe
	}
	if r := e.s.r; r.Home != nil && !sub.sharded {
		home, err := r.Home(dial, sub.channel)
		e.s.setNear(sub.channel, err == nil && home.Addr() == cn.ps.At.Addr())
	}
	if err := write(dial, sub.channel); err != nil {
		return err
	}
	return e.read(cn)
}

// ping asks for a sign of life each pingPace while somebody waits, and when one has to be
// proved. The connection is given up when nothing at all was heard for pingAnswer after it.
func (e *ear) ping(cn *connection, waiting bool) (time.Duration, error) {
	if !cn.reading {
		return pingPace, nil
	}
	now, heard := e.s.r.Clock.Now(), time.Duration(cn.heard.Load())
	if cn.asked && heard < cn.pinged {
		if now-cn.pinged >= pingAnswer {
			return 0, transport.NoAnswer(pingAnswer)
		}
		return cn.pinged + pingAnswer - now, nil
	}
	cn.asked = false
	switch prove := e.prove.Swap(false); {
	case !prove && !waiting:
		return pingPace, nil
	case !prove && now-heard < pingPace:
		return heard + pingPace - now, nil
	}
	cn.asked, cn.pinged = true, now
	return pingAnswer, cn.ps.Ping(cn.ctx)
}

// listen reads a connection until it fails. It hands hints on itself: another
// goroutine in between would cost every hand-over a switch.
func (e *ear) listen(cn *connection) {
	for {
		msg, err := cn.ps.ReceiveTimeout(cn.ctx, 0)
		var reply redis.Error
		if errors.As(err, &reply) {
			err = e.refusal(reply)
		}
		if err != nil {
			cn.failed <- err
			return
		}
		cn.heard.Store(int64(e.s.r.Clock.Now()))
		e.greeted(cn)
		switch m := msg.(type) {
		case *redis.Message:
			e.s.message(m.Channel, m.Payload)
		case *redis.Subscription:
			switch m.Kind {
			case "subscribe", "ssubscribe":
				e.s.confirm(e, subscription{m.Channel, m.Kind == "ssubscribe"})
			case "sunsubscribe":
				e.s.gone(e, m.Channel)
			}
		}
	}
}

// refusal acts on a subscription that was refused. It returns the error for
// which the connection is to be given up, to try again on another.
func (e *ear) refusal(err redis.Error) error {
	code, rest, _ := strings.Cut(err.Error(), " ")
	switch {
	case code == "MOVED" && e.s.routed:
		number, _, _ := strings.Cut(rest, " ")
		if slot, bad := strconv.Atoi(number); bad == nil {
			e.s.moved(e, slot)
			return nil
		}
	case e.s.sharded && transport.DoesNotKnow(err):
		if e.s.withoutShards(e) {
			e.s.tell(true, "the server has no sharded channels; listening to classic ones", err)
		}
		return nil
	case transport.SaysLater(code):
		return err
	case transport.Forbidden(err) && strings.Contains(err.Error(), "'ping'"):
		return nil // as good as an answer
	}
	e.s.deny(err)
	return nil
}
