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

	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/orphans"
	"github.com/seed-8c25f305/watchlock/internal/pubsub"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// Client issues locks on one Redis. Make one for a process and share it: all its
// methods are safe for concurrent use.
type Client struct {
	// immutable
	id       string
	cfg      config
	clock    *bootclock.Clock
	runner   *transport.Runner
	dog      *watchdog
	teller   *teller
	subs     *pubsub.Subscriber
	channels Channels // never auto
	orphans  *orphans.Orphanage
	ghosts   *orphans.Ghosts
	strings  *wire.StringKind
	root     context.Context // of the client's own work; never ends
	stopping chan struct{}   // closed when Close stops the background work
	end      func()          // ends the runner's questions then
	idle     chan struct{}   // closed when, after Close, nobody refers to a gate

	// atomic; closed and stopped change under mu
	warnedSelf atomic.Bool
	warnedSlow atomic.Bool
	rights     wire.Rights
	closed     atomic.Bool // no new calls
	stopped    atomic.Bool // no new goroutines; leases that are left are given up

	waiters  sync.Pool // of callers that were given a lease
	attempts sync.Pool
	rooms    sync.Pool // for what a release names

	tasks sync.WaitGroup // goroutines; added to under mu only

	// guarded by mu, which is taken after all others: a gate's comes first, then
	// the watchdog's, the orphanage's or the subscriber's
	mu       sync.Mutex
	gates    [wire.Forms]map[string]*gate // by key
	sweepAt  int                          // how many gates are too many to keep idle ones
	idleOnce sync.Once                    // closes idle
	closeErr error
	finished chan struct{} // closed when Close is done
}

// New returns a client that keeps locks in rdb, a *redis.Client (plain or
// Sentinel) or a *redis.ClusterClient. Others are refused, and so is a bad
// option. It sends nothing. rdb stays the caller's to close, after the client.
// New panics on a nil rdb or option.
//
// All that concerns locks goes on connections of the client's own, made from rdb's
// options: address or sentinels, credentials, TLS, Dialer, OnConnect. rdb's pool size,
// Limiter, cache, retries, timeouts, maintenance notifications and reads from replicas do
// not concern them. There are one or two to a node as a rule, 64 at most, and one for
// messages to each node at which something is waited for, or has been held for 250 ms.
//
// Hooks that were added to rdb before New see every command of a lock, renewals and
// releases included, and may change it in place. What a hook returns in place of Redis, or
// after it, is a failed attempt, and so is a delay beyond 1 s: never an answer. New adds a
// hook itself, which stays, and sends the commands; hooks that are added later see none.
// The commands of pub/sub have no hooks in go-redis; hooks for dialling, and those that
// OnNewNode adds to the nodes of a cluster, do not concern these connections: wrap
// Options.Dialer.
//
// With Sentinel the client asks each 0.6 s which server is the primary while anything is held
// or waited for. A sentinel that stands still is given up by go-redis when its read
// timeouts have passed, within half a minute with its defaults: set FailoverOptions.ReadTimeout.
func New(rdb redis.UniversalClient, opts ...Option) (*Client, error) {
	return newClient(rdb, bootclock.Offset, opts)
}

func newClient(rdb redis.UniversalClient, boot func() time.Duration, opts []Option) (*Client, error) {
	if transport.IsNil(rdb) {
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
	run, err := transport.NewRunner(rdb)
	if err != nil {
		return nil, err
	}
	c := &Client{
		id:       uuid.NewString(),
		cfg:      cfg,
		clock:    bootclock.New(boot),
		runner:   run,
		root:     context.Background(),
		stopping: make(chan struct{}),
		gates:    [wire.Forms]map[string]*gate{make(map[string]*gate), make(map[string]*gate)},
		sweepAt:  idleGates,
		idle:     make(chan struct{}),
		finished: make(chan struct{}),
	}
	c.teller = newTeller(cfg.log, c.spawnTeller)
	c.dog = newWatchdog(c)
	c.channels = cfg.channels.on(run.BySlot() && !run.Named)
	c.subs = pubsub.New(run, c.channels.String(), c.tell, c.dog.verify)
	c.orphans = orphans.New(run, cfg.watchdogTimeout)
	c.ghosts = c.orphans.Ghosts
	c.strings = wire.NewStringKind(run.BySlot())
	run.Clock, run.Spawn, run.OnBack, run.Root = c.clock, c.spawn, c.back, c.root
	ended, end := context.WithCancel(c.root)
	run.Ended, c.end = ended, end
	run.Start()
	if p := run.Primary; p != nil {
		p.OnMove, p.Linger = c.moved, cfg.watchdogTimeout+cfg.maxPollInterval
		p.OnSlow = func() {
			c.warnOnce(&c.warnedSlow, "the sentinels do not say which server is the primary; "+
				"one that stands still is given up when its read timeouts have passed", "")
		}
	}
	return c, nil
}

// back follows an outage of a server: it may have lost what is held, or be another.
func (c *Client) back(at *transport.Site) {
	c.strings.Ways.Forget()
	c.dog.back(at)
}

// idleGates is how many gates may stay though nobody refers to them.
const idleGates = 1024

// NewMutex returns the lock called name, on the wire Redisson's RLock of that
// name. It does no I/O; a bad name or option makes the first call fail. The name
// has 1 byte to 32 KiB; mapped, it has no brace at all, or its first "{" comes
// before every "}" and closes over a hash tag that is not empty.
func (c *Client) NewMutex(name string, opts ...LockOption) *Mutex {
	return c.newMutex(wire.HashKind{}, name, opts)
}

// newMutex is one lock of kind k.
func (c *Client) newMutex(k wire.Kind, name string, opts []LockOption) *Mutex {
	m := &Mutex{c: c, kind: k}
	m.keys, m.err = wire.NewKeys(k, name, c.cfg.mapName)
	m.own = leaseKey{c, m.keys.Key}
	m.keys.Tell = c.channels.publishArg(c.runner.BySlot() && !c.runner.Named)
	conf, err := lockConfig{}.with(c.cfg.lockDefaults, c.cfg.watchdogTimeout)
	conf.tokenTTLSet = false // a default for those it suits
	if err == nil {
		conf, err = conf.with(opts, c.cfg.watchdogTimeout)
	}
	if err == nil {
		err = conf.suits(k)
	}
	m.conf, m.leaseArg = conf, wire.LeaseArg(cmp.Or(conf.lease, c.cfg.watchdogTimeout))
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
	// Name is the lock's name; Kind is "mutex",
	// "fenced mutex" or "SET NX mutex".
	Name, Kind string
	// Caller is the file and line that took the lock.
	Caller string
	// Since is when it was taken.
	Since time.Time
	// ExpiresAt is until when it may be trusted as things stand.
	ExpiresAt time.Time
}

// Held lists the leases of this client that are live, by name and age, from
// memory: also those that Close has ended and nobody has unlocked yet.
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

// moved follows a change of the primary.
func (c *Client) moved() {
	c.strings.Ways.Forget()
	c.dog.moved()
	c.ghosts.Again(func(*orphans.Released) bool { return true })
	c.subs.Relocate()
}

// gate returns the gate of a lock, referenced for the caller, who must release
// it.
func (c *Client) gate(keys *wire.Keys) (*gate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed.Load() {
		return nil, ErrClosed
	}
	gates := c.gates[keys.Kind.Traits().Form]
	g := gates[keys.Key]
	if g == nil {
		c.sweepLocked()
		g = &gate{c: c, keys: keys}
		gates[keys.Key] = g
	}
	g.ref() // it cannot be dead: gates die under mu, and leave the map
	return g, nil
}

// sweepLocked forgets the gates that nobody refers to, when there are many. A
// few are kept: most locks are taken again.
func (c *Client) sweepLocked() {
	if len(c.gates[wire.FormHash])+len(c.gates[wire.FormString]) < c.sweepAt {
		return
	}
	left := 0
	for _, gates := range c.gates {
		for key, g := range gates {
			if g.refs.CompareAndSwap(0, gateDead) {
				delete(gates, key)
			}
		}
		left += len(gates)
	}
	c.sweepAt = max(idleGates, 2*left)
}

func (c *Client) allGates() []*gate {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*gate, 0, len(c.gates[wire.FormHash])+len(c.gates[wire.FormString]))
	for _, gates := range c.gates {
		for _, g := range gates {
			all = append(all, g)
		}
	}
	return all
}

// spawn runs f on a goroutine that Close waits for, or reports that the client
// is past that.
func (c *Client) spawn(f func()) bool {
	c.mu.Lock()
	if c.stopped.Load() {
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

// spawnTeller runs f on a goroutine that may be in the caller's logger for as long as that
// likes: the teller's close waits for it, within bounds.
func (c *Client) spawnTeller(f func()) { go f() }

// newOwner is an owner that nobody else can be, not even a process cloned from
// this one's memory: its number is drawn from crypto/rand for every attempt.
func (c *Client) newOwner() wire.Owner {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the process first
	text := make([]byte, 0, 64)
	text = append(append(text, c.id...), ':')
	return string(strconv.AppendUint(text, binary.BigEndian.Uint64(b[:])>>1, 10))
}

// tell logs what concerns connections.
func (c *Client) tell(info bool, text string, err error) {
	c.teller.say(line{info: info, text: text, err: err})
}

// warnOnce logs what concerns the use of the client, the first time.
func (c *Client) warnOnce(said *atomic.Bool, text, name string) {
	if said.CompareAndSwap(false, true) {
		c.teller.say(line{text: text, lock: name})
	}
}
