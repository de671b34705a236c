package watchlock

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// Defaults and bounds of the options.
const (
	defaultWatchdogTimeout = 30 * time.Second // Redisson's lockWatchdogTimeout
	defaultUnlockTimeout   = 2 * time.Second
	defaultMaxPollInterval = 5 * time.Second
	defaultLocalHandoff    = 2 * time.Millisecond
	maxLocalHandoff        = time.Second

	minWatchdogTimeout = 300 * time.Millisecond
	minLeaseTime       = 10 * time.Millisecond
	minTimeout         = 10 * time.Millisecond
	minTokenTTL        = 24 * time.Hour
	minWait            = time.Microsecond
)

// Option configures a Client. A bad one makes New fail, a nil one panics.
// Durations are in whole milliseconds and at most 100 years.
type Option interface{ apply(*config) error }

// LockOption configures the leases of one Mutex or of one Lock. A bad one makes
// the first call that uses it fail, a nil one panics. Durations are as for Option.
type LockOption interface{ applyLock(*lockConfig) error }

type (
	option     func(*config) error
	lockOption func(*lockConfig) error
)

func (o option) apply(c *config) error             { return o(c) }
func (o lockOption) applyLock(c *lockConfig) error { return o(c) }

// config is what the options of a client amount to.
type config struct {
	watchdogTimeout time.Duration
	unlockTimeout   time.Duration
	maxPollInterval time.Duration
	localHandoff    time.Duration
	channels        Channels
	mapName         func(string) string
	log             *zap.Logger // nil: silence
	lockDefaults    []LockOption
}

func newConfig(opts []Option) (config, error) {
	c := config{
		watchdogTimeout: defaultWatchdogTimeout,
		unlockTimeout:   defaultUnlockTimeout,
		maxPollInterval: defaultMaxPollInterval,
		localHandoff:    defaultLocalHandoff,
	}
	for _, o := range opts {
		if o == nil {
			panic("watchlock: nil Option")
		}
		if err := o.apply(&c); err != nil {
			return c, err
		}
	}
	return c, nil
}

// lockConfig is what the options of a lock amount to.
type lockConfig struct {
	lease   time.Duration // 0: the watchdog renews
	maxHold time.Duration // 0: no bound

	tokenTTL    time.Duration // 0: the counter is kept for ever
	tokenTTLSet bool          // and somebody asked for it
}

// with returns c changed by opts and checked as a whole.
func (c lockConfig) with(opts []LockOption, watchdogTimeout time.Duration) (lockConfig, error) {
	for _, o := range opts {
		if o == nil {
			panic("watchlock: nil LockOption")
		}
		if err := o.applyLock(&c); err != nil {
			return c, err
		}
	}
	ttl := c.lease
	if ttl == 0 {
		ttl = watchdogTimeout
	}
	if c.maxHold != 0 && c.maxHold < ttl {
		return c, fmt.Errorf("max hold %v is below the lease time %v", c.maxHold, ttl)
	}
	return c, nil
}

// suits refuses options that mean nothing for locks of kind k.
func (c lockConfig) suits(k wire.Kind) error {
	if c.tokenTTLSet && k.Traits().Counter == "" {
		return fmt.Errorf("token TTL %v: a %v has no token", c.tokenTTL, k)
	}
	return nil
}

// checkDuration refuses what Redis cannot keep exactly, or what is out of bounds.
func checkDuration(what string, d, least time.Duration) error {
	switch {
	case d < least:
		return fmt.Errorf("%s %v is below %v", what, d, least)
	case d > wire.MaxDuration:
		return fmt.Errorf("%s %v is above %v", what, d, wire.MaxDuration)
	case d%time.Millisecond != 0:
		return fmt.Errorf("%s %v is not a whole number of milliseconds", what, d)
	}
	return nil
}

// duration is an option that sets a duration of a client, of at least least.
func duration(what string, d, least time.Duration, field func(*config) *time.Duration) Option {
	return option(func(c *config) error {
		*field(c) = d
		return checkDuration(what, d, least)
	})
}

// lockDuration is duration for a lock.
func lockDuration(what string, d, least time.Duration, field func(*lockConfig) *time.Duration) LockOption {
	return lockOption(func(c *lockConfig) error {
		*field(c) = d
		return checkDuration(what, d, least)
	})
}

// checkWait refuses a wait that is most likely a number without its unit.
func checkWait(wait time.Duration) error {
	if wait > 0 && wait < minWait {
		return fmt.Errorf("wait %v is below %v: missing unit?", wait, minWait)
	}
	return nil
}

// WithLeaseTime makes a lease end after d by itself: it is not renewed, and a
// job that takes longer loses the lock. d is in whole milliseconds, at least
// 10 ms. As Redisson's leaseTime.
func WithLeaseTime(d time.Duration) LockOption {
	return lockDuration("lease time", d, minLeaseTime, func(c *lockConfig) *time.Duration { return &c.lease })
}

// WithWatchdog makes the client renew a lease for as long as it is held. It is
// the default, and undoes a WithLeaseTime given before it.
func WithWatchdog() LockOption {
	return lockOption(func(c *lockConfig) error {
		c.lease = 0
		return nil
	})
}

// WithMaxHold ends a lease with ErrLost once it has been held for d, so that a
// holder that hangs cannot keep a renewed lock for ever. d is in whole
// milliseconds and at least the lease time, or the watchdog timeout of a lease
// that is renewed. The default is no bound.
func WithMaxHold(d time.Duration) LockOption {
	return lockDuration("max hold", d, minLeaseTime, func(c *lockConfig) *time.Duration { return &c.maxHold })
}

// WithTokenTTL lets the token counter of a fenced lock expire when the lock has
// not been granted for d, so that names ever used do not pile up in Redis: tokens
// rise over its loss, since they follow the server's time. d is in whole
// milliseconds, at least 24 h; 0, the default, keeps the counter for ever. Use it
// only where no Redisson client shares the lock: that counts from 1 again when the
// counter is gone. A lock that is not fenced refuses it.
func WithTokenTTL(d time.Duration) LockOption {
	return lockOption(func(c *lockConfig) error {
		c.tokenTTL, c.tokenTTLSet = d, true
		if d == 0 {
			return nil
		}
		return checkDuration("token TTL", d, minTokenTTL)
	})
}

// WithLockDefaults sets options for all locks of a client. Those given to
// NewMutex come after them, those given to Lock last.
func WithLockDefaults(opts ...LockOption) Option {
	return option(func(c *config) error {
		c.lockDefaults = append(c.lockDefaults, opts...)
		return nil
	})
}

// WithWatchdogTimeout sets the TTL of leases that the watchdog renews, each
// third of it. d is in whole milliseconds, at least 300 ms; 30 s by default, as
// Redisson's lockWatchdogTimeout. Clients that share locks may differ in it.
func WithWatchdogTimeout(d time.Duration) Option {
	return duration("watchdog timeout", d, minWatchdogTimeout, func(c *config) *time.Duration { return &c.watchdogTimeout })
}

// WithUnlockTimeout bounds how long Unlock tries to reach Redis, and how long
// Close waits for holders. At least 10 ms; 2 s by default.
func WithUnlockTimeout(d time.Duration) Option {
	return duration("unlock timeout", d, minTimeout, func(c *config) *time.Duration { return &c.unlockTimeout })
}

// WithMaxPollInterval bounds how long a waiter sleeps without a message before
// it asks Redis again, but for a tenth. It starts at 250 ms, or d if that is less,
// and grows with the time already waited. At least 10 ms; 5 s by default.
func WithMaxPollInterval(d time.Duration) Option {
	return duration("max poll interval", d, minTimeout, func(c *config) *time.Duration { return &c.maxPollInterval })
}

// WithLocalHandoff lets an Unlock pass a lock that the watchdog renews to the next
// waiter of this client in memory, without a round trip, as long as Redis last
// confirmed the lock no longer than window ago: short sections then run at memory
// speed. Waiters elsewhere wait at most that long, and for the section under way, for
// the lock to be released. Nothing is passed for some time after a client of another
// kind, Redisson say, has released the lock: it has one section a turn.
//
// Where nobody else has subscribed to the lock's releases, an Unlock that does not pass the
// lock releases it and takes it for the next waiter of this client in one script, in one
// round trip. For those who only poll, the first such Unlock after 100 ms of that releases it
// for all. 2 ms by default, at most 1 s; 0 makes every Unlock release in Redis.
//
// A confirmation is as old as the question. So a client whose round trip takes longer than
// window passes nothing, and one that is nearly as far away little: there, choose a longer one.
func WithLocalHandoff(window time.Duration) Option {
	return option(func(c *config) error {
		c.localHandoff = window
		if window < 0 || window > maxLocalHandoff {
			return fmt.Errorf("local handoff %v is not between 0 and %v", window, maxLocalHandoff)
		}
		return nil
	})
}

// WithKeyPrefix puts prefix before every lock's name in Redis. It must not be
// given together with WithNameMapper.
func WithKeyPrefix(prefix string) Option {
	return withMapper(func(name string) string { return prefix + name })
}

// WithNameMapper turns a lock's name into its key in Redis, as Redisson's
// NameMapper does. m must be a pure function, safe for concurrent use.
func WithNameMapper(m func(name string) string) Option {
	if m == nil {
		panic("watchlock: nil name mapper")
	}
	return withMapper(m)
}

func withMapper(m func(string) string) Option {
	return option(func(c *config) error {
		if c.mapName != nil {
			return errors.New("more than one key prefix or name mapper")
		}
		c.mapName = m
		return nil
	})
}

// WithLogger makes the client report transitions and misuse: a lost or forgotten
// lease, renewals that fail, a wait that Redis has not answered for a second, a lost
// connection for messages, a subscription that is refused, a server without sharded
// channels, a wait behind a lease of this very client, a lease whose holder could not
// learn of a loss. All at Warn but for the connection and the channels, at Info, with the
// time of what they tell. The lines are written on a goroutine of their own, so a logger
// that is slow or blocks delays no lock; of more than 4,096 that wait for it the rest is
// dropped and counted, and Close waits 1 s for it. The default is silence.
func WithLogger(log *zap.Logger) Option {
	if log == nil {
		panic("watchlock: nil logger")
	}
	return option(func(c *config) error {
		c.log = log
		return nil
	})
}
