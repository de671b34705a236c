package watchlock

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

const (
	attemptTimeout = time.Second            // for one try of a command
	lookGap        = 100 * time.Millisecond // between two questions who has which slots
	laneConns      = 64                     // of the renewal lane and node at most: none waits behind one that hangs
)

// runner is the one place where commands leave. A bounded run returns when it has
// an outcome or when its timeout has passed, whatever the connection does; one on
// the caller's goroutine takes an attempt's timeout and a little more, by the read
// timeout of the connection. Safe for concurrent use.
type runner struct {
	// immutable
	clock   *bootclock.Clock
	spawn   func(func()) bool // starts a goroutine that Close waits for
	root    context.Context
	rdb     commander                             // the caller's client, for its hooks
	via     *innermost                            // the innermost of them
	onBack  func(*site)                           // called when a server answers after it did not; must not block
	listen  func(context.Context, node) *messages // a pub/sub connection, not yet dialled
	ended   context.Context                       // ends when Close stops the background work
	primary *primary                              // where sentinels name it; else nil
	only    *lane                                 // to the one server; nil on a cluster
	one     *site                                 // the same

	// immutable, of a cluster; nil elsewhere
	cluster *redis.ClusterClient                                // of our own
	named   bool                                                // the caller names its nodes: they may be no cluster among themselves
	home    func(ctx context.Context, key string) (node, error) // who has its slot, as far as is known

	// atomic
	current  atomic.Pointer[link] // connections of our own
	dials    atomic.Int64         // connections made so far
	unnamed  atomic.Bool          // the user may not run scripts by name
	looking  atomic.Bool          // reload runs
	lookedAt atomic.Int64         // when it was last started; 0 never

	// guarded by mu
	mu    sync.Mutex
	lanes map[int]*lane    // by slot, on a cluster
	sites map[string]*site // by address, on a cluster
}

// link is connections of our own, to one server or to all nodes of a cluster.
type link struct {
	commander
	via    *innermost    // the caller's innermost, by which commands come here
	client *redis.Client // the same connections, of one server
	close  func() error
}

// site is what is known of one server. Nothing of one waits for, is counted with, or is
// judged by another's.
type site struct {
	// immutable
	node     node // of a cluster; the zero node while that is unknown, and of the one server
	renewals *lane

	// atomic
	broken     atomic.Bool  // it gave no answer, and none has come since
	heard      atomic.Int64 // when its newest answer came
	verifiedAt atomic.Int64 // when all that is held there was last asked about, or will be; 0 never
}

// newRunner takes the clients that are known to keep one lock in one place.
// A Ring is not: when it reshards, one name has two homes and two holders.
func newRunner(rdb redis.UniversalClient) (*runner, error) {
	r := &runner{rdb: rdb, via: &innermost{}, lanes: make(map[int]*lane), sites: make(map[string]*site)}
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
func (r *runner) ofServer(opts redis.Options) {
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
		r.primary = p
		r.current.Store(p.sentinelLink(opts))
	} else {
		c := redis.NewClient(own(&opts, &r.dials))
		r.current.Store(&link{c, r.via, c, c.Close})
	}
	r.listen = func(ctx context.Context, at node) *messages {
		term := r.term() // before the link
		return &messages{PubSub: r.link().client.Subscribe(ctx), at: at, term: term}
	}
}

// ofCluster makes connections to the nodes of a cluster, or to those that the caller names for
// the slots.
func (r *runner) ofCluster(opts redis.ClusterOptions) {
	given := opts.ClusterSlots
	c := redis.NewClusterClient(ownCluster(&opts, &r.dials))
	r.current.Store(&link{c, r.via, nil, c.Close})
	r.cluster = c
	r.listen = func(ctx context.Context, at node) *messages {
		o := *at.rdb.Options()
		o.PoolSize = 1
		only := redis.NewClient(&o)
		return &messages{only.Subscribe(ctx), at, r.term(), only}
	}
	r.home = func(ctx context.Context, key string) (node, error) {
		master, err := c.MasterForKey(ctx, key)
		return node{master}, err
	}
	if given != nil {
		r.named = true
		r.primary = &primary{r: r, who: func(ctx context.Context) (string, error) {
			if _, err := given(ctx); err != nil {
				return "", err // go-redis would go on with what it knew
			}
			return r.masters(ctx)
		}}
	}
}

// masters has the slots asked for anew, and returns the addresses of those who have them.
func (r *runner) masters(ctx context.Context) (string, error) {
	var mu sync.Mutex
	var addrs []string
	err := r.cluster.ForEachMaster(ctx, func(_ context.Context, c *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		addrs = append(addrs, c.Options().Addr)
		return nil
	})
	slices.Sort(addrs)
	return strings.Join(addrs, " "), err
}

// link is the connections of our own.
func (r *runner) link() *link { return r.current.Load() }

// bySlot reports whether the keys of one script must share a slot.
func (r *runner) bySlot() bool { return r.cluster != nil }

// start makes the lanes, when the rest of the client is there.
func (r *runner) start() {
	r.one = r.newSite(node{})
	if r.cluster == nil {
		r.only = r.newLane(false)
	}
}

// messages is a pub/sub connection whose handshake is bounded by
// attemptTimeout, whatever the caller's timeouts are.
type messages struct {
	*redis.PubSub
	at   node          // of a cluster
	term int64         // of the primary that it leads to
	own  *redis.Client // made for it alone; nil when it is the caller's
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
	term   int64         // of the primary that was known then
	astray bool          // unsent, as far as our own hook knows: another may have sent it on its own
	took   time.Duration
}

// checked is res, unless its reply could not be read: that leaves the outcome
// unknown.
func (res result) checked(err error) result {
	if err != nil {
		res.fate, res.err = unknown, err
	}
	return res
}

// doer runs calls for a kind, in the way and time that one purpose needs.
type doer struct {
	r       *runner
	way     way
	ctx     context.Context // for its values
	timeout time.Duration
	stop    <-chan struct{}
	whose   wanter // nil: what it runs is wanted until it is answered
}

// way is how a doer runs.
type way int

const (
	apart  way = iota // apart from the caller's goroutine: strict about time
	hereby            // on the caller's goroutine: up to attemptTimeout and a little more
	onLane            // among the renewals, which nothing else can hold back: strict
)

// run runs c.
func (d doer) run(c call) result {
	switch d.way {
	case hereby:
		return d.r.lane(&c).runHere(d.ctx, c, d.whose)
	case onLane:
		return d.r.site(c.key()).renewals.run(d.ctx, c, nil, d.timeout, nil)
	}
	return d.r.lane(&c).run(d.ctx, c, d.whose, d.timeout, d.stop)
}

// on returns a doer that returns within timeout, or when stop is closed. ctx
// carries values only.
func (r *runner) on(ctx context.Context, timeout time.Duration, stop <-chan struct{}) doer {
	return doer{r: r, ctx: ctx, timeout: timeout, stop: stop}
}

// here returns a doer that spares the switch to another goroutine. It does not on a
// cluster, where go-redis may first have to ask who has the slot, nor beside hooks of the
// caller's, which may take any time.
func (r *runner) here(ctx context.Context) doer {
	if r.cluster != nil || r.via.strict() {
		return r.on(ctx, flightMost, nil) // so that an attempt hears that it was not sent
	}
	return doer{r: r, way: hereby, ctx: ctx}
}

// onLane returns a doer for renewals.
func (r *runner) onLane(ctx context.Context, timeout time.Duration) doer {
	return doer{r: r, way: onLane, ctx: ctx, timeout: timeout}
}

// newLane makes a lane.
func (r *runner) newLane(exact bool) *lane {
	return &lane{r: r, clock: r.clock, spawn: r.spawn, exact: exact, root: r.root}
}

func (r *runner) newSite(at node) *site {
	return &site{node: at, renewals: r.newLane(true)}
}

// lane is the lane that c takes. On a cluster each slot has one of its own: which
// node has it may change.
func (r *runner) lane(c *call) *lane {
	if r.cluster == nil {
		return r.only
	}
	slot := keySlot(c.key())
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.lanes[slot]
	if l == nil {
		l = r.newLane(false)
		r.lanes[slot] = l
	}
	return l
}

// site is the server that has a key, as far as is known. It asks nobody.
func (r *runner) site(key string) *site {
	if r.cluster == nil {
		return r.one
	}
	at, err := r.home(endedContext{r.root}, key)
	if err != nil || !at.known() {
		return r.one // nobody knows
	}
	return r.siteAt(at)
}

// siteAt is the server that a node is.
func (r *runner) siteAt(at node) *site {
	if !at.known() {
		return r.one
	}
	addr := at.addr()
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
func (r *runner) observe(s *site, res *result, sentAt time.Duration) {
	switch res.fate {
	case unknown, dubious, unsent, barred:
		if time.Duration(s.heard.Load()) <= sentAt {
			s.broken.Store(true)
			r.lookAgain()
		}
		return
	case later:
		r.lookAgain() // a node that was cut off answers, and will for long
		if neverSent(res.err) {
			return
		}
	}
	s.heard.Store(int64(r.clock.Now()))
	if s.broken.Load() && s.broken.CompareAndSwap(true, false) {
		r.onBack(s)
	}
}

// lookAgain has go-redis ask anew which nodes of a cluster have which slots. By
// itself it does so when a node tells it of a move, which one that is dead does
// not, or each 10 s.
func (r *runner) lookAgain() {
	if r.cluster == nil {
		return
	}
	now, last := int64(r.clock.Now()), r.lookedAt.Load()
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
	_ = r.cluster.ForEachMaster(ctx, func(context.Context, *redis.Client) error { return nil })
}

// close closes the connections.
func (r *runner) close() { _ = r.link().close() }

// unconnected says of a call that no connection came for in time whether one may come yet:
// then it is worth another try. Where the sentinels cannot be asked, why is the answer.
func (r *runner) unconnected(res *result) {
	if res.fate != unsent {
		return
	}
	if errors.Is(res.err, errMoved) {
		res.fate = later
		return
	}
	var none *noConnectionError
	if !errors.As(res.err, &none) {
		return
	}
	if err := r.noPrimary(); err != nil {
		res.err = unavailable(err)
		return
	}
	res.fate = later
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
		return notSent(&noConnectionError{attemptTimeout})
	}
	return &noAnswerError{attemptTimeout}
}
