package wire

import (
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// This file knows the string form on a server that compares values itself: SET
// with IFEQ and DELEX (Redis 8.4). No script is needed, so a user without EVAL
// can lock.

// AcquirePlain takes a free string lock, and answers who holds it else. SET with
// NX and GET together is known to every server from Redis 7.0.
func AcquirePlain(k *Owned) transport.Call {
	return plainCall([]any{"set", k.Keys.Key, k.Owner, "NX", "GET", "PX", k.Lease.Milliseconds()})
}

// TakeOverPlain makes k's owner the holder in place of an earlier one.
func TakeOverPlain(k *Owned, earlier Owner) transport.Call {
	return plainCall([]any{"set", k.Keys.Key, k.Owner, "IFEQ", earlier, "PX", k.Lease.Milliseconds()})
}

func pttlPlain(k *Keys) transport.Call { return plainCall([]any{"pttl", k.Key}) }

// InfoPlain reads who holds a string lock, and for how long.
func InfoPlain(k *Keys) transport.Call {
	return plainCall([]any{"get", k.Key}, []any{"pttl", k.Key})
}

// RenewPlain sets the TTLs of locks that are still their owners'. Their leases
// must not be below what is left.
func RenewPlain(ks []Owned) transport.Call {
	c := transport.Call{Plain: make([][]any, len(ks))}
	for i, k := range ks {
		if k.Lease > 0 {
			c.Plain[i] = []any{"set", k.Keys.Key, k.Owner, "IFEQ", k.Owner, "PX", k.Lease.Milliseconds()}
		} else {
			c.Plain[i] = []any{"get", k.Keys.Key}
		}
	}
	return c
}

// ReleasePlain removes string locks that are still their owners'.
func ReleasePlain(ks []Owned) transport.Call {
	c := transport.Call{Plain: make([][]any, len(ks))}
	for i, k := range ks {
		c.Plain[i] = []any{"delex", k.Keys.Key, "IFEQ", k.Owner}
	}
	return c
}

// announcePlain publishes the releases of locks of one client.
func announcePlain(ks []Owned) transport.Call {
	switch ks[0].Keys.Tell {
	case nil, PublishClassic:
		return announceClassic(ks)
	case publishBoth:
		return announceBy("spublish", ks).Then(announceClassic(ks))
	}
	return announceBy("spublish", ks)
}

func announceClassic(ks []Owned) transport.Call { return announceBy("publish", ks) }

func announceBy(publish string, ks []Owned) transport.Call {
	c := transport.Call{Plain: make([][]any, len(ks))}
	for i, k := range ks {
		c.Plain[i] = []any{publish, k.Keys.Channel, ReleasePayload}
	}
	return c
}

func plainCall(cmds ...[]any) transport.Call { return transport.Call{Plain: cmds} }

// ReplyError is the error that a plain command was answered with, if it was.
func ReplyError(reply any) error {
	err, _ := reply.(error)
	return err
}

// NotAString reports whether a server refused to compare a key of another type.
func NotAString(err error) bool {
	return errors.Is(err, transport.ErrWrongType) || redis.HasErrorPrefix(err, "WRONGTYPE") ||
		err != nil && strings.Contains(err.Error(), "should be of string type")
}

// ReadPTTL reads the TTL of a key that was there a moment ago: gone since, it
// has none left.
func ReadPTTL(reply any) time.Duration {
	ms, ok := reply.(int64)
	switch {
	case !ok:
		return -1
	case ms == -2:
		return 0
	}
	return pttl(ms)
}

// readTold is how many the publishing of one release reached, as far as it was
// answered.
func readTold(replies []any) int64 {
	told := int64(0)
	for _, r := range replies {
		n, _ := r.(int64)
		told += n
	}
	return told
}

// ReadRenewPlain reads the verdict on one lock.
func ReadRenewPlain(k Owned, reply any) Verdict {
	switch err := ReplyError(reply); {
	case NotAString(err):
		return NotMine
	case err != nil:
		return Unseen
	case reply == nil, k.Lease == 0 && reply != k.Owner:
		return NotMine
	}
	return Kept
}
