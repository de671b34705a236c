package wait_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

var errNoWay = errors.New("the vault is sealed")

// noWays are the ways in which a caller's options can fail before anything is written,
// while failing says so.
func noWays(failing *atomic.Bool) map[string]func(o *redis.Options) {
	fail := func() error {
		if failing.Load() {
			return errNoWay
		}
		return nil
	}
	return map[string]func(o *redis.Options){
		"Dialer": func(o *redis.Options) {
			next := o.Dialer
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if err := fail(); err != nil {
					return nil, err
				}
				return next(ctx, network, addr)
			}
		},
		"OnConnect": func(o *redis.Options) {
			o.OnConnect = func(context.Context, *redis.Conn) error { return fail() }
		},
		"CredentialsProviderContext": func(o *redis.Options) {
			o.CredentialsProviderContext = func(context.Context) (string, string, error) { return "", "", fail() }
		},
		"StreamingCredentialsProvider": func(o *redis.Options) {
			o.StreamingCredentialsProvider = failingStream(fail)
		},
	}
}

// failingStream is a provider of streaming credentials.
type failingStream func() error

func (f failingStream) Subscribe(auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	if err := f(); err != nil {
		return nil, nil, err
	}
	return auth.NewBasicCredentials("", ""), func() error { return nil }, nil
}

func TestAnErrorBeforeAnythingWasWrittenGoesToTheCallerAtOnce(t *testing.T) {
	var failing atomic.Bool
	for name, option := range noWays(&failing) {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				failing.Store(true)
				rdb := v.Client(option)
				c := locktest.NewTestClient(t, rdb)
				defer endDials(c, rdb)
				eachKindAtOnce(t, c, func(err error) bool { return errors.Is(err, errNoWay) })
				for _, cmd := range v.Commands() {
					if locktest.IsLockCommand(cmd.Name) {
						t.Errorf("sent %v", cmd)
					}
				}
				failing.Store(false)
				l, err := c.NewMutex("mutex").TryLock(context.Background(), 10*time.Second)
				if err != nil {
					t.Fatalf("when nothing fails any more: %v", err)
				}
				locktest.MustUnlock(t, l)
			})
		})
	}
}

// endDials closes both clients and gives go-redis time to notice: a pool whose dials
// failed often tries again each second.
func endDials(c *watchlock.Client, rdb *redis.Client) {
	_ = c.Close()
	_ = rdb.Close()
	time.Sleep(2 * time.Second)
}

// eachKindAtOnce fails unless each call says at once why there is no connection.
func eachKindAtOnce(t *testing.T, c *watchlock.Client, why func(error) bool) {
	t.Helper()
	eachKindSoon(t, c, func(err error) bool { return watchlock.IsUnavailable(err) && why(err) })
}

// eachKindSoon is eachKindAtOnce for any error.
func eachKindSoon(t *testing.T, c *watchlock.Client, why func(error) bool) {
	t.Helper()
	for _, kind := range []string{"mutex", "fenced", "string"} {
		m := locktest.MutexOf(c, kind, kind)
		start := time.Now()
		check := func(what string, err error) {
			t.Helper()
			if took := time.Since(start); took > 1500*time.Millisecond || !why(err) {
				t.Errorf("%s, %s: %v after %v", kind, what, err, took)
			}
			start = time.Now()
		}
		_, err := m.TryLock(context.Background(), 0)
		check("TryLock(0)", err)
		bounded, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_, err = m.Lock(bounded)
		cancel()
		check("Lock", err)
		_, err = m.TryLock(context.Background(), 5*time.Second)
		check("TryLock", err)
		_, err = m.Info(context.Background())
		check("Info", err)
	}
}

func TestAFailedHandshakeOfTLSGoesToTheCallerAtOnce(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		// What crypto/tls says when the other side speaks no TLS, wrapped as go-redis's dialer leaves it.
		record := errors.New("tls: first record does not look like a TLS handshake")
		rdb := v.Client(func(o *redis.Options) {
			o.Dialer = func(context.Context, string, string) (net.Conn, error) { return nil, record }
		})
		c := locktest.NewTestClient(t, rdb)
		defer endDials(c, rdb)
		eachKindAtOnce(t, c, func(err error) bool { return errors.Is(err, record) })
	})
}

func TestAServerWithoutTLSIsAnErrorAtOnce(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("-ERR this is no TLS\r\n"))
			_ = conn.Close()
		}
	}()
	rdb := redis.NewClient(&redis.Options{
		Addr: l.Addr().String(), DisableIdentity: true, TLSConfig: &tls.Config{InsecureSkipVerify: true},
	})
	defer rdb.Close()
	c := locktest.NewTestClient(t, rdb)
	// It stays so, and is no 503.
	eachKindSoon(t, c, func(err error) bool { return err != nil && !watchlock.IsUnavailable(err) })
}

func TestSentinelsThatAreAllDownAreAnErrorAtOnce(t *testing.T) {
	t.Parallel() // it is time that it takes
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: "m", SentinelAddrs: []string{"127.0.0.1:1", "127.0.0.1:2"}, DisableIdentity: true,
		MaxRetries: -1, // or go-redis tries each several times before it says so
	})
	defer rdb.Close()
	c := locktest.NewTestClient(t, rdb)
	down := func(err error) bool { return err != nil && strings.Contains(err.Error(), "sentinels") }
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := c.NewMutex("first").Lock(ctx); !watchlock.IsUnavailable(err) || !down(err) || ctx.Err() != nil {
		t.Fatalf("Lock: %v", err)
	}
	eachKindAtOnce(t, c, func(err error) bool { return err != nil }) // some ask for less time than go-redis does
}

func TestAWaiterThatWasAnsweredRidesOutErrorsBeforeAnythingWasWritten(t *testing.T) {
	var failing atomic.Bool
	for name, option := range noWays(&failing) {
		t.Run(name, func(t *testing.T) {
			locktest.EachKindInBubble(t, func(t *testing.T, v *redistest.Virtual, kind string) {
				failing.Store(false)
				w := redistest.NewWire()
				rdb := v.Client(w.Options(), option)
				c := locktest.NewTestClient(t, rdb)
				defer endDials(c, rdb)
				locktest.KnowsServer(t, c, kind)
				locktest.StrangersKey(v, kind, "k")
				got := make(chan error, 1)
				go func() {
					l, err := locktest.MutexOf(c, kind, "k").TryLock(context.Background(), time.Minute)
					if err == nil {
						err = l.Unlock(context.Background())
					}
					got <- err
				}()
				time.Sleep(2 * time.Second)
				failing.Store(true)
				w.Cut()
				time.Sleep(10 * time.Second)
				synctest.Wait()
				if len(got) > 0 {
					t.Fatalf("it gave up: %v", <-got)
				}
				failing.Store(false)
				v.Mini().Del("k")
				if err := <-got; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Renewals open connections of their own: what fails there is a failed attempt as well.
func TestErrorsBeforeAnythingWasWrittenLoseNoLeaseWhileItIsTrusted(t *testing.T) {
	var failing atomic.Bool
	for name, option := range noWays(&failing) {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				failing.Store(false)
				w := redistest.NewWire()
				rdb := v.Client(w.Options(), option)
				c := locktest.NewTestClient(t, rdb)
				defer endDials(c, rdb)
				l := locktest.MustLock(t, c.NewMutex("k"))
				failing.Store(true)
				w.Cut()
				time.Sleep(25 * time.Second)
				if err := l.Err(); err != nil {
					t.Errorf("with trust left: %v", err)
				}
				failing.Store(false)
				time.Sleep(10 * time.Second)
				if err := l.Err(); err != nil {
					t.Errorf("renewed again: %v", err)
				}
				locktest.MustUnlock(t, l)
			})
		})
	}
}
