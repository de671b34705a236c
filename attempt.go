package watchlock

import (
	"time"

	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// attempt is one try to acquire.
type attempt struct {
	n      int
	owner  wire.Owner
	want   want
	sentAt time.Duration

	reserve int  // tokens to take, so that a pass has one of its own
	doubted bool // a message came meanwhile: verify what it gets
	forced  bool // its owner was taken away meanwhile: do not believe it

	room [1]wire.Owned // its driver's, for what it names
}

// owned is what a script needs to act for the attempt.
func (a *attempt) owned() wire.Owned {
	return wire.Owned{
		Keys: a.want.keys, Owner: a.owner, Lease: a.want.lease, LeaseArg: a.want.leaseArg,
		TokenTTL: a.want.tokenTTL, Reserve: a.reserve,
	}
}

// answer is what the newest finished attempt said.
type answer struct {
	n   int
	at  time.Duration // when it was asked for
	ttl time.Duration // of the holder's lease, when err is nil
	err error
}

// want is what a waiter asks for.
type want struct {
	kind     wire.Kind
	keys     *wire.Keys // with the caller's name for the lock, and its token counter
	watchdog bool
	lease    time.Duration // the TTL to take
	leaseArg any           // the same, boxed once
	maxHold  time.Duration // 0: none
	tokenTTL time.Duration // of a fenced lock's counter; 0: none
}

// suits reports whether a grant for w can be handed to somebody who wants o.
func (w want) suits(o want) bool { return w.kind == o.kind && w.lease == o.lease }

// newAttempt is an empty attempt.
func (c *Client) newAttempt() *attempt {
	if a, _ := c.attempts.Get().(*attempt); a != nil {
		return a
	}
	return &attempt{}
}

// reuseAttempt takes back an attempt that has ended.
func (c *Client) reuseAttempt(a *attempt) {
	*a = attempt{}
	c.attempts.Put(a)
}
