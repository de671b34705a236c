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
	attemptTimeout = time.Second            // for one try of a command
	lookGap        = 100 * time.Millisecond // between two questions who has which slots
	laneConns      = 64                     // of the renewal lane and node at most: none waits behind one that hangs
)

// commander is the part of a go-redis client that calls need.
type commander interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
}

// runner is the one place where commands leave. A bounded run returns when it has
// an outcome or when its timeout has passed, whatever the connection does; one on
// the caller's goroutine takes an attempt's timeout and a little more, by the read
// timeout of the connection. Safe for concurrent use.
type runner struct {
	// immutable
	clock   *clock
	spawn   func(func()) bool // starts a goroutine that Close waits for
	root    context.Context
	main    commander // the caller's pool
	newLane func() redis.UniversalClient
	listen  func(context.Context, node) *messages // a pub/sub connection, not yet dialled
	onBack  func()                                // called when Redis answers after it did not; must not block
	bySlot  bool                                  // keys of one script must share a slot
	only    *lane                                 // to the one node; nil on a cluster

	// immutable, of a cluster; nil elsewhere
	home func(ctx context.Context, channel string) (node, error) // who has its slot, as far as is known

	// atomic
	broken   atomic.Bool  // the newest command got no reply
	looking  atomic.Bool  // reload runs
	lookedAt atomic.Int64 // when it was last started; 0 never

	// guarded by mu
	mu       sync.Mutex
	lanes    map[int]*lane         // by slot, on a cluster
	renewals *lane                 // to own
	own      redis.UniversalClient // renewals' own connections; nil when closed
	shut     bool                  // the client is closed: no new connections
}

// newRunner takes the clients that are known to keep one lock in one place.
// A Ring is not: when it reshards, one name has two homes and two holders.
func newRunner(rdb redis.UniversalClient) (*runner, error) {
	switch c := rdb.(type) {
	case *redis.Client:
		main := c.WithTimeout(attemptTimeout)
		opts := *main.Options()              // a copy of its own, not the caller's
		opts.PushNotificationProcessor = nil // two clients cannot register handlers with one
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
			listen: func(ctx context.Context, at node) *messages {
				return &messages{PubSub: main.Subscribe(ctx), at: at}
			},
		}, nil
	case *redis.ClusterClient:
		opts := *c.Options()
		opts.PushNotificationProcessor = nil // as above
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
			listen: func(ctx context.Context, at node) *messages {
				// The caller's read timeout is not ours to change on a cluster.
				o := *at.rdb.Options()
				o.MaxRetries, o.DialerRetries = -1, 1
				o.PoolSize, o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = 1, 0, 0, 0
				o.ContextTimeoutEnabled = true
				o.DialTimeout, o.PoolTimeout = attemptTimeout, attemptTimeout
				o.ReadTimeout, o.WriteTimeout = attemptTimeout, attemptTimeout
				own := opts.NewClient(&o)
				return &messages{own.Subscribe(ctx), at, own}
			},
			home: func(ctx context.Context, channel string) (node, error) {
				master, err := c.MasterForKey(ctx, channel)
				return node{master}, err
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
	at  node          // of a cluster
	own *redis.Client // made for it alone; nil when it is the caller's
}

// node is one of a cluster's. The zero node is the only one there is.
type node struct{ rdb *redis.Client }

func (n node) known() bool { return n.rdb != nil }

func (n node) addr() string {
	if n.rdb == nil {
		return ""
	}
	return n.rdb.Options().Addr
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
	ints   []int64       // a script's reply, when it is integers
	reply  any           // else
	err    error         // nil when fate is replied
	sentAt time.Duration // trust clock, read before the call was handed over
	took   time.Duration
}

// doer runs calls for a kind, in the way and time that one purpose needs.
type doer struct {
	r       *runner
	way     way
	ctx     context.Context // for its values
	timeout time.Duration
	stop    <-chan struct{}
}

// way is how a doer runs.
type way int

const (
	apart  way = iota // on the caller's pool, apart from the caller's goroutine: strict about time
	hereby            // on the caller's pool and goroutine: up to attemptTimeout and a little more
	onLane            // on the renewal lane, which the caller's own commands cannot fill: strict
)

// run runs c.
func (d doer) run(c call) result {
	switch d.way {
	case hereby:
		return d.r.lane(&c).runHere(d.ctx, c)
	case onLane:
		return d.r.renewalLane().run(d.ctx, c, d.timeout, nil)
	}
	return d.r.lane(&c).run(d.ctx, c, d.timeout, d.stop)
}

// on returns a doer that returns within timeout, or when stop is closed. ctx
// carries values only.
func (r *runner) on(ctx context.Context, timeout time.Duration, stop <-chan struct{}) doer {
	return doer{r: r, ctx: ctx, timeout: timeout, stop: stop}
}

// here returns a doer that spares the switch to another goroutine. On a cluster it
// does not: there a read ends by the caller's own timeout, which is not ours.
func (r *runner) here(ctx context.Context) doer {
	if r.bySlot {
		return r.on(ctx, attemptTimeout, nil)
	}
	return doer{r: r, way: hereby, ctx: ctx}
}

// onLane returns a doer for renewals.
func (r *runner) onLane(ctx context.Context, timeout time.Duration) doer {
	return doer{r: r, way: onLane, ctx: ctx, timeout: timeout}
}

// newLaneTo makes a lane.
func (r *runner) newLaneTo(on func() commander, exact bool) *lane {
	return &lane{clock: r.clock, spawn: r.spawn, observe: r.observe, on: on, exact: exact, root: r.root}
}

// lane is the lane of the node that c goes to. On a cluster each slot has one of
// its own: which node has it may change.
func (r *runner) lane(c *call) *lane {
	if !r.bySlot {
		return r.only
	}
	slot := c.slot()
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.lanes[slot]
	if l == nil {
		l = r.newLaneTo(r.mainClient, false)
		r.lanes[slot] = l
	}
	return l
}

func (r *runner) renewalLane() *lane {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.renewals == nil {
		r.renewals = r.newLaneTo(r.ownClient, true)
	}
	return r.renewals
}

// observe notices that Redis is back: what it knew may be gone with a restart
// or a failover, so leases are verified at once.
func (r *runner) observe(f fate) {
	switch f {
	case unknown, unsent:
		r.broken.Store(true)
		r.lookAgain()
	case later:
		r.lookAgain() // a node that was cut off answers, and will for long
		fallthrough
	default:
		if r.broken.Load() && r.broken.CompareAndSwap(true, false) {
			r.onBack()
		}
	}
}

// lookAgain has go-redis ask anew which nodes of a cluster have which slots. By
// itself it does so when a node tells it of a move, which one that is dead does
// not, or each 10 s.
func (r *runner) lookAgain() {
	if !r.bySlot {
		return
	}
	now, last := int64(r.clock.now()), r.lookedAt.Load()
	if last != 0 && now-last < int64(lookGap) || !r.looking.CompareAndSwap(false, true) {
		return
	}
	r.lookedAt.Store(now)
	if !r.spawn(r.reload) {
		r.looking.Store(false)
	}
}

// reload is lookAgain's goroutine. ReloadState would start one that nobody waits for.
func (r *runner) reload() {
	defer r.looking.Store(false)
	ctx, cancel := context.WithTimeout(r.root, attemptTimeout)
	defer cancel()
	r.mu.Lock()
	own := r.own
	r.mu.Unlock()
	for _, of := range []any{r.main, own} {
		if c, ok := of.(*redis.ClusterClient); ok {
			_ = c.ForEachMaster(ctx, func(context.Context, *redis.Client) error { return nil })
		}
	}
}

func (r *runner) mainClient() commander { return r.main }

// ownClient opens the connections of the renewal lane if they are closed, unless
// they are so for good.
func (r *runner) ownClient() commander {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shut {
		return r.main
	}
	if r.own == nil {
		r.own = r.newLane()
	}
	return r.own
}

// warmLane opens a connection before the first renewal needs it: later there
// may be none to be had.
func (r *runner) warmLane(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	_ = r.ownClient().Process(ctx, redis.NewStatusCmd(ctx, "ping"))
}

// closeLane closes the connections of the renewal lane, for good or until the
// next renewal.
func (r *runner) closeLane(shut bool) {
	r.mu.Lock()
	own := r.own
	r.own = nil
	r.shut = r.shut || shut
	r.mu.Unlock()
	if own != nil {
		_ = own.Close()
	}
}

// ownTimeout is err, unless it is our own timeout, which must not look like that
// of the caller's context.
func ownTimeout(ctx context.Context, err error) error {
	if ctx.Err() != nil && !neverSent(err) && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)) {
		return &noAnswerError{attemptTimeout}
	}
	return err
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
