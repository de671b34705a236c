package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/bootclock"
)

// Bounds of what leaves.
const (
	AttemptTimeout = time.Second            // for one try of a command
	slotsGap       = 100 * time.Millisecond // between two questions who has which slots
	laneConns      = 64                     // of the renewal lane and node at most: none waits behind one that hangs
)

// Runner is the one place where commands leave. A bounded run returns when it has
// an outcome or when its timeout has passed, whatever the connection does; one on
// the caller's goroutine takes an attempt's timeout and a little more, by the read
// timeout of the connection. Safe for concurrent use.
type Runner struct {
	// immutable
	Clock   *bootclock.Clock
	Spawn   func(func()) bool // starts a goroutine that Close waits for
	Root    context.Context
	rdb     commander                             // the caller's client, for its hooks
	via     *innermost                            // the innermost of them
	OnBack  func(*Site)                           // called when a server answers after it did not; must not block
	Listen  func(context.Context, Node) *Messages // a pub/sub connection, not yet dialled
	Ended   context.Context                       // ends when Close stops the background work
	Primary *primary                              // where sentinels name it; else nil
	only    *lane                                 // to the one server; nil on a cluster
	one     *Site                                 // the same

	// immutable, of a cluster; nil elsewhere
	Cluster *redis.ClusterClient                                // of our own
	Named   bool                                                // the caller names its nodes: they may be no cluster among themselves
	Home    func(ctx context.Context, key string) (Node, error) // who has its slot, as far as is known

	// atomic
	current      atomic.Pointer[link] // connections of our own
	Dials        atomic.Int64         // connections made so far
	unnamed      atomic.Bool          // the user may not run scripts by name
	askingSlots  atomic.Bool          // reload runs
	slotsAskedAt atomic.Int64         // when it was last started; 0 never

	// guarded by mu
	mu    sync.Mutex
	lanes map[int]*lane    // by slot, on a cluster
	sites map[string]*Site // by address, on a cluster
}

// link is connections of our own, to one server or to all nodes of a cluster.
type link struct {
	commander
	via    *innermost    // the caller's innermost, by which commands come here
	client *redis.Client // the same connections, of one server
	close  func() error
}

// NewRunner takes the clients that are known to keep one lock in one place.
// A Ring is not: when it reshards, one name has two homes and two holders.
func NewRunner(rdb redis.UniversalClient) (*Runner, error) {
	r := &Runner{rdb: rdb, via: &innermost{}, lanes: make(map[int]*lane), sites: make(map[string]*Site)}
	switch c := rdb.(type) {
	case *redis.Client:
		r.ofServer(*c.Options())
		c.AddHook(r.via)
	case *redis.ClusterClient:
		r.ofCluster(*c.Options())
		c.AddHook(r.via)
	case *redis.Ring:
		return nil, errors.New("watchlock: a redis.Ring cannot keep locks: when it reshards, two clients hold one lock")
	default:
		return nil, fmt.Errorf("watchlock: cannot use a %T: want a *redis.Client or a *redis.ClusterClient", rdb)
	}
	return r, nil
}

// sentinelAddr is what go-redis has in place of an address in the options of a client of
// Sentinel.
const sentinelAddr = "FailoverClient"

// ofServer makes connections to one server, from a copy of the options of the caller's.
func (r *Runner) ofServer(opts redis.Options) {
	if opts.Addr == sentinelAddr {
		dial, p := opts.Dialer, &primary{r: r}
		p.who = func(ctx context.Context) (string, error) {
			conn, err := dial(ctx, opts.Network, opts.Addr)
			if err != nil {
				return "", err
			}
			addr := conn.RemoteAddr().String()
			_ = conn.Close()
			return addr, nil
		}
		p.replace = func(string) *link { return p.sentinelLink(opts) }
		r.Primary = p
		r.current.Store(p.sentinelLink(opts))
	} else {
		c := redis.NewClient(own(&opts, &r.Dials))
		r.current.Store(&link{c, r.via, c, c.Close})
	}
	r.Listen = func(ctx context.Context, at Node) *Messages {
		term := r.Term() // before the link
		return &Messages{PubSub: r.link().client.Subscribe(ctx), At: at, Term: term}
	}
}

// ofCluster makes connections to the nodes of a cluster, or to those that the caller names for
// the slots.
func (r *Runner) ofCluster(opts redis.ClusterOptions) {
	given := opts.ClusterSlots
	c := redis.NewClusterClient(ownCluster(&opts, &r.Dials))
	r.current.Store(&link{c, r.via, nil, c.Close})
	r.Cluster = c
	r.Listen = func(ctx context.Context, at Node) *Messages {
		o := *at.rdb.Options()
		o.PoolSize = 1
		only := redis.NewClient(&o)
		return &Messages{only.Subscribe(ctx), at, r.Term(), only}
	}
	r.Home = func(ctx context.Context, key string) (Node, error) {
		master, err := c.MasterForKey(ctx, key)
		return Node{master}, err
	}
	if given != nil {
		r.Named = true
		r.Primary = &primary{r: r, who: func(ctx context.Context) (string, error) {
			if _, err := given(ctx); err != nil {
				return "", err // go-redis would go on with what it knew
			}
			return r.masters(ctx)
		}}
	}
}

// masters has the slots asked for anew, and returns the addresses of those who have them.
func (r *Runner) masters(ctx context.Context) (string, error) {
	var mu sync.Mutex
	var addrs []string
	err := r.Cluster.ForEachMaster(ctx, func(_ context.Context, c *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		addrs = append(addrs, c.Options().Addr)
		return nil
	})
	slices.Sort(addrs)
	return strings.Join(addrs, " "), err
}

// link is the connections of our own.
func (r *Runner) link() *link { return r.current.Load() }

// BySlot reports whether the keys of one script must share a slot.
func (r *Runner) BySlot() bool { return r.Cluster != nil }

// Start makes the lanes, when the rest of the client is there.
func (r *Runner) Start() {
	r.one = r.newSite(Node{})
	if r.Cluster == nil {
		r.only = r.newLane(false)
	}
}

// Messages is a pub/sub connection whose handshake is bounded by
// attemptTimeout, whatever the caller's timeouts are.
type Messages struct {
	*redis.PubSub
	At   Node          // of a cluster
	Term int64         // of the primary that it leads to
	own  *redis.Client // made for it alone; nil when it is the caller's
}

// Close closes the connection and what was made for it.
func (m *Messages) Close() error {
	err := m.PubSub.Close()
	if m.own != nil {
		err = errors.Join(err, m.own.Close())
	}
	return err
}

// IsNil reports whether rdb is nil, or a nil pointer in an interface.
func IsNil(rdb redis.UniversalClient) bool {
	if rdb == nil {
		return true
	}
	v := reflect.ValueOf(rdb)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// Result is the outcome of a call.
type Result struct {
	Fate   Fate
	Ints   []int64       // a script's reply, when it is integers
	Reply  any           // else
	Err    error         // nil when fate is replied
	SentAt time.Duration // trust clock, read before the call was handed over
	term   int64         // of the primary that was known then
	Astray bool          // unsent, as far as our own hook knows: another may have sent it on its own
	Took   time.Duration
}

// Checked is res, unless its reply could not be read: that leaves the outcome
// unknown.
func (res Result) Checked(err error) Result {
	if err != nil {
		res.Fate, res.Err = Unknown, err
	}
	return res
}

// Doer runs calls for a kind, in the way and time that one purpose needs.
type Doer struct {
	r       *Runner
	way     way
	ctx     context.Context // for its values
	timeout time.Duration
	stop    <-chan struct{}
	Whose   wanter // nil: what it runs is wanted until it is answered
}

// way is how a doer runs.
type way int

const (
	apart  way = iota // apart from the caller's goroutine: strict about time
	hereby            // on the caller's goroutine: up to attemptTimeout and a little more
	onLane            // among the renewals, which nothing else can hold back: strict
)

// Run runs c.
func (d Doer) Run(c Call) Result {
	switch d.way {
	case hereby:
		return d.r.lane(&c).runHere(d.ctx, c, d.Whose)
	case onLane:
		return d.r.Site(c.key()).renewals.run(d.ctx, c, nil, d.timeout, nil)
	}
	return d.r.lane(&c).run(d.ctx, c, d.Whose, d.timeout, d.stop)
}

// On returns a doer that returns within timeout, or when stop is closed. ctx
// carries values only.
func (r *Runner) On(ctx context.Context, timeout time.Duration, stop <-chan struct{}) Doer {
	return Doer{r: r, ctx: ctx, timeout: timeout, stop: stop}
}

// Here returns a doer that spares the switch to another goroutine. It does not on a
// cluster, where go-redis may first have to ask who has the slot, nor beside hooks of the
// caller's, which may take any time.
func (r *Runner) Here(ctx context.Context) Doer {
	if r.Cluster != nil || r.via.strict() {
		return r.On(ctx, flightMost, nil) // so that an attempt hears that it was not sent
	}
	return Doer{r: r, way: hereby, ctx: ctx}
}

// OnLane returns a doer for renewals.
func (r *Runner) OnLane(ctx context.Context, timeout time.Duration) Doer {
	return Doer{r: r, way: onLane, ctx: ctx, timeout: timeout}
}

// newLane makes a lane.
func (r *Runner) newLane(exact bool) *lane {
	return &lane{r: r, clock: r.Clock, spawn: r.Spawn, exact: exact, root: r.Root}
}

// lane is the lane that c takes. On a cluster each slot has one of its own: which
// node has it may change.
func (r *Runner) lane(c *Call) *lane {
	if r.Cluster == nil {
		return r.only
	}
	slot := KeySlot(c.key())
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.lanes[slot]
	if l == nil {
		l = r.newLane(false)
		r.lanes[slot] = l
	}
	return l
}

// Close closes the connections.
func (r *Runner) Close() { _ = r.link().close() }

// unconnected says of a call that no connection came for in time whether one may come yet:
// then it is worth another try. Where the sentinels cannot be asked, why is the answer.
func (r *Runner) unconnected(res *Result) {
	if res.Fate != Unsent {
		return
	}
	if errors.Is(res.Err, ErrMoved) {
		res.Fate = Later
		return
	}
	var none *noConnectionError
	if !errors.As(res.Err, &none) {
		return
	}
	if err := r.noPrimary(); err != nil {
		res.Err = Unavailable(err)
		return
	}
	res.Fate = Later
}

// ownTimeout is err, unless it is our own timeout, which must not look like that of the
// caller's context. go-redis gives a context's own error only to what still waits for a
// connection; once is false where it may have sent some of a pipeline before.
func ownTimeout(ctx context.Context, err error, once bool) error {
	if err == nil || ctx.Err() == nil || neverSent(err) ||
		!errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		return err
	}
	var socket *net.OpError
	if once && !errors.As(err, &socket) {
		return notSent(&noConnectionError{AttemptTimeout})
	}
	return &noAnswerError{AttemptTimeout}
}
