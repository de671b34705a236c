package redistest

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestBubbleWithEverythingInUseEndsCleanly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := NewVirtual(t)
		c := v.Client()
		ctx := t.Context()

		sub := c.Subscribe(ctx, "news")
		if _, err := sub.Receive(ctx); err != nil {
			t.Fatalf("subscribe: %v", err)
		}
		messages := sub.Channel()
		defer sub.Close()

		pipe := c.Pipeline()
		big := strings.Repeat("x", 1000)
		for range 100 {
			pipe.Set(ctx, "k", big, 0)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			t.Fatalf("pipeline of 100 KB: %v", err)
		}
		if err := c.Publish(ctx, "news", "hello").Err(); err != nil {
			t.Fatalf("publish: %v", err)
		}
		if m := <-messages; m.Payload != "hello" {
			t.Errorf("message %q, want hello", m.Payload)
		}

		// Left open on purpose: closing the clients and the server ends it.
		left := v.Client().Subscribe(ctx, "news")
		if _, err := left.Receive(ctx); err != nil {
			t.Fatalf("subscribe: %v", err)
		}
		go func() { _, _ = left.Receive(context.Background()) }()

		v.Freeze()
		short := v.Client(func(o *redis.Options) { o.MaxRetries, o.ReadTimeout = -1, 250*time.Millisecond })
		start := time.Now()
		err := short.Get(ctx, "k").Err()
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("GET of a frozen server: %v, want a timeout", err)
		}
		if took := time.Since(start); took < 250*time.Millisecond || took > time.Second {
			t.Errorf("GET of a frozen server took %v", took)
		}
		if err := v.Client().Ping(canceledAfter(t, time.Second)).Err(); err == nil {
			t.Error("a frozen server answered a new connection")
		}
	})
}

func canceledAfter(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestSubscriptionIsSilentWhileFrozenAndCatchesUpAtThaw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := NewVirtual(t)
		c, other := v.Client(), v.Client()
		ctx := t.Context()
		if err := other.Ping(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		sub := c.Subscribe(ctx, "news")
		defer sub.Close()
		if _, err := sub.Receive(ctx); err != nil {
			t.Fatal(err)
		}
		v.Freeze()
		done := make(chan error, 1)
		go func() { done <- other.Publish(context.Background(), "news", "late").Err() }()
		if _, err := sub.ReceiveTimeout(ctx, time.Second); err == nil {
			t.Fatal("a frozen server delivered something")
		}
		v.Thaw()
		if err := <-done; err != nil {
			t.Errorf("publish: %v", err)
		}
		got, err := sub.ReceiveTimeout(ctx, time.Second)
		if m, ok := got.(*redis.Message); !ok || m.Payload != "late" {
			t.Errorf("after thaw: %v, %v", got, err)
		}
	})
}

func TestLeaseExpiresToTheMillisecondEvenWhileFrozen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := NewVirtual(t)
		c := v.Client()
		ctx := t.Context()
		if err := c.Set(ctx, "k", 1, 30*time.Second).Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30*time.Second - time.Millisecond)
		if n := c.Exists(ctx, "k").Val(); n != 1 {
			t.Error("gone one millisecond too early")
		}
		v.Freeze()
		time.Sleep(time.Millisecond)
		v.Thaw()
		if n := c.Exists(ctx, "k").Val(); n != 0 {
			t.Error("still there at the end of its lease")
		}
	})
}

func TestCommandsCarryNameArgumentsTimeAndConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := NewVirtual(t)
		c := v.Client()
		ctx := t.Context()
		const script = `redis.call('set', KEYS[1], ARGV[1]); return redis.call('get', KEYS[1])`
		run := redis.NewScript(script)
		start := time.Now()
		for range 2 {
			if err := run.Run(ctx, c, []string{"k"}, "v").Err(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		// EVALSHA, then EVAL because the script is unknown, then EVALSHA.
		if n := v.CountIf(Runs(script)); n != 3 {
			t.Errorf("%d runs, want 3: %v", n, v.Commands())
		}
		if n := v.Count("set"); n != 0 {
			t.Errorf("%d commands of the script itself are in the list", n)
		}
		last := v.Commands()[len(v.Commands())-1]
		if last.Name != "EVALSHA" || last.Arg(2) != "k" || last.Arg(3) != "v" || last.Arg(4) != "" {
			t.Errorf("last command: %v", last)
		}
		if at := last.Time.Sub(start); at != time.Second {
			t.Errorf("last command at %v, want 1s", at)
		}
		if last.Conn != 1 {
			t.Errorf("last command on connection %d, want 1", last.Conn)
		}
		if v.CountIf(Match(Any).Mentions("k")) != 3 || v.CountIf(Is("eval").Mentions("k")) != 1 {
			t.Error("Mentions does not narrow a match")
		}
		v.Reset()
		if n := len(v.Commands()); n != 0 {
			t.Errorf("%d commands after Reset", n)
		}
	})
}

func TestClosedServerRefusesAndLeavesNoConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := NewVirtual(t)
		if err := v.Client().Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		if n := v.Conns(); n != 1 {
			t.Errorf("%d connections, want 1", n)
		}
		v.Close()
		if n := v.Conns(); n != 0 {
			t.Errorf("%d connections after Close", n)
		}
		if _, err := v.Dial(t.Context(), "", ""); err == nil {
			t.Error("dial after Close succeeded")
		}
	})
}
