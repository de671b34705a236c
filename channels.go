package watchlock

import (
	"fmt"
)

// Channels says which channels of Redis carry the news of a release.
type Channels int

// A classic message (PUBLISH, SUBSCRIBE) reaches every node of a cluster; a sharded
// one (SPUBLISH, SSUBSCRIBE; Redis 7.0 and later) stays where the lock is. Who
// listens to the one kind does not hear the other.
const (
	// ChannelsAuto is classic on one server and sharded on a cluster, as Redisson does
	// since 3.22, and classic on a ClusterClient whose slots the caller names, as
	// NewFailoverClusterClient does. It is ClusterServersConfig.shardedSubscriptionMode AUTO, which can be
	// set since 3.29.
	ChannelsAuto Channels = iota
	// ChannelsClassic is mode OFF, and what Redisson does before 3.22 and wherever it
	// was not told of a cluster: on one server, with Sentinel, behind a proxy.
	ChannelsClassic
	// ChannelsSharded is mode ON. A server that does not know sharded channels gets
	// classic ones, also with ChannelsAuto.
	ChannelsSharded
	// ChannelsBoth publishes to and hears both, for a fleet whose members differ: a
	// release costs one more message to every node, a wait some tries in vain.
	ChannelsBoth
)

// String is the name of c: auto, classic, sharded or both.
func (c Channels) String() string {
	switch c {
	case ChannelsAuto:
		return "auto"
	case ChannelsClassic:
		return "classic"
	case ChannelsSharded:
		return "sharded"
	case ChannelsBoth:
		return "both"
	}
	return fmt.Sprintf("Channels(%d)", int(c))
}

// on is c with auto decided.
func (c Channels) on(cluster bool) Channels {
	switch {
	case c != ChannelsAuto:
		return c
	case cluster:
		return ChannelsSharded
	}
	return ChannelsClassic
}

// publishArg is c, decided, as the argument of a script; none for classic channels
// of one server.
func (c Channels) publishArg(cluster bool) any {
	if c == ChannelsClassic && !cluster {
		return nil
	}
	return c.String()
}

// WithChannels sets where releases are published and heard; ChannelsAuto by default.
// It belongs to ClusterServersConfig.shardedSubscriptionMode of the Redisson clients
// that share the locks. A wrong choice costs time and nothing else: waiters that
// are not woken ask again within the maximum poll interval, those of Redisson when
// the lease that kept them out would have ended.
func WithChannels(c Channels) Option {
	return option(func(conf *config) error {
		conf.channels = c
		if c < ChannelsAuto || c > ChannelsBoth {
			return fmt.Errorf("channels %d are not between %d (%v) and %d (%v)",
				int(c), int(ChannelsAuto), ChannelsAuto, int(ChannelsBoth), ChannelsBoth)
		}
		return nil
	})
}
