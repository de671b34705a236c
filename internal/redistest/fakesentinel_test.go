package redistest

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestFakeSentinelMovesClientsByMessageAndByAnswer(t *testing.T) {
	a, b := Start(t, WithTCP()), Start(t, WithTCP())
	mark(t, a, "a")
	mark(t, b, "b")
	f := NewFakeSentinel(t, a.Addr())
	for name, rdb := range map[string]redis.UniversalClient{"plain": f.Client(briefly), "cluster type": f.ClusterTypeClient(briefly)} {
		reads := func(want string) {
			t.Helper()
			eventually(t, name+" reads of "+want, func() bool {
				got, err := rdb.Get(context.Background(), "who").Result()
				return err == nil && got == want
			})
		}
		f.SetPrimary(a.Addr())
		reads("a")
		eventually(t, name+" listens", func() bool { return f.Listeners() > 0 })
		f.SetPrimary(b.Addr())
		reads("b")
	}

	// A connection to the first stays in use when the message is lost; a new one goes where the answer says.
	f.SetPrimary(a.Addr())
	fresh := f.Client(briefly)
	asked := f.Asked()
	f.Name(b.Addr())
	if got, err := fresh.Get(context.Background(), "who").Result(); err != nil || got != "b" || f.Asked() == asked {
		t.Errorf("a new client reads of %q, %v, after %d questions", got, err, f.Asked()-asked)
	}
}

// mark makes a server say who it is.
func mark(t *testing.T, s *Server, name string) {
	t.Helper()
	if _, err := s.Do("SET", "who", name); err != nil {
		t.Fatal(err)
	}
}

func TestFrozenFakeSentinelAcceptsAndDoesNotAnswer(t *testing.T) {
	NoLeaks(t)
	s := Start(t, WithTCP())
	f := NewFakeSentinel(t, s.Addr())
	f.Freeze()
	f.Freeze()
	impatient := func(o *redis.FailoverOptions) {
		o.MaxRetries, o.DialerRetries, o.ReadTimeout, o.DialTimeout = -1, 1, 50*time.Millisecond, 50*time.Millisecond
	}
	err := f.Client(impatient).Ping(t.Context()).Err()
	var failure net.Error
	if !errors.As(err, &failure) || !failure.Timeout() {
		t.Errorf("with a frozen sentinel: %v", err)
	}
	if f.Asked() != 0 {
		t.Error("it answered")
	}
	answered := make(chan error)
	go func() { answered <- f.Client(briefly).Ping(context.Background()).Err() }()
	eventually(t, "a second client is connected", func() bool { return f.Conns() > 0 })
	f.Thaw()
	f.Thaw()
	if err := <-answered; err != nil {
		t.Error(err)
	}
	f.Close()
	f.Close()
	if err := f.Client(impatient).Ping(t.Context()).Err(); err == nil {
		t.Error("a closed one answers")
	}
}
