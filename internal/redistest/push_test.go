package redistest

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// onBothProtocols runs f on both servers with a client of each protocol.
func onBothProtocols(t *testing.T, f func(t *testing.T, c, plain *redis.Client, w *Wire)) {
	onBoth(t, func(t *testing.T, b backend, w *Wire) {
		for _, protocol := range []int{2, 3} {
			w.Clear()
			c := b.Client(w.Options(), func(o *redis.Options) { o.Protocol = protocol })
			f(t, c, b.Client(), w)
			_ = c.Close()
			eventually(t, "no connection is left to take the next round's messages", func() bool { return w.Conns() == 0 })
			if t.Failed() {
				t.Fatalf("with RESP%d", protocol)
			}
		}
	})
}

func receive(t *testing.T, sub *redis.PubSub) string {
	t.Helper()
	got, err := sub.ReceiveTimeout(t.Context(), 2*time.Second)
	switch m := got.(type) {
	case *redis.Message:
		return m.Payload
	case *redis.Subscription:
		return m.Kind + " " + m.Channel
	case *redis.Pong:
		return "pong"
	}
	t.Fatalf("receive: %v, %v", got, err)
	return ""
}

func TestDroppedMessagesAreTheOnlyOnesMissing(t *testing.T) {
	onBothProtocols(t, func(t *testing.T, c, plain *redis.Client, w *Wire) {
		ctx := t.Context()
		sub := c.Subscribe(ctx, "a", "b")
		defer sub.Close()
		for _, want := range []string{"subscribe a", "subscribe b"} {
			if got := receive(t, sub); got != want {
				t.Fatalf("%q, want %q", got, want)
			}
		}
		if err := sub.PSubscribe(ctx, "p*"); err != nil || receive(t, sub) != "psubscribe p*" {
			t.Fatalf("psubscribe: %v", err)
		}
		w.DropPush(2).Skip(1)
		named := w.OnPush(func(channel, payload string) bool { return channel == "pq" && payload == "x" }, true)
		publish := func(channel, payload string) {
			if err := plain.Publish(ctx, channel, payload).Err(); err != nil {
				t.Fatal(err)
			}
		}
		for _, payload := range []string{"1", "2", "3", "4"} {
			publish("a", payload)
		}
		for _, want := range []string{"1", "4"} {
			if got := receive(t, sub); got != want {
				t.Errorf("message %q, want %q", got, want)
			}
		}
		// Only now: miniredis keeps no order between messages of channels and of
		// patterns.
		publish("pq", "x")
		publish("pq", "5")
		if got := receive(t, sub); got != "5" {
			t.Errorf("message %q, want 5", got)
		}
		if named.Hits() != 1 {
			t.Errorf("%d hits of the rule with a name, want 1", named.Hits())
		}
	})
}

func TestSubscriptionsKeepTheOrderOfReplies(t *testing.T) {
	onBothProtocols(t, func(t *testing.T, c, plain *redis.Client, w *Wire) {
		ctx := t.Context()
		sub := c.Subscribe(ctx, "a", "b")
		defer sub.Close()
		_, _ = receive(t, sub), receive(t, sub)
		if err := sub.Unsubscribe(ctx); err != nil { // from both: two replies to no argument
			t.Fatal(err)
		}
		_, _ = receive(t, sub), receive(t, sub)
		release := make(chan struct{})
		w.On(Is("ping"), HoldReply(release))
		if err := sub.Subscribe(ctx, "c"); err != nil || receive(t, sub) != "subscribe c" {
			t.Fatalf("subscribe again: %v", err)
		}
		if err := sub.Ping(ctx); err != nil {
			t.Fatal(err)
		}
		if got, err := sub.ReceiveTimeout(ctx, 100*time.Millisecond); !isTimeout(err) {
			t.Errorf("the PING's reply is not the one held: %v, %v", got, err)
		}
		close(release)
		if got := receive(t, sub); got != "pong" {
			t.Errorf("%q, want pong", got)
		}
	})
}

func TestHeldSubscribeAckHoldsMessagesToo(t *testing.T) {
	onBothProtocols(t, func(t *testing.T, c, plain *redis.Client, w *Wire) {
		ctx := t.Context()
		release := make(chan struct{})
		rule := w.On(Is("subscribe"), HoldReply(release))
		sub := c.Subscribe(ctx, "a")
		defer sub.Close()
		<-rule.Fired()
		eventually(t, "the server knows of the subscription", func() bool {
			return plain.PubSubNumSub(context.Background(), "a").Val()["a"] == 1
		})
		if err := plain.Publish(ctx, "a", "m").Err(); err != nil {
			t.Fatal(err)
		}
		if got, err := sub.ReceiveTimeout(ctx, 100*time.Millisecond); !isTimeout(err) {
			t.Errorf("before the release: %v, %v", got, err)
		}
		close(release)
		for _, want := range []string{"subscribe a", "m"} {
			if got := receive(t, sub); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
	})
}
