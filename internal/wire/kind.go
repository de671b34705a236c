package wire

import (
	"fmt"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// Kind is what lock kinds differ in: what to run to acquire, renew and release, and for
// those that are relayers to relay.
// Everything else about owners, waiting and trust is the gate's. A result whose
// fate is not replied makes the other value void.
type Kind interface {
	fmt.Stringer
	// Acquire takes the lock for k.owner with a TTL of k.lease, and takes over
	// what the owners in before may have taken.
	Acquire(do transport.Doer, k *Owned, before []Owner) (Grant, transport.Result)
	// Renew sets the TTL of each lock that is still its owner's to its lease,
	// never lowering it; a lease of 0 only looks.
	Renew(do transport.Doer, ks []Owned) ([]Verdict, transport.Result)
	// Release removes each lock that is still its owner's, and tells waiters.
	Release(do transport.Doer, ks []Owned) (Answers, transport.Result)
	// Info reads who holds the lock.
	Info(do transport.Doer, k *Keys) (Holder, transport.Result)
	// Traits are what the rest of the library needs to know of the kind.
	Traits() *traits
}

// traits are what a gate and its waiters go by, in place of asking which kind it is.
type traits struct {
	name    string        // for people
	Form    form          // of what is at the key
	channel string        // the prefix of the channel of its releases
	Counter string        // the prefix of the key that counts its tokens; "": it has none
	Trips   int           // round trips that one acquire takes at most
	Poll    time.Duration // the longest sleep of a waiter
	Relays  bool          // it is a relayer
}

// form is what is at a lock's key. A gate stands before one key in one form.
type form int

// The forms that there are.
const (
	FormHash form = iota
	FormString
	Forms // how many there are
)

// Relayer is a kind whose locks can be relayed.
type Relayer interface {
	// Relay releases from, and takes the lock for to as acquire does if nobody else
	// has subscribed to its releases: the client has own subscriptions itself.
	Relay(do transport.Doer, from, to *Owned, own int, before []Owner) relayed
}

// relayed is what came of a relay.
type relayed struct {
	Released Answers // that to the release
	Grant    Grant   // that to the acquire, if it was tried
	Tried    bool
	Res      transport.Result // of both
}

const hashChannel = "redisson_lock__channel"

var hashTraits = traits{name: "mutex", Form: FormHash, channel: hashChannel, Trips: 1, Poll: bootclock.Never, Relays: true}

// HashKind is Redisson's RLock on the wire: a hash whose one field is the owner.
type HashKind struct{}

func (HashKind) String() string { return hashTraits.name }

// Traits is Kind's.
func (HashKind) Traits() *traits { return &hashTraits }

// Acquire is Kind's.
func (HashKind) Acquire(do transport.Doer, k *Owned, before []Owner) (Grant, transport.Result) {
	return acquireBy(do, AcquireHash(k, before))
}

// Renew is Kind's.
func (HashKind) Renew(do transport.Doer, ks []Owned) ([]Verdict, transport.Result) {
	return renewBy(do, RenewAll(RenewScript, ks), len(ks))
}

// Release is Kind's.
func (HashKind) Release(do transport.Doer, ks []Owned) (Answers, transport.Result) {
	return releaseBy(do, ReleaseAll(ReleaseScript, ks), len(ks))
}

// Relay is Kind's.
func (HashKind) Relay(do transport.Doer, from, to *Owned, own int, before []Owner) relayed {
	return relayBy(do, RelayHash(RelayScript, from, own, AcquireHash(to, before)))
}

// Info is Kind's.
func (HashKind) Info(do transport.Doer, k *Keys) (Holder, transport.Result) {
	res := do.Run(InfoHash(k))
	if res.Fate != transport.Replied {
		return Holder{}, res
	}
	info, err := ReadInfo(res.Reply)
	return info, res.Checked(err)
}

// acquireBy runs an acquire script.
func acquireBy(do transport.Doer, c transport.Call) (Grant, transport.Result) {
	res := do.Run(c)
	if res.Fate != transport.Replied {
		return Grant{}, res
	}
	g, err := ReadAcquire(res.Ints)
	return g, res.Checked(err)
}

// renewBy runs a renewal script for n locks.
func renewBy(do transport.Doer, c transport.Call, n int) ([]Verdict, transport.Result) {
	res := do.Run(c)
	if res.Fate != transport.Replied {
		return nil, res
	}
	v, err := ReadRenew(res.Ints, n)
	return v, res.Checked(err)
}

// releaseBy runs a release script for n locks.
func releaseBy(do transport.Doer, c transport.Call, n int) (Answers, transport.Result) {
	res := do.Run(c)
	if res.Fate != transport.Replied {
		return nil, res
	}
	f, err := ReadRelease(res.Ints, n)
	return f, res.Checked(err)
}

// relayBy runs a relay script.
func relayBy(do transport.Doer, c transport.Call) (r relayed) {
	if r.Res = do.Run(c); r.Res.Fate != transport.Replied {
		return r
	}
	var err error
	r.Released, r.Grant, r.Tried, err = ReadRelay(r.Res.Ints)
	r.Res = r.Res.Checked(err)
	return r
}

// replyList is the replies of a call of plain commands, at least n.
func replyList(res transport.Result, n int) ([]any, transport.Result) {
	if res.Fate != transport.Replied {
		return nil, res
	}
	if list, ok := res.Reply.([]any); ok && len(list) >= n {
		return list, res
	}
	return nil, res.Checked(badReply(res.Reply))
}

// onlyReply is the reply of a call of one plain command. An error reply becomes
// the result's.
func onlyReply(res transport.Result) (any, transport.Result) {
	list, res := replyList(res, 1)
	if res.Fate != transport.Replied {
		return nil, res
	}
	if err := ReplyError(list[0]); err != nil {
		res.Fate, res.Err = transport.Judge(err)
		return nil, res
	}
	return list[0], res
}
