package watchlock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	attemptTimeout = time.Second // for one try of a command
	laneConns      = 64          // of the renewal lane and node at most: none waits behind one that hangs
)

// commander is the part of a go-redis client that scripts need.
type commander interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// runner is the one place where commands leave. It is strict about time: a run
// returns when it has an outcome or when its timeout has passed, whatever the
// connection does; a command that is left behind ends with the read timeout of
// its connection. Safe for concurrent use.
type runner struct {
	// immutable
	clock   *clock
	spawn   func(func()) bool // starts a goroutine that Close waits for
	main    commander         // the caller's pool
	newLane func() redis.UniversalClient
	listen  func(context.Context) *messages // a pub/sub connection, not yet dialled
	onBack  func()                          // called when Redis answers after it did not; must not block
	bySlot  bool                            // keys of one script must share a slot

	// atomic
	broken atomic.Bool // the newest command got no reply

	// guarded by mu
	mu   sync.Mutex
	lane redis.UniversalClient // renewals' own connections; nil when closed
	shut bool                  // the client is closed: no new lane
}

// newRunner takes the clients that are known to keep one lock in one place.
// A Ring is not: when it reshards, one name has two homes and two holders.
func newRunner(rdb redis.UniversalClient) (*runner, error) {
	switch c := rdb.(type) {
	case *redis.Client:
		main := c.WithTimeout(attemptTimeout)
		opts := *main.Options() // a copy of its own, not the caller's
		opts.MaxRetries, opts.DialerRetries = -1, 1
		opts.PoolSize, opts.MinIdleConns, opts.MaxIdleConns, opts.MaxActiveConns = laneConns, 0, 0, 0
		opts.ContextTimeoutEnabled = true // an attempt's own timeout ends it on the socket too
		opts.DialTimeout, opts.PoolTimeout = attemptTimeout, attemptTimeout
		return &runner{
			main: main,
			newLane: func() redis.UniversalClient {
				o := opts
				return redis.NewClient(&o)
			},
			listen: func(ctx context.Context) *messages {
				return &messages{PubSub: main.Subscribe(ctx)}
			},
		}, nil
	case *redis.ClusterClient:
		opts := *c.Options()
		opts.MaxRetries = -1
		opts.PoolSize, opts.MinIdleConns, opts.MaxIdleConns, opts.MaxActiveConns = laneConns, 0, 0, 0
		opts.ContextTimeoutEnabled = true // an attempt's own timeout ends it on the socket too
		opts.DialTimeout, opts.PoolTimeout = attemptTimeout, attemptTimeout
		opts.ReadTimeout, opts.WriteTimeout = attemptTimeout, attemptTimeout
		newClient := func() redis.UniversalClient {
			o := opts
			return redis.NewClusterClient(&o)
		}
		return &runner{
			main: c, bySlot: true, newLane: newClient,
			listen: func(ctx context.Context) *messages {
				// The caller's read timeout is not ours to change on a cluster.
				own := newClient()
				return &messages{own.Subscribe(ctx), own}
			},
		}, nil
	case *redis.Ring:
		return nil, errors.New("watchlock: a redis.Ring cannot keep locks: when it reshards, two clients hold one lock")
	}
	return nil, fmt.Errorf("watchlock: cannot use a %T: want a *redis.Client or a *redis.ClusterClient", rdb)
}

// messages is a pub/sub connection whose handshake is bounded by
// attemptTimeout, whatever the caller's timeouts are.
type messages struct {
	*redis.PubSub
	own redis.UniversalClient // made for it alone; nil when it is the caller's
}

// Close closes the connection and what was made for it.
func (m *messages) Close() error {
	err := m.PubSub.Close()
	if m.own != nil {
		err = errors.Join(err, m.own.Close())
	}
	return err
}

// isNil reports whether rdb is nil, or a nil pointer in an interface.
func isNil(rdb redis.UniversalClient) bool {
	if rdb == nil {
		return true
	}
	v := reflect.ValueOf(rdb)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// result is the outcome of a call.
type result struct {
	fate   fate
	reply  any
	err    error         // nil when fate is replied
	sentAt time.Duration // trust clock, read before the call was handed over
	took   time.Duration
}

// do runs c on the caller's pool and returns within timeout, or when stop is
// closed. ctx carries values only.
func (r *runner) do(ctx context.Context, c call, timeout time.Duration, stop <-chan struct{}) result {
	return r.run(ctx, r.main, c, timeout, stop)
}

// renew is do on the renewal lane, which the caller's own commands cannot fill.
func (r *runner) renew(ctx context.Context, c call, timeout time.Duration) result {
	return r.run(ctx, r.openLane(), c, timeout, nil)
}

func (r *runner) run(ctx context.Context, on commander, c call, timeout time.Duration, stop <-chan struct{}) result {
	timeout = min(timeout, attemptTimeout)
	sentAt := r.clock.now()
	done := make(chan result, 1)
	started := r.spawn(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
		defer cancel()
		done <- r.process(ctx, on, c)
	})
	if !started {
		return result{fate: refused, err: ErrClosed, sentAt: sentAt}
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	var res result
	select {
	case res = <-done:
	case <-timer.C:
		res = result{fate: unknown, err: unavailable(&noAnswerError{timeout})}
	case <-stop:
		err := unavailable(&noAnswerError{r.clock.now() - sentAt})
		return result{fate: unknown, err: err, sentAt: sentAt}
	}
	res.sentAt, res.took = sentAt, r.clock.now()-sentAt
	r.observe(res.fate)
	return res
}

// process sends c, and once more with its source when the server does not know
// the script: then it certainly did not run.
func (r *runner) process(ctx context.Context, on commander, c call) result {
	cmd := c.command(ctx, false)
	err := on.Process(ctx, cmd)
	if isNoScript(err) {
		cmd = c.command(ctx, true)
		err = on.Process(ctx, cmd)
	}
	if ctx.Err() != nil && !neverSent(err) && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)) {
		// Our own timeout, which must not look like that of the caller's context.
		err = &noAnswerError{attemptTimeout}
	}
	res := result{}
	res.fate, res.err = judge(err)
	if res.fate == replied {
		res.reply = cmd.Val()
	}
	return res
}

// observe notices that Redis is back: what it knew may be gone with a restart
// or a failover, so leases are verified at once.
func (r *runner) observe(f fate) {
	switch f {
	case unknown, unsent:
		r.broken.Store(true)
	default:
		if r.broken.Load() && r.broken.CompareAndSwap(true, false) {
			r.onBack()
		}
	}
}

// openLane opens the renewal lane if it is closed, unless it is so for good.
func (r *runner) openLane() commander {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shut {
		return r.main
	}
	if r.lane == nil {
		r.lane = r.newLane()
	}
	return r.lane
}

// warmLane opens a connection before the first renewal needs it: later there
// may be none to be had.
func (r *runner) warmLane(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	_ = r.openLane().Process(ctx, redis.NewStatusCmd(ctx, "ping"))
}

// closeLane closes the renewal lane and its connections, for good or until the
// next renewal.
func (r *runner) closeLane(shut bool) {
	r.mu.Lock()
	lane := r.lane
	r.lane = nil
	r.shut = r.shut || shut
	r.mu.Unlock()
	if lane != nil {
		_ = lane.Close()
	}
}

// neverSent reports whether err says that there was no connection to send on.
func neverSent(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return true
	}
	var cert *tls.CertificateVerificationError
	return errors.As(err, &cert) ||
		errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted)
}
