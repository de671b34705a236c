package watchlock

import (
	"fmt"

	"github.com/seed-8c25f305/watchlock/internal/pubsub"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// This file is all that tests of what users see look at behind the API.

// ownerOf is the owner that a lease stands on.
func ownerOf(l *Lease) string { return fmt.Sprint(l.hold.burst.owner) }

// burstOf is the burst that a lease stands on, to be compared.
func burstOf(l *Lease) any { return l.hold.burst }

// tokenOf is the token of a lease of a fenced lock.
func tokenOf(l *Lease) int64 { return l.hold.token }

// leaseOf is the lease without its token.
func leaseOf(l *FencedLease) *Lease { return l.plain() }

// keysOf are the places of a lock in Redis.
func keysOf(m *Mutex) *wire.Keys { return &m.keys }

// subscriberOf is what hears messages for a client.
func subscriberOf(c *Client) *pubsub.Subscriber { return c.subs }

// knowRights has a client take the rights of its user for granted.
func knowRights(c *Client) {
	for _, k := range []wire.Kind{wire.HashKind{}, wire.FencedKind{}, c.strings} {
		c.rights.Learn(k)
	}
}

// knowServer makes c know whether its one server needs scripts for the string
// form, which it would find out with its first locks.
func knowServer(c *Client, scripts bool) *Client {
	mode := wire.ModePlain
	if scripts {
		mode = wire.ModeScript
	}
	c.strings.Ways.Learn(&wire.Keys{}, mode)
	return c
}

// newTestMutex is a lock of the kind that the tests are run for.
func newTestMutex(c *Client, name string, opts ...LockOption) *Mutex {
	switch k := kindOfTest(); k {
	case "mutex":
		return c.NewMutex(name, opts...)
	case "fenced":
		return c.newMutex(wire.FencedKind{}, name, opts)
	case "setnx":
		return c.newMutex(c.strings, name, opts)
	default:
		panic("WATCHLOCK_KIND is " + k)
	}
}

// mutexOf is a lock of one of the three kinds.
func mutexOf(c *Client, kind, name string) *Mutex {
	switch kind {
	case "fenced":
		return c.NewFencedMutex(name).m
	case "string", "setnx":
		return c.NewSetNXMutex(name)
	}
	return c.NewMutex(name)
}

// forgetRights has a client ask again what its user may do.
func forgetRights(c *Client) { c.rights.Granted.Clear() }
