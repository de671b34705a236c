package main

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// TestMain fails when a service leaves a goroutine behind.
func TestMain(m *testing.M) {
	logging.Disable() // go-redis's own reports of connections that fail
	log.SetOutput(io.Discard)
	goleak.VerifyTestMain(m)
}

func TestOrderIsDispatchedUnderItsLock(t *testing.T) {
	server := redistest.Start(t)
	s := newService(t, server.Client())
	s.dispatch = func(ctx context.Context, order string) error {
		if info, err := s.client.NewMutex("lock:order:" + order).Info(ctx); err != nil || !info.Mine {
			t.Errorf("under dispatch the lock is %+v, %v", info, err)
		}
		return nil
	}
	if resp := post(t, s, "1001"); resp.code != http.StatusOK || resp.body != "order 1001 is dispatched\n" {
		t.Errorf("got %+v", resp)
	}
	if n := server.Client().DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys are left", n)
	}
}

func TestBusyOrderIsAConflictWithTheTimeThatTheLeaseStillRuns(t *testing.T) {
	_, rdb := startMini(t)
	other := newService(t, rdb).client
	lease, err := other.NewMutex("lock:order:1001").Lock(t.Context(), watchlock.WithLeaseTime(9500*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t, rdb)
	s.dispatch = func(context.Context, string) error {
		t.Error("dispatched without the lock")
		return nil
	}
	asked := time.Now()
	resp := post(t, s, "1001")
	took := time.Since(asked)
	seconds, err := strconv.Atoi(resp.retryAfter)
	if resp.code != http.StatusConflict || err != nil || seconds < 5 || seconds > 10 {
		t.Errorf("got %+v", resp)
	}
	if took < s.wait || took > s.wait+2*time.Second {
		t.Errorf("answered after %v, the wait is %v", took, s.wait)
	}

	if err := lease.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.dispatch = func(context.Context, string) error { return nil }
	if resp := post(t, s, "1001"); resp.code != http.StatusOK {
		t.Errorf("after the unlock: got %+v", resp)
	}
}

func TestRedisThatIsDownIsServiceUnavailable(t *testing.T) {
	mini, rdb := startMini(t)
	s := newService(t, rdb)
	mini.Close()
	if resp := post(t, s, "1001"); resp.code != http.StatusServiceUnavailable || resp.retryAfter == "" {
		t.Errorf("got %+v", resp)
	}
}

func TestRedisThatGoesAwayUnderTheWorkDoesNotUndoIt(t *testing.T) {
	mini, rdb := startMini(t)
	s := newService(t, rdb)
	s.dispatch = func(context.Context, string) error {
		mini.Close()
		return nil
	}
	if resp := post(t, s, "1001"); resp.code != http.StatusOK {
		t.Errorf("got %+v", resp)
	}
}

func TestLostLockIsAnInternalError(t *testing.T) {
	mini, rdb := startMini(t)
	s := newService(t, rdb, watchlock.WithWatchdogTimeout(300*time.Millisecond))
	s.dispatch = func(ctx context.Context, order string) error {
		mini.Del("lock:order:" + order)
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if resp := post(t, s, "1001"); resp.code != http.StatusInternalServerError || resp.retryAfter != "" {
		t.Errorf("got %+v", resp)
	}
}

func TestStatusOfErrorsThatTheServiceCanMeet(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
	}{
		{&watchlock.LockError{Err: watchlock.ErrNotAcquired}, http.StatusConflict},
		{errors.Join(errors.New("half done"), &watchlock.LockError{Err: watchlock.ErrLost}), http.StatusInternalServerError},
		{&watchlock.LockError{Err: watchlock.ErrClosed}, http.StatusServiceUnavailable},
		{errors.New("the logistics API says no"), http.StatusInternalServerError},
	} {
		if code, _ := status(c.err); code != c.code {
			t.Errorf("%v: status %d, want %d", c.err, code, c.code)
		}
	}
}

func TestOrderNumberThatIsNoneIsABadRequest(t *testing.T) {
	_, rdb := startMini(t)
	s := newService(t, rdb)
	for _, id := range []string{"%7B%7D", "abc", "1001%20", "1234567890123456789"} {
		if resp := post(t, s, id); resp.code != http.StatusBadRequest {
			t.Errorf("%q: got %+v", id, resp)
		}
	}
}

// TestRequestInFlightIsAnsweredBeforeTheServiceEnds interrupts the service while
// it works.
func TestRequestInFlightIsAnsweredBeforeTheServiceEnds(t *testing.T) {
	mini, rdb := startMini(t)
	s := newService(t, rdb)
	working, goOn := make(chan struct{}), make(chan struct{})
	s.dispatch = func(ctx context.Context, _ string) error {
		close(working)
		select {
		case <-goOn:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, listener, s.handler(), s.client) }()
	answered := make(chan int, 1)
	go func() {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Post("http://"+listener.Addr().String()+"/orders/1001/dispatch", "", nil)
		if err != nil {
			answered <- 0
			return
		}
		defer resp.Body.Close()
		answered <- resp.StatusCode
	}()

	<-working
	interrupt()
	refusedSoon(t, listener.Addr().String())
	select {
	case err := <-ended:
		t.Fatalf("the service ended over a request in flight: %v", err)
	default:
	}
	close(goOn)
	if code := <-answered; code != http.StatusOK {
		t.Errorf("the request in flight got %d", code)
	}
	if err := <-ended; err != nil {
		t.Errorf("the service ended with %v", err)
	}
	if keys := mini.Keys(); len(keys) != 0 {
		t.Errorf("the service leaves %q", keys)
	}
	if _, err := s.client.NewMutex("lock:order:1001").TryLock(t.Context(), 0); !errors.Is(err, watchlock.ErrClosed) {
		t.Errorf("after the end TryLock says %v, want ErrClosed", err)
	}
}

// refusedSoon waits until nobody listens at addr.
func refusedSoon(t *testing.T, addr string) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); <-time.After(5 * time.Millisecond) {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return
		}
		conn.Close()
	}
	t.Fatal("the service still takes connections")
}

func TestServiceStartsAndEndsByItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ctx, "127.0.0.1:0", ""); err != nil {
		t.Error(err)
	}
	if err := run(t.Context(), "127.0.0.1:0", "redis://127.0.0.1:1"); err == nil {
		t.Error("it starts without its Redis")
	}
	if err := run(t.Context(), "127.0.0.1:none", ""); err == nil {
		t.Error("it starts without its address")
	}
}

type response struct {
	code             int
	body, retryAfter string
}

func post(t *testing.T, s *service, id string) response {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders/"+id+"/dispatch", http.NoBody)
	s.handler().ServeHTTP(w, r)
	return response{w.Code, w.Body.String(), w.Header().Get("Retry-After")}
}

// newService waits for locks no longer than half a second.
func newService(t *testing.T, rdb *redis.Client, opts ...watchlock.Option) *service {
	t.Helper()
	client, err := watchlock.New(rdb, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return &service{client: client, wait: 500 * time.Millisecond}
}

func startMini(t *testing.T) (*miniredis.Miniredis, *redis.Client) {
	t.Helper()
	server := miniredis.RunT(t)
	server.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { rdb.Close() })
	return server, rdb
}
