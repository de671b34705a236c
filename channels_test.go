package watchlock

import (
	"context"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestOwnMessagesOnBothChannelsAreNobodyElses(t *testing.T) {
	const waiters = 12
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		c := newTestClient(t, s.Client(), WithChannels(ChannelsBoth), WithLocalHandoff(0))
		m := c.NewMutex("n")
		held := mustLock(t, m)
		done := make(chan error, waiters)
		for range waiters {
			go func() {
				done <- m.Do(context.Background(), func(context.Context) error {
					<-time.After(5 * time.Millisecond)
					return nil
				})
			}()
		}
		eventually(t, 5*time.Second, "both subscriptions are there", func() bool {
			echoes, counted := subscriberOf(c).Hears(keysOf(m).Channel)
			return echoes == 2 && counted == 2
		})
		before := s.CommandCalls()["hexists"]
		mustUnlock(t, held)
		for range waiters {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		// One is due when a section is held for longer than it wants to be.
		if n := s.CommandCalls()["hexists"] - before; n > 2 {
			t.Errorf("Redis was asked %d times whether somebody else had released the lock", n)
		}
		g, err := c.gate(keysOf(m))
		if err != nil {
			t.Fatal(err)
		}
		defer g.unref()
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.yielding.until() != 0 {
			t.Error("it yields to itself")
		}
	})
}
