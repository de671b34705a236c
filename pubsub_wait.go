package watchlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
)

const (
	pingPace       = time.Second // while somebody waits
	pingAnswer     = time.Second // no answer in this time: another connection
	topicLinger    = time.Second // a channel outlives its last waiter by this
	garbageGap     = 50 * time.Millisecond
	redialPause    = 50 * time.Millisecond
	redialMost     = time.Second
	releasePayload = "0"
	claimPayload   = "2" // behind a release of a client like this one; Redisson passes over it
)

// subscriber keeps one pub/sub connection for all waiters of a client. What it
// hears are hints: waiters poll as well, so a lost message costs time only.
//
// One goroutine, run, owns the connection and all that is written to it; one
// more per connection, listen, reads from it. Both end when no channel has been
// wanted for a while, and at Close.
type subscriber struct {
	c    *Client
	poke chan struct{} // one slot: what is wanted has changed

	// atomic
	denied atomic.Bool // warned that the user may not subscribe
	broken atomic.Bool // the connection failed, and none has been confirmed since

	mu sync.Mutex
	// guarded by mu
	topics  map[string]*topic
	running bool
	quit    context.CancelFunc // ends run's connection; nil when not running
}

// topic is one channel.
type topic struct {
	gates     []*gate       // who waits: two keys, "a" and "{a}", share a channel
	unused    time.Duration // since when
	sent      bool          // SUBSCRIBE left on the present connection
	confirmed bool          // and was answered
	garbage   time.Duration // when an unknown message last counted
}

func newSubscriber(c *Client) *subscriber {
	return &subscriber{c: c, poke: make(chan struct{}, 1), topics: make(map[string]*topic)}
}

// join has g hear of the channel's messages. It reports whether the
// subscription was already there: then messages may have passed unheard.
func (s *subscriber) join(channel string, g *gate) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[channel]
	if t == nil {
		t = &topic{}
		s.topics[channel] = t
	}
	if !slices.Contains(t.gates, g) {
		t.gates = append(t.gates, g)
	}
	if !s.running {
		ctx, cancel := context.WithCancel(s.c.root)
		s.quit = cancel
		if s.running = s.c.spawn(func() { s.run(ctx) }); !s.running {
			cancel()
		}
	}
	s.wake()
	return t.confirmed
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
		s.wake()
	}
}

// hears reports whether what is published on channel is told to this client too.
func (s *subscriber) hears(channel string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[channel]
	return t != nil && t.confirmed
}

// close ends the goroutines, at once.
func (s *subscriber) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.quit != nil {
		s.quit()
	}
}

func (s *subscriber) wake() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

// connection is one pub/sub connection and its reader.
type connection struct {
	ps     *messages
	ctx    context.Context // ends with the connection
	cancel context.CancelFunc
	since  time.Duration
	failed chan error // one slot; the reader's last word

	// owned by run
	reading bool          // something was subscribed, and listen runs
	asked   bool          // a ping is not answered yet
	pinged  time.Duration // when it left

	// atomic
	heard atomic.Int64 // when something last came in
}

// run owns the connection.
func (s *subscriber) run(ctx context.Context) {
	var cn *connection
	var pause, redial time.Duration // between two connections; when to make the next
	fail := func() {
		s.broken.Store(true)
		now := s.c.clock.now()
		if now-cn.since < redialMost {
			pause = min(max(2*pause, redialPause), redialMost)
		} else {
			pause = 0
		}
		redial = now + pause
		s.drop(cn)
		cn = nil
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		next := redial - s.c.clock.now()
		if cn == nil && next <= 0 {
			cn = s.connect(ctx)
		}
		var failed chan error
		if cn != nil {
			var err error
			if next, err = s.tend(cn); err != nil {
				fail()
				continue
			}
			failed = cn.failed
		}
		if s.stop() {
			s.drop(cn)
			return
		}
		timer.Reset(next)
		select {
		case <-timer.C:
		case <-s.poke:
		case err := <-failed:
			s.c.cfg.log.Info("connection for messages lost", zap.Error(err))
			fail()
		case <-ctx.Done():
			s.drop(cn)
			return
		}
	}
}

// stop ends run when no channel is wanted any more.
func (s *subscriber) stop() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.topics) > 0 {
		return false
	}
	s.running = false
	s.quit()
	s.quit = nil
	return true
}

// connect makes a connection object; go-redis dials when the first command is
// written. Everything wanted has to be subscribed on it anew.
func (s *subscriber) connect(ctx context.Context) *connection {
	s.mu.Lock()
	for _, t := range s.topics {
		t.sent, t.confirmed = false, false
	}
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	return &connection{
		ps: s.c.runner.listen(ctx), ctx: ctx, cancel: cancel,
		since: s.c.clock.now(), failed: make(chan error, 1),
	}
}

// drop closes a connection; its reader ends by that.
func (s *subscriber) drop(cn *connection) {
	if cn != nil {
		cn.cancel()
		_ = cn.ps.Close()
	}
}

// tend writes what has to be written: subscriptions, cancellations, a ping. It
// returns when to be called again at the latest.
func (s *subscriber) tend(cn *connection) (time.Duration, error) {
	add, remove, waiting := s.changes()
	for _, channel := range add {
		if err := s.subscribe(cn, channel); err != nil {
			return 0, err
		}
	}
	for _, channel := range remove {
		if err := cn.ps.Unsubscribe(cn.ctx, channel); err != nil {
			return 0, err
		}
	}
	if !waiting {
		cn.asked = false
		return topicLinger, nil
	}
	return s.ping(cn)
}

// changes returns what to subscribe and what to give up.
func (s *subscriber) changes() (add, remove []string, waiting bool) {
	now := s.c.clock.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for channel, t := range s.topics {
		switch {
		case len(t.gates) == 0 && now-t.unused >= topicLinger:
			delete(s.topics, channel)
			if t.sent {
				remove = append(remove, channel)
			}
			continue
		case len(t.gates) > 0 && !t.sent:
			add = append(add, channel)
			t.sent = true
		}
		waiting = waiting || len(t.gates) > 0
	}
	return add, remove, waiting
}

// subscribe writes one SUBSCRIBE, each channel its own so that a user who lacks
// the right to one is refused only that, and starts the reader with the first.
func (s *subscriber) subscribe(cn *connection, channel string) error {
	dial, cancel := context.WithTimeout(cn.ctx, attemptTimeout)
	defer cancel()
	if err := cn.ps.Subscribe(dial, channel); err != nil {
		return err
	}
	if !cn.reading {
		cn.reading = true
		cn.heard.Store(int64(s.c.clock.now()))
		if !s.c.spawn(func() { s.listen(cn) }) {
			return ErrClosed
		}
	}
	return nil
}

// ping asks for a sign of life each pingPace. The connection is given up when
// nothing at all was heard for pingAnswer after it.
func (s *subscriber) ping(cn *connection) (time.Duration, error) {
	if !cn.reading {
		return pingPace, nil
	}
	now, heard := s.c.clock.now(), time.Duration(cn.heard.Load())
	switch {
	case cn.asked && heard < cn.pinged && now-cn.pinged >= pingAnswer:
		return 0, &noAnswerError{pingAnswer}
	case cn.asked && heard < cn.pinged:
		return cn.pinged + pingAnswer - now, nil
	case now-heard < pingPace:
		return heard + pingPace - now, nil
	}
	cn.asked, cn.pinged = true, now
	return pingAnswer, cn.ps.Ping(cn.ctx)
}

// listen reads a connection until it fails. It hands hints on itself: another
// goroutine in between would cost every hand-over a switch.
func (s *subscriber) listen(cn *connection) {
	for {
		msg, err := cn.ps.ReceiveTimeout(cn.ctx, 0)
		var reply redis.Error
		switch {
		case errors.As(err, &reply):
			s.deny(reply)
		case err != nil:
			cn.failed <- err
			return
		}
		cn.heard.Store(int64(s.c.clock.now()))
		switch m := msg.(type) {
		case *redis.Message:
			s.message(m.Channel, m.Payload)
		case *redis.Subscription:
			if m.Kind == "subscribe" {
				s.confirm(m.Channel)
			}
		}
	}
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
	gates := slices.Clone(t.gates)
	s.mu.Unlock()
	for _, g := range gates {
		g.hint(h)
	}
}

// confirm hints as well: what was released before it went unheard. When it ends
// an outage, what is held may be gone with it.
func (s *subscriber) confirm(channel string) {
	s.mu.Lock()
	var gates []*gate
	if t := s.topics[channel]; t != nil {
		t.confirmed = true
		gates = slices.Clone(t.gates)
	}
	s.mu.Unlock()
	for _, g := range gates {
		g.hint(hintConfirmed)
	}
	if s.broken.CompareAndSwap(true, false) {
		s.c.dog.verifyAll()
	}
}

// deny tells once that waiting goes by polling alone.
func (s *subscriber) deny(err redis.Error) {
	if s.denied.CompareAndSwap(false, true) {
		s.c.cfg.log.Warn("cannot subscribe to releases; waiters poll", zap.Error(err))
	}
}
