package watchlock

import (
	"fmt"
	"time"
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
	// maxPoll bounds the sleep of a waiter.
	maxPoll() time.Duration
}

// hashKind is Redisson's RLock on the wire: a hash whose one field is the owner.
type hashKind struct{}

func (hashKind) String() string { return "mutex" }

func (hashKind) maxPoll() time.Duration { return never }

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
