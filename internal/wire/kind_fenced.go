package wire

import (
	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/transport"
)

var fencedTraits = traits{
	name: "fenced mutex", Form: FormHash, channel: hashChannel, Counter: "redisson_lock_token", Trips: 1, Poll: bootclock.Never, Relays: true,
}

// FencedKind is Redisson's RFencedLock on the wire: a hashKind with a counter.
type FencedKind struct{ HashKind }

func (FencedKind) String() string { return fencedTraits.name }

// Traits is Kind's.
func (FencedKind) Traits() *traits { return &fencedTraits }

// Acquire is Kind's.
func (FencedKind) Acquire(do transport.Doer, k *Owned, before []Owner) (Grant, transport.Result) {
	return acquireBy(do, AcquireFenced(k, before))
}

// Relay is Kind's.
func (FencedKind) Relay(do transport.Doer, from, to *Owned, own int, before []Owner) relayed {
	return relayBy(do, RelayHash(RelayFencedScript, from, own, AcquireFenced(to, before)))
}
