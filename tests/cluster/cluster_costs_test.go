package cluster_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
)

func TestUncontendedLockOnAClusterSendsTwoCommandsInEachMode(t *testing.T) {
	const pairs = 20
	onClusters(t, func(t *testing.T, b clusterBench) {
		for _, mode := range []watchlock.Channels{watchlock.ChannelsClassic, watchlock.ChannelsSharded, watchlock.ChannelsBoth} {
			c := b.client(t, watchlock.WithChannels(mode))
			for _, kind := range []string{"hash", "fenced", "string"} {
				m := locktest.MutexOf(c, kind, fmt.Sprintf("alone:%v:%s", mode, kind))
				for range 2 { // connects, learns what the server knows, and loads the scripts
					locktest.MustUnlock(t, locktest.MustLock(t, m))
				}
				owner := b.Owner(locktest.KeysOf(m).Slot)
				stop := owner.Monitor()
				for range pairs {
					locktest.MustUnlock(t, locktest.MustLock(t, m))
				}
				sent, told := 0, map[string]int{}
				for _, line := range stop() {
					line = strings.ToLower(line)
					switch {
					case strings.Contains(line, `publish" "`) && strings.Contains(line, locktest.KeysOf(m).Channel):
						told[strings.Fields(strings.SplitN(line, "]", 2)[1])[0]]++
					case strings.Contains(line, `subscribe"`):
						t.Errorf("%v, %s: %s", mode, kind, line)
					}
					if !strings.Contains(line, " lua]") && strings.Contains(line, locktest.KeysOf(m).Key) && !strings.Contains(line, "publish") {
						sent++
					}
				}
				want := map[string]int{}
				if mode != watchlock.ChannelsSharded {
					want[`"publish"`] = pairs
				}
				if mode != watchlock.ChannelsClassic {
					want[`"spublish"`] = pairs
				}
				if sent != 2*pairs || !maps.Equal(told, want) {
					t.Errorf("%v, %s: %d commands for %d pairs, want 2 for each; published %v, want %v", mode, kind, sent, pairs, told, want)
				}
			}
			_ = c.Close()
		}
	})
}
