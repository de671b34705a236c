package hooks_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// virtualSentinel is a client that a sentinel sends to v.
func virtualSentinel(t testing.TB, v *redistest.Virtual) *redis.Client {
	t.Helper()
	const at = "127.0.0.1:26379"
	sentinel := redistest.NewVirtual(t)
	err := sentinel.Mini().Server().Register("SENTINEL", func(c *server.Peer, _ string, args []string) {
		if len(args) == 2 && args[0] == "get-master-addr-by-name" {
			c.WriteLen(2)
			c.WriteBulk("127.0.0.1")
			c.WriteBulk("6379")
			return
		}
		c.WriteLen(0) // no other sentinels, no replicas
	})
	if err != nil {
		t.Fatal(err)
	}
	return redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: "m", SentinelAddrs: []string{at}, DisableIdentity: true,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr == at {
				return sentinel.Dial(ctx, network, addr)
			}
			return v.Dial(ctx, network, addr)
		},
	})
}

func TestAHookOfASentinelsClientSeesEachCommandOfALock(t *testing.T) {
	locktest.EachKindInBubble(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		rdb := virtualSentinel(t, v)
		var s sightings
		rdb.AddHook(s.hook())
		c := locktest.NewTestClient(t, rdb)
		defer func() {
			_ = c.Close()
			_ = rdb.Close()
			time.Sleep(2 * time.Second)
		}()
		l := locktest.MustLock(t, locktest.MutexOf(c, kind, "k"))
		time.Sleep(25 * time.Second)
		locktest.MustUnlock(t, l)
		wantAllSeen(t, v.Commands(), &s)
	})
}
