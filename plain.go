package watchlock

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

// acquirePlain takes a free string lock, and answers who holds it else. SET with
// NX and GET together is known to every server from Redis 7.0.
func acquirePlain(k *ownedKey) transport.Call {
	return plainCall([]any{"set", k.keys.key, k.owner, "NX", "GET", "PX", k.lease.Milliseconds()})
}

// takeOverPlain makes k's owner the holder in place of an earlier one.
func takeOverPlain(k *ownedKey, earlier owner) transport.Call {
	return plainCall([]any{"set", k.keys.key, k.owner, "IFEQ", earlier, "PX", k.lease.Milliseconds()})
}

func pttlPlain(k *lockKeys) transport.Call { return plainCall([]any{"pttl", k.key}) }

func infoPlain(k *lockKeys) transport.Call {
	return plainCall([]any{"get", k.key}, []any{"pttl", k.key})
}

// renewPlain sets the TTLs of locks that are still their owners'. Their leases
// must not be below what is left.
func renewPlain(ks []ownedKey) transport.Call {
	c := transport.Call{Plain: make([][]any, len(ks))}
	for i, k := range ks {
		if k.lease > 0 {
			c.Plain[i] = []any{"set", k.keys.key, k.owner, "IFEQ", k.owner, "PX", k.lease.Milliseconds()}
		} else {
			c.Plain[i] = []any{"get", k.keys.key}
		}
	}
	return c
}

func releasePlain(ks []ownedKey) transport.Call {
	c := transport.Call{Plain: make([][]any, len(ks))}
	for i, k := range ks {
		c.Plain[i] = []any{"delex", k.keys.key, "IFEQ", k.owner}
	}
	return c
}

// tellPlain publishes the releases of locks of one client.
func tellPlain(ks []ownedKey) transport.Call {
	switch ks[0].keys.tell {
	case nil, publishClassic:
		return tellClassic(ks)
	case publishBoth:
		return tellBy("spublish", ks).Then(tellClassic(ks))
	}
	return tellBy("spublish", ks)
}

func tellClassic(ks []ownedKey) transport.Call { return tellBy("publish", ks) }

func tellBy(publish string, ks []ownedKey) transport.Call {
	c := transport.Call{Plain: make([][]any, len(ks))}
	for i, k := range ks {
		c.Plain[i] = []any{publish, k.keys.channel, releasePayload}
	}
	return c
}

func plainCall(cmds ...[]any) transport.Call { return transport.Call{Plain: cmds} }

// replyError is the error that a plain command was answered with, if it was.
func replyError(reply any) error {
	err, _ := reply.(error)
	return err
}

// notAString reports whether a server refused to compare a key of another type.
func notAString(err error) bool {
	return errors.Is(err, transport.ErrWrongType) || redis.HasErrorPrefix(err, "WRONGTYPE") ||
		err != nil && strings.Contains(err.Error(), "should be of string type")
}

// readPTTL reads the TTL of a key that was there a moment ago: gone since, it
// has none left.
func readPTTL(reply any) time.Duration {
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

// readRenewPlain reads the verdict on one lock.
func readRenewPlain(k ownedKey, reply any) verdict {
	switch err := replyError(reply); {
	case notAString(err):
		return notMine
	case err != nil:
		return unseen
	case reply == nil, k.lease == 0 && reply != k.owner:
		return notMine
	}
	return kept
}
