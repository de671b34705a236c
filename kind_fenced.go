package watchlock

import (
	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/transport"
)

var fencedTraits = traits{
	name: "fenced mutex", form: formHash, channel: hashChannel, counter: "redisson_lock_token", trips: 1, poll: bootclock.Never, relays: true,
}

// fencedKind is Redisson's RFencedLock on the wire: a hashKind with a counter.
type fencedKind struct{ hashKind }

func (fencedKind) String() string { return fencedTraits.name }

func (fencedKind) traits() *traits { return &fencedTraits }

func (fencedKind) acquire(do transport.Doer, k *ownedKey, before []owner) (grant, transport.Result) {
	return acquireBy(do, acquireFenced(k, before))
}

func (fencedKind) relay(do transport.Doer, from, to *ownedKey, own int, before []owner) relayed {
	return relayBy(do, relayHash(relayFencedScript, from, own, acquireFenced(to, before)))
}
