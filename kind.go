package watchlock

import (
	"fmt"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/bootclock"
)

// kind is what lock kinds differ in: what to run to acquire, renew and release, and for
// those that are relayers to relay.
// Everything else about owners, waiting and trust is the gate's. A result whose
// fate is not replied makes the other value void.
type kind interface {
	fmt.Stringer
	// acquire takes the lock for k.owner with a TTL of k.lease, and takes over
	// what the owners in before may have taken.
	acquire(do doer, k *ownedKey, before []owner) (grant, result)
	// renew sets the TTL of each lock that is still its owner's to its lease,
	// never lowering it; a lease of 0 only looks.
	renew(do doer, ks []ownedKey) ([]verdict, result)
	// release removes each lock that is still its owner's, and tells waiters.
	release(do doer, ks []ownedKey) (answers, result)
	// info reads who holds the lock.
	info(do doer, k *lockKeys) (holder, result)
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
	relay(do doer, from, to *ownedKey, own int, before []owner) relayed
}

// relayed is what came of a relay.
type relayed struct {
	released answers // that to the release
	grant    grant   // that to the acquire, if it was tried
	tried    bool
	res      result // of both
}

const hashChannel = "redisson_lock__channel"

var hashTraits = traits{name: "mutex", form: formHash, channel: hashChannel, trips: 1, poll: bootclock.Never, relays: true}

// hashKind is Redisson's RLock on the wire: a hash whose one field is the owner.
type hashKind struct{}

func (hashKind) String() string { return hashTraits.name }

func (hashKind) traits() *traits { return &hashTraits }

func (hashKind) acquire(do doer, k *ownedKey, before []owner) (grant, result) {
	return acquireBy(do, acquireHash(k, before))
}

func (hashKind) renew(do doer, ks []ownedKey) ([]verdict, result) {
	return renewBy(do, renewAll(renewScript, ks), len(ks))
}

func (hashKind) release(do doer, ks []ownedKey) (answers, result) {
	return releaseBy(do, releaseAll(releaseScript, ks), len(ks))
}

func (hashKind) relay(do doer, from, to *ownedKey, own int, before []owner) relayed {
	return relayBy(do, relayHash(relayScript, from, own, acquireHash(to, before)))
}

func (hashKind) info(do doer, k *lockKeys) (holder, result) {
	res := do.run(infoHash(k))
	if res.fate != replied {
		return holder{}, res
	}
	info, err := readInfo(res.reply)
	return info, res.checked(err)
}

// acquireBy runs an acquire script.
func acquireBy(do doer, c call) (grant, result) {
	res := do.run(c)
	if res.fate != replied {
		return grant{}, res
	}
	g, err := readAcquire(res.ints)
	return g, res.checked(err)
}

// renewBy runs a renewal script for n locks.
func renewBy(do doer, c call, n int) ([]verdict, result) {
	res := do.run(c)
	if res.fate != replied {
		return nil, res
	}
	v, err := readRenew(res.ints, n)
	return v, res.checked(err)
}

// releaseBy runs a release script for n locks.
func releaseBy(do doer, c call, n int) (answers, result) {
	res := do.run(c)
	if res.fate != replied {
		return nil, res
	}
	f, err := readRelease(res.ints, n)
	return f, res.checked(err)
}

// relayBy runs a relay script.
func relayBy(do doer, c call) (r relayed) {
	if r.res = do.run(c); r.res.fate != replied {
		return r
	}
	var err error
	r.released, r.grant, r.tried, err = readRelay(r.res.ints)
	r.res = r.res.checked(err)
	return r
}

// replyList is the replies of a call of plain commands, at least n.
func replyList(res result, n int) ([]any, result) {
	if res.fate != replied {
		return nil, res
	}
	if list, ok := res.reply.([]any); ok && len(list) >= n {
		return list, res
	}
	return nil, res.checked(badReply(res.reply))
}

// onlyReply is the reply of a call of one plain command. An error reply becomes
// the result's.
func onlyReply(res result) (any, result) {
	list, res := replyList(res, 1)
	if res.fate != replied {
		return nil, res
	}
	if err := replyError(list[0]); err != nil {
		res.fate, res.err = judge(err)
		return nil, res
	}
	return list[0], res
}
