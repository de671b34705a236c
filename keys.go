package watchlock

import (
	"errors"
	"fmt"
	"strings"

	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// maxNameBytes bounds a lock's name, before and after mapping.
const maxNameBytes = 32 << 10

// How a release is published, as an argument of the scripts that do.
const (
	publishClassic = "classic"
	publishSharded = "sharded"
	publishBoth    = "both"
)

// What a release is published as.
const (
	releasePayload = "00" // by a client like this one; a number to Redisson, as its own
	foreignPayload = "0"  // by others
)

// lockKeys are the places in Redis that belong to one lock.
type lockKeys struct {
	kind    kind
	name    string // as the caller wrote it
	key     string // the mapped name: the Redis key that is the lock
	channel string // where releases of that key are published
	token   string // the counter of its fencing tokens; empty when it has none
	slot    int    // the cluster slot of all of them

	keyArg, channelArg any // key and channel, boxed once
	tell               any // how to publish a release, as a script's argument; nil: on the one server
}

// newLockKeys maps name and derives what belongs to it for locks of kind. A name
// that is refused comes back with the reason, and the keys must not be used.
func newLockKeys(kind kind, name string, mapName func(string) string) (lockKeys, error) {
	k := lockKeys{kind: kind, name: name}
	if err := checkName("name", name); err != nil {
		return k, err
	}
	k.key = name
	if mapName != nil {
		k.key = mapName(name)
		if err := checkName("mapped name", k.key); err != nil {
			return k, err
		}
	}
	if err := checkTag(k.key); err != nil {
		return k, err
	}
	traits := kind.traits()
	k.channel = prefixed(traits.channel, k.key)
	if traits.counter != "" {
		k.token = prefixed(traits.counter, k.key)
	}
	k.slot = transport.KeySlot(k.key)
	k.keyArg, k.channelArg = k.key, k.channel
	return k, nil
}

func checkName(what, name string) error {
	switch {
	case name == "":
		return errors.New(what + " is empty")
	case len(name) > maxNameBytes:
		return fmt.Errorf("%s has %d bytes, more than %d", what, len(name), maxNameBytes)
	}
	return nil
}

// checkTag refuses a key whose channel could land in another cluster slot, or
// whose slot Redisson and Redis compute differently: Redisson looks for the
// first brace of each kind, Redis for the first "}" after the first "{".
func checkTag(key string) error {
	open, shut := strings.IndexByte(key, '{'), strings.IndexByte(key, '}')
	switch {
	case open < 0 && shut < 0:
		return nil
	case open < 0 || shut < 0:
		return fmt.Errorf("mapped name %.64q has a brace without its partner", key)
	case shut < open:
		return fmt.Errorf("mapped name %.64q has a \"}\" before its first \"{\"", key)
	case shut == open+1:
		return fmt.Errorf("mapped name %.64q has an empty hash tag", key)
	}
	return nil
}

// prefixed is Redisson's prefix rule (RedissonObject.prefixName, 4.7.0): a key
// that has no hash tag of its own becomes the tag.
func prefixed(prefix, key string) string {
	if strings.Contains(key, "{") {
		return prefix + ":" + key
	}
	return prefix + ":{" + key + "}"
}
