package wire

import (
	"errors"
	"fmt"
	"strings"

	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// MaxNameBytes bounds a lock's name, before and after mapping.
const MaxNameBytes = 32 << 10

// How a release is published, as an argument of the scripts that do.
const (
	PublishClassic = "classic"
	PublishSharded = "sharded"
	publishBoth    = "both"
)

// What a release is published as.
const (
	ReleasePayload = "00" // by a client like this one; a number to Redisson, as its own
	ForeignPayload = "0"  // by others
)

// Keys are the places in Redis that belong to one lock.
type Keys struct {
	Kind    Kind
	Name    string // as the caller wrote it
	Key     string // the mapped name: the Redis key that is the lock
	Channel string // where releases of that key are published
	Token   string // the counter of its fencing tokens; empty when it has none
	Slot    int    // the cluster slot of all of them

	KeyArg, ChannelArg any // key and channel, boxed once
	Tell               any // how to publish a release, as a script's argument; nil: on the one server
}

// NewKeys maps name and derives what belongs to it for locks of kind. A name
// that is refused comes back with the reason, and the keys must not be used.
func NewKeys(kind Kind, name string, mapName func(string) string) (Keys, error) {
	k := Keys{Kind: kind, Name: name}
	if err := checkName("name", name); err != nil {
		return k, err
	}
	k.Key = name
	if mapName != nil {
		k.Key = mapName(name)
		if err := checkName("mapped name", k.Key); err != nil {
			return k, err
		}
	}
	if err := checkTag(k.Key); err != nil {
		return k, err
	}
	traits := kind.Traits()
	k.Channel = prefixed(traits.channel, k.Key)
	if traits.Counter != "" {
		k.Token = prefixed(traits.Counter, k.Key)
	}
	k.Slot = transport.KeySlot(k.Key)
	k.KeyArg, k.ChannelArg = k.Key, k.Channel
	return k, nil
}

func checkName(what, name string) error {
	switch {
	case name == "":
		return errors.New(what + " is empty")
	case len(name) > MaxNameBytes:
		return fmt.Errorf("%s has %d bytes, more than %d", what, len(name), MaxNameBytes)
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
