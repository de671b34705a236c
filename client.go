package watchlock

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
)

// Client issues locks on one Redis. Make one for a process and share it: all its
// methods are safe for concurrent use.
type Client struct {
	// immutable
	id       string
	rdb      redis.UniversalClient // the caller's
	cfg      config
	clock    *clock
	runner   *runner
	dog      *watchdog
	subs     *subscriber
	orphans  *orphanage
	root     context.Context // of the client's own work; never ends
	stopping chan struct{}   // closed when Close stops the background work

	// atomic
	warnedSelf atomic.Bool

	tasks sync.WaitGroup // goroutines; added to under mu only

	// guarded by mu
	mu       sync.Mutex
	gates    map[string]*gate // by mapped name
	closed   bool             // no new calls
	stopped  bool             // no new goroutines; leases that are left are given up
	busy     int              // references to gates: calls, bursts, drivers
	idle     chan struct{}    // closed when busy falls to 0 after Close
	closeErr error
	finished chan struct{} // closed when Close is done
}

// New returns a client that keeps locks in rdb, a *redis.Client (plain or
// Sentinel) or a *redis.ClusterClient. Others are refused, and so is a bad
// option. It sends nothing. rdb stays the caller's to close, after the client;
// the client keeps up to a few connections of its own for renewals and one for
// messages. New panics on a nil rdb or option.
func New(rdb redis.UniversalClient, opts ...Option) (*Client, error) {
	return newClient(rdb, bootOffset, opts)
}

func newClient(rdb redis.UniversalClient, boot func() time.Duration, opts []Option) (*Client, error) {
	if isNil(rdb) {
		panic("watchlock: nil redis client")
	}
	cfg, err := newConfig(opts)
	if err == nil {
		// Defaults for locks are checked here: they are options of the client.
		_, err = lockConfig{}.with(cfg.lockDefaults, cfg.watchdogTimeout)
	}
	if err != nil {
		return nil, fmt.Errorf("watchlock: %w", err)
	}
	run, err := newRunner(rdb)
	if err != nil {
		return nil, err
	}
	c := &Client{
		id:       uuid.NewString(),
		rdb:      rdb,
		cfg:      cfg,
		clock:    newClock(boot),
		runner:   run,
		root:     context.Background(),
		stopping: make(chan struct{}),
		gates:    make(map[string]*gate),
		idle:     make(chan struct{}),
		finished: make(chan struct{}),
	}
	c.dog = newWatchdog(c)
	c.subs = newSubscriber(c)
	c.orphans = newOrphanage(c)
	run.clock, run.spawn, run.onBack = c.clock, c.spawn, c.dog.verifyAll
	return c, nil
}

// NewMutex returns the lock called name, on the wire Redisson's RLock of that
// name. It does no I/O; a bad name or option makes the first call fail. The name
// has 1 byte to 32 KiB; mapped, it has no brace at all, or its first "{" comes
// before every "}" and closes over a hash tag that is not empty.
func (c *Client) NewMutex(name string, opts ...LockOption) *Mutex {
	m := &Mutex{c: c, kind: hashKind{}}
	m.keys, m.err = newLockKeys(name, c.cfg.mapName)
	conf, err := lockConfig{}.with(c.cfg.lockDefaults, c.cfg.watchdogTimeout)
	if err == nil {
		conf, err = conf.with(opts, c.cfg.watchdogTimeout)
	}
	m.conf = conf
	if m.err == nil {
		m.err = err
	}
	return m
}

// ID is the UUID that starts every owner of this client in Redis. It is new for
// every client.
func (c *Client) ID() string { return c.id }

// HeldLock is one lease as Held lists it.
type HeldLock struct {
	// Name is the lock's name; Kind is "mutex".
	Name, Kind string
	// Caller is the file and line that took the lock.
	Caller string
	// Since is when it was taken.
	Since time.Time
	// ExpiresAt is until when it may be trusted as things stand.
	ExpiresAt time.Time
}

// Held lists the leases of this client that are live, by name and age, from
// memory.
func (c *Client) Held() []HeldLock {
	var held []HeldLock
	for _, g := range c.allGates() {
		held = append(held, g.heldList()...)
	}
	slices.SortFunc(held, func(a, b HeldLock) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), a.Since.Compare(b.Since))
	})
	return held
}

// Close ends the client. New calls and all waiters get ErrClosed at once, and
// every lease's context is cancelled with it. Holders have the unlock timeout
// (WithUnlockTimeout) to Unlock, and their leases are renewed meanwhile; what
// they do not give back is not released under running work but left to expire,
// and the error names it. Close waits for all of this and for its goroutines;
// it does not close the Redis client. Called again, it returns the same.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		<-c.finished
		return c.closeErr
	}
	c.closed = true
	if c.busy == 0 {
		close(c.idle)
	}
	c.mu.Unlock()
	defer close(c.finished)

	for _, g := range c.allGates() {
		g.close()
	}
	c.clock.wait(c.idle, c.clock.now()+c.cfg.unlockTimeout)
	c.orphans.last()

	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	var left []string
	for _, g := range c.allGates() {
		if g.abandon() {
			left = append(left, g.keys.name)
		}
	}
	close(c.stopping)
	c.subs.close()
	c.runner.closeLane(true)
	c.tasks.Wait()
	if len(left) > 0 {
		slices.Sort(left)
		c.closeErr = fmt.Errorf("watchlock: close: not unlocked in %v and left to expire: %.1000q", c.cfg.unlockTimeout, left)
	}
	return c.closeErr
}

// gate returns the gate of a lock, referenced for the caller, who must release
// it.
func (c *Client) gate(keys lockKeys) (*gate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	g := c.gates[keys.key]
	if g == nil {
		g = &gate{c: c, keys: keys, poke: make(chan struct{}, 1)}
		c.gates[keys.key] = g
	}
	g.refs++
	c.busy++
	return g, nil
}

// retain adds a reference to a gate that has one.
func (c *Client) retain(g *gate) {
	c.mu.Lock()
	g.refs++
	c.busy++
	c.mu.Unlock()
}

// release drops a reference; a gate without any is forgotten.
func (c *Client) release(g *gate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g.refs--
	c.busy--
	if g.refs == 0 {
		delete(c.gates, g.keys.key)
	}
	if c.busy == 0 && c.closed {
		close(c.idle)
	}
}

func (c *Client) allGates() []*gate {
	c.mu.Lock()
	defer c.mu.Unlock()
	gates := make([]*gate, 0, len(c.gates))
	for _, g := range c.gates {
		gates = append(gates, g)
	}
	return gates
}

// spawn runs f on a goroutine that Close waits for, or reports that the client
// is past that.
func (c *Client) spawn(f func()) bool {
	c.mu.Lock()
	if c.stopped {
		c.mu.Unlock()
		return false
	}
	c.tasks.Add(1)
	c.mu.Unlock()
	go func() {
		defer c.tasks.Done()
		f()
	}()
	return true
}

// ended reports whether Close has given up the leases that were left.
func (c *Client) ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopped
}

// newOwner is an owner that nobody else can be, not even a process cloned from
// this one's memory: its number is drawn from crypto/rand for every attempt.
func (c *Client) newOwner() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the process first
	n := binary.BigEndian.Uint64(b[:]) >> 1
	return c.id + ":" + strconv.FormatUint(n, 10)
}

// warnOnce logs what concerns the use of the client, the first time.
func (c *Client) warnOnce(said *atomic.Bool, text, name string) {
	if said.CompareAndSwap(false, true) {
		c.cfg.log.Warn(text, zap.String("lock", name))
	}
}
