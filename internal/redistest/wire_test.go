package redistest

import (
	"context"
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// backend is what the tests of Wire need of either server.
type backend interface {
	Client(opts ...func(*redis.Options)) *redis.Client
}

// onBoth runs f in a bubble and with a real server.
func onBoth(t *testing.T, f func(t *testing.T, b backend, w *Wire)) {
	t.Run("virtual", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, NewVirtual(t), NewWire()) })
	})
	t.Run("real", func(t *testing.T) {
		NoLeaks(t)
		f(t, Start(t), NewWire())
	})
}

// once makes a client fail at the first error, and soon.
func once(o *redis.Options) {
	o.MaxRetries, o.DialerRetries, o.ReadTimeout = -1, 1, 300*time.Millisecond
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 5 s: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

func TestWireWithoutRulesChangesNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend, w *Wire) {
		ctx := t.Context()
		for _, protocol := range []int{2, 3} {
			w.Reset()
			c := b.Client(w.Options(), func(o *redis.Options) { o.Protocol = protocol })
			pipe := c.Pipeline()
			big := strings.Repeat("x\r\n", 40_000)
			for range 5 {
				pipe.Set(ctx, "k", big, 0)
			}
			pipe.HSet(ctx, "h", "f", "v")
			all := pipe.HGetAll(ctx, "h")
			got := pipe.Get(ctx, "k")
			nested := pipe.Eval(ctx, `return {1, {2, {'three'}}, {}}`, nil)
			missing := pipe.Get(ctx, "missing")
			if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
				t.Fatalf("RESP%d: pipeline: %v", protocol, err)
			}
			if got.Val() != big || all.Val()["f"] != "v" || !errors.Is(missing.Err(), redis.Nil) {
				t.Errorf("RESP%d: a reply is not its command's", protocol)
			}
			if parts, err := nested.Slice(); err != nil || len(parts) != 3 {
				t.Errorf("RESP%d: nested reply %v, %v", protocol, parts, err)
			}
			if n := w.Count(Is("set")); n != 5 {
				t.Errorf("RESP%d: %d SETs seen, want 5", protocol, n)
			}
			if n := len(w.Seen()); n < 10 {
				t.Errorf("RESP%d: %d commands seen", protocol, n)
			}
			_ = c.Close()
		}
		eventually(t, "connections gone", func() bool { return w.Conns() == 0 })
	})
}

func TestAnswerRunsTheCommandAndRefuseDoesNot(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend, w *Wire) {
		ctx := t.Context()
		c := b.Client(w.Options(), once)
		for action, want := range map[Action]string{Answer("upstream failure"): "1", Refuse("NOPERM no"): ""} {
			w.On(Is("set"), action)
			pipe := c.Pipeline()
			set, get := pipe.Set(ctx, "k", "1", 0), pipe.Get(ctx, "k")
			_, _ = pipe.Exec(ctx) // each has its own error
			if err := set.Err(); err == nil || !strings.Contains("upstream failure, NOPERM no", err.Error()) || get.Val() != want {
				t.Errorf("SET: %v; GET: %q, want %q", err, get.Val(), want)
			}
			c.Del(ctx, "k")
		}
	})
}

func TestDropReplyRunsTheCommandOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend, w *Wire) {
		ctx := t.Context()
		c := b.Client(w.Options(), once)
		rule := w.On(Is("incr"), DropReply).Skip(1)
		if n, err := c.Incr(ctx, "n").Result(); n != 1 || err != nil {
			t.Fatalf("skipped INCR: %d, %v", n, err)
		}
		if err := c.Incr(ctx, "n").Err(); err == nil || isTimeout(err) {
			t.Errorf("INCR whose reply is dropped: %v, want a closed connection", err)
		}
		if got := c.Get(ctx, "n").Val(); got != "2" {
			t.Errorf("n is %s, want 2", got)
		}
		if rule.Hits() != 1 {
			t.Errorf("%d hits, want 1", rule.Hits())
		}
	})
}

func TestDropRequestRunsNothingButWhatCameBefore(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend, w *Wire) {
		ctx := t.Context()
		c := b.Client(w.Options(), once)
		w.On(Is("set").Mentions("second"), DropRequest)
		pipe := c.Pipeline()
		first := pipe.Set(ctx, "first", 1, 0)
		second := pipe.Set(ctx, "second", 1, 0)
		_, err := pipe.Exec(ctx)
		if err == nil || second.Err() == nil {
			t.Errorf("pipeline: %v, second: %v, want errors", err, second.Err())
		}
		if first.Val() != "OK" {
			t.Errorf("first: %v", first)
		}
		if n := c.Exists(ctx, "second").Val(); n != 0 {
			t.Error("the dropped SET has run")
		}
	})
}

func TestSwallowAndLoseRequestLeaveTheClientWaiting(t *testing.T) {
	for fault, want := range map[Fault]string{Swallow: "1", LoseRequest: ""} {
		onBoth(t, func(t *testing.T, b backend, w *Wire) {
			ctx := t.Context()
			c := b.Client(w.Options(), once)
			w.On(Is("incr"), fault)
			if err := c.Incr(ctx, "n").Err(); !isTimeout(err) {
				t.Errorf("fault %d: %v, want a timeout", fault, err)
			}
			if got := c.Get(ctx, "n").Val(); got != want {
				t.Errorf("fault %d: n is %q, want %q", fault, got, want)
			}
		})
	}
}

func TestHeldRequestRunsAfterItsClientIsGone(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend, w *Wire) {
		ctx := t.Context()
		c := b.Client(w.Options(), once)
		plain := b.Client()
		release := make(chan struct{})
		rule := w.On(Is("set"), HoldRequest(release))
		if err := c.Set(ctx, "k", "late", 0).Err(); !isTimeout(err) {
			t.Errorf("held SET: %v, want a timeout", err)
		}
		<-rule.Fired()
		_ = c.Close()
		if n := plain.Exists(ctx, "k").Val(); n != 0 {
			t.Error("a held SET has run")
		}
		close(release)
		eventually(t, "the held SET runs", func() bool { return plain.Get(ctx, "k").Val() == "late" })
		eventually(t, "its connection is gone", func() bool { return w.Conns() == 0 })
	})
}

func TestHeldReplyComesAfterTheServerHasMovedOn(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend, w *Wire) {
		ctx := t.Context()
		c, plain := b.Client(w.Options()), b.Client()
		release := make(chan struct{})
		w.On(Is("incr"), HoldReply(release))
		result := make(chan int64)
		go func() { result <- c.Incr(context.Background(), "n").Val() }()
		eventually(t, "the INCR runs", func() bool { return plain.Get(ctx, "n").Val() == "1" })
		plain.Incr(ctx, "n")
		select {
		case n := <-result:
			t.Errorf("held reply %d came", n)
		default:
		}
		close(release)
		if n := <-result; n != 1 {
			t.Errorf("reply %d, want 1", n)
		}
	})
}

func TestTwiceRunsTwiceAndAnswersOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend, w *Wire) {
		ctx := t.Context()
		c := b.Client(w.Options(), once)
		w.On(Is("incr"), Twice)
		if n := c.Incr(ctx, "n").Val(); n != 1 {
			t.Errorf("first reply %d, want 1", n)
		}
		if n := c.Incr(ctx, "n").Val(); n != 3 {
			t.Errorf("next reply %d, want 3", n)
		}
	})
}

func TestCallsHappenBeforeTheCommandAndBeforeItsReply(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend, w *Wire) {
		ctx := t.Context()
		c, plain := b.Client(w.Options()), b.Client()
		var before, after string
		w.On(Is("set"), All(
			Call(func() { before = plain.Get(context.Background(), "k").Val() }),
			CallReply(func() { after = plain.Get(context.Background(), "k").Val() }),
		))
		if err := c.Set(ctx, "k", "v", 0).Err(); err != nil {
			t.Fatal(err)
		}
		if before != "" || after != "v" {
			t.Errorf("before %q, after %q", before, after)
		}
		w.On(Is("set"), Call(w.Cut))
		once := b.Client(w.Options(), once)
		if err := once.Set(ctx, "k", "cut", 0).Err(); err == nil {
			t.Error("a SET whose connection was cut succeeded")
		}
		if got := plain.Get(ctx, "k").Val(); got != "v" {
			t.Errorf("k is %q: the SET went out after the cut", got)
		}
	})
}

func TestDelaysTakeTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, w := NewVirtual(t), NewWire()
		c := v.Client(w.Options())
		ctx := t.Context()
		if err := c.Ping(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		v.Reset()
		w.On(Is("incr"), All(Delay(time.Second), DelayReply(500*time.Millisecond)))
		start := time.Now()
		if err := c.Incr(ctx, "n").Err(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != 1500*time.Millisecond {
			t.Errorf("took %v, want 1.5s", took)
		}
		if at := v.Commands()[0].Time.Sub(start); at != time.Second {
			t.Errorf("came to the server after %v, want 1s", at)
		}
	})
}

func TestRulesActInTheOrderOfTheirMakingAndAsOftenAsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, w := NewVirtual(t), NewWire()
		c := v.Client(w.Options(), once)
		ctx := t.Context()
		const script = `return redis.call('incr', KEYS[1])`
		first := w.On(Runs(script), DropReply).Times(2)
		second := w.On(Runs(script), DropRequest)
		always := w.On(Any, Call(func() {})).Times(0)
		for range 4 {
			_ = c.Eval(ctx, script, []string{"n"}).Err()
		}
		if got := c.Get(ctx, "n").Val(); got != "3" {
			t.Errorf("n is %s, want 3", got)
		}
		if first.Hits() != 2 || second.Hits() != 1 || always.Hits() < 3 {
			t.Errorf("hits %d, %d, %d", first.Hits(), second.Hits(), always.Hits())
		}
		w.Clear()
		hits := always.Hits()
		if err := c.Ping(ctx).Err(); err != nil || always.Hits() != hits {
			t.Errorf("after Clear: %v, %d more hits", err, always.Hits()-hits)
		}
	})
}

func TestCutAndRefuseTakeTheServerAway(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend, w *Wire) {
		ctx := t.Context()
		c := b.Client(w.Options(), once)
		if err := c.Ping(ctx).Err(); err != nil || w.Conns() != 1 {
			t.Fatalf("%v, %d connections", err, w.Conns())
		}
		w.Cut()
		if n := w.Conns(); n != 0 {
			t.Errorf("%d connections after Cut", n)
		}
		if err := c.Ping(ctx).Err(); err == nil {
			t.Error("PING on a cut connection succeeded")
		}
		w.Refuse(true)
		if err := c.Ping(ctx).Err(); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("refused: %v", err)
		}
		w.Refuse(false)
		if err := c.Ping(ctx).Err(); err != nil {
			t.Errorf("after Refuse(false): %v", err)
		}
		// A cut also frees what is held for ever.
		rule := w.On(Is("set"), HoldRequest(make(chan struct{})))
		done := make(chan error)
		go func() { done <- c.Set(context.Background(), "k", 1, 0).Err() }()
		<-rule.Fired()
		w.Cut()
		if err := <-done; err == nil {
			t.Error("held SET succeeded after Cut")
		}
	})
}
