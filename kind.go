package watchlock

import (
	"fmt"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// kind is what lock kinds differ in: what to run to acquire, renew and release, and for
// those that are relayers to relay.
// Everything else about owners, waiting and trust is the gate's. A result whose
// fate is not replied makes the other value void.
type kind interface {
	fmt.Stringer
	// acquire takes the lock for k.owner with a TTL of k.lease, and takes over
	// what the owners in before may have taken.
	acquire(do transport.Doer, k *ownedKey, before []owner) (grant, transport.Result)
	// renew sets the TTL of each lock that is still its owner's to its lease,
	// never lowering it; a lease of 0 only looks.
	renew(do transport.Doer, ks []ownedKey) ([]verdict, transport.Result)
	// release removes each lock that is still its owner's, and tells waiters.
	release(do transport.Doer, ks []ownedKey) (answers, transport.Result)
	// info reads who holds the lock.
	info(do transport.Doer, k *lockKeys) (holder, transport.Result)
	// traits are what the rest of the library needs to know of the kind.
	traits() *traits
}

// traits are what a gate and its waiters go by, in place of asking which kind it is.
type traits struct {
	name    string        // for people
	form    form          // of what is at the key
	channel string        // the prefix of the channel of its releases
	counter string        // the prefix of the key that counts its tokens; "": it has none
	trips   int           // round trips that one acquire takes at most
	poll    time.Duration // the longest sleep of a waiter
	relays  bool          // it is a relayer
}

// form is what is at a lock's key. A gate stands before one key in one form.
type form int

const (
	formHash form = iota
	formString
	forms // how many there are
)

// relayer is a kind whose locks can be relayed.
type relayer interface {
	// relay releases from, and takes the lock for to as acquire does if nobody else
	// has subscribed to its releases: the client has own subscriptions itself.
	relay(do transport.Doer, from, to *ownedKey, own int, before []owner) relayed
}

// relayed is what came of a relay.
type relayed struct {
	released answers // that to the release
	grant    grant   // that to the acquire, if it was tried
	tried    bool
	res      transport.Result // of both
}

const hashChannel = "redisson_lock__channel"

var hashTraits = traits{name: "mutex", form: formHash, channel: hashChannel, trips: 1, poll: bootclock.Never, relays: true}

// hashKind is Redisson's RLock on the wire: a hash whose one field is the owner.
type hashKind struct{}

func (hashKind) String() string { return hashTraits.name }

func (hashKind) traits() *traits { return &hashTraits }

func (hashKind) acquire(do transport.Doer, k *ownedKey, before []owner) (grant, transport.Result) {
	return acquireBy(do, acquireHash(k, before))
}

func (hashKind) renew(do transport.Doer, ks []ownedKey) ([]verdict, transport.Result) {
	return renewBy(do, renewAll(renewScript, ks), len(ks))
}

func (hashKind) release(do transport.Doer, ks []ownedKey) (answers, transport.Result) {
	return releaseBy(do, releaseAll(releaseScript, ks), len(ks))
}

func (hashKind) relay(do transport.Doer, from, to *ownedKey, own int, before []owner) relayed {
	return relayBy(do, relayHash(relayScript, from, own, acquireHash(to, before)))
}

func (hashKind) info(do transport.Doer, k *lockKeys) (holder, transport.Result) {
	res := do.Run(infoHash(k))
	if res.Fate != transport.Replied {
		return holder{}, res
	}
	info, err := readInfo(res.Reply)
	return info, res.Checked(err)
}

// acquireBy runs an acquire script.
func acquireBy(do transport.Doer, c transport.Call) (grant, transport.Result) {
	res := do.Run(c)
	if res.Fate != transport.Replied {
		return grant{}, res
	}
	g, err := readAcquire(res.Ints)
	return g, res.Checked(err)
}

// renewBy runs a renewal script for n locks.
func renewBy(do transport.Doer, c transport.Call, n int) ([]verdict, transport.Result) {
	res := do.Run(c)
	if res.Fate != transport.Replied {
		return nil, res
	}
	v, err := readRenew(res.Ints, n)
	return v, res.Checked(err)
}

// releaseBy runs a release script for n locks.
func releaseBy(do transport.Doer, c transport.Call, n int) (answers, transport.Result) {
	res := do.Run(c)
	if res.Fate != transport.Replied {
		return nil, res
	}
	f, err := readRelease(res.Ints, n)
	return f, res.Checked(err)
}

// relayBy runs a relay script.
func relayBy(do transport.Doer, c transport.Call) (r relayed) {
	if r.res = do.Run(c); r.res.Fate != transport.Replied {
		return r
	}
	var err error
	r.released, r.grant, r.tried, err = readRelay(r.res.Ints)
	r.res = r.res.Checked(err)
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
	if err := replyError(list[0]); err != nil {
		res.Fate, res.Err = transport.Judge(err)
		return nil, res
	}
	return list[0], res
}
