package wait_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// authority signs certificates that only who trusts it accepts.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) authority {
	t.Helper()
	a := authority{}
	made := a.issue(t, "authority", func(c *x509.Certificate) {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
	})
	a.cert, a.key = made.Leaf, made.PrivateKey.(*ecdsa.PrivateKey)
	return a
}

// issue makes a certificate for a host, by itself if there is no authority yet.
func (a authority) issue(t testing.TB, host string, change ...func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	for _, f := range change {
		f(c)
	}
	parent, signer := c, key
	if a.key != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func (a authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// doorman stands before a server and speaks TLS, as told for each new connection; without
// a configuration it answers as one who does not know TLS.
type doorman struct {
	addr   string
	config atomic.Pointer[tls.Config]

	mu    sync.Mutex
	conns map[net.Conn]struct{} // guarded by mu
}

func newDoorman(t testing.TB, s *redistest.Server) *doorman {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &doorman{addr: l.Addr().String(), conns: map[net.Conn]struct{}{}}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { d.serve(conn, s) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		d.cut()
		all.Wait()
	})
	return d
}

func (d *doorman) serve(conn net.Conn, s *redistest.Server) {
	d.mu.Lock()
	d.conns[conn] = struct{}{}
	d.mu.Unlock()
	defer conn.Close()
	config := d.config.Load()
	if config == nil {
		_, _ = conn.Write([]byte("-ERR Protocol error: unauthenticated multibulk length\r\n"))
		_, _ = io.Copy(io.Discard, conn)
		return
	}
	secure := tls.Server(conn, config)
	if err := secure.Handshake(); err != nil {
		_, _ = io.Copy(io.Discard, conn) // a reset could overtake the alert
		return
	}
	server, err := net.Dial(s.Network(), s.Addr())
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, secure)
		_ = server.Close()
	}()
	_, _ = io.Copy(secure, server)
}

// cut ends all connections there are.
func (d *doorman) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for conn := range d.conns {
		_ = conn.Close()
	}
	clear(d.conns)
}

// tlsFaults are ways in which the two sides do not agree, by what a doorman says who is
// trusted otherwise.
func tlsFaults(t *testing.T, trusted authority) map[string]*tls.Config {
	good := trusted.issue(t, "redis.test")
	guests := func(version uint16) *tls.Config {
		return &tls.Config{
			Certificates: []tls.Certificate{good}, ClientAuth: tls.RequireAndVerifyClientCert,
			ClientCAs: trusted.pool(), MaxVersion: version,
		}
	}
	return map[string]*tls.Config{
		"an unknown authority": {Certificates: []tls.Certificate{newAuthority(t).issue(t, "redis.test")}},
		"another host's name":  {Certificates: []tls.Certificate{trusted.issue(t, "other.test")}},
		"it has expired": {Certificates: []tls.Certificate{trusted.issue(t, "redis.test", func(c *x509.Certificate) {
			c.NotAfter = time.Now().Add(-time.Minute)
		})}},
		"it wants the client's, in TLS 1.2": guests(tls.VersionTLS12),
		"it wants the client's, in TLS 1.3": guests(tls.VersionTLS13),
		"it speaks no TLS":                  nil,
	}
}

// wantBarred fails unless err is one that no waiting mends, and came soon.
func wantBarred(t *testing.T, what string, err error, took time.Duration) {
	t.Helper()
	if err == nil || watchlock.IsUnavailable(err) || errors.Is(err, watchlock.ErrLost) || errors.Is(err, watchlock.ErrNotAcquired) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%s: %v", what, err)
	}
	if took > 5*time.Second {
		t.Errorf("%s took %v: %v", what, took, err)
	}
}

// TestACertificateThatIsRefusedEndsEveryCallAtOnce is about the first connection, and about
// one in the midst of an outage that is ridden out.
func TestACertificateThatIsRefusedEndsEveryCallAtOnce(t *testing.T) {
	trusted := newAuthority(t)
	good := &tls.Config{Certificates: []tls.Certificate{trusted.issue(t, "redis.test")}}
	for name, bad := range tlsFaults(t, trusted) {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // go-redis pauses between dials
			s := redistest.Start(t)
			door := newDoorman(t, s)
			rdb := redis.NewClient(&redis.Options{
				Addr: door.addr, TLSConfig: &tls.Config{RootCAs: trusted.pool(), ServerName: "redis.test"},
			})
			defer rdb.Close()
			c := locktest.NewTestClient(t, rdb)
			m := c.NewMutex("k")
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			start := time.Now()
			door.config.Store(bad)
			_, err := m.Lock(ctx)
			wantBarred(t, "Lock", err, time.Since(start))
			start = time.Now()
			_, err = m.TryLock(ctx, time.Hour)
			wantBarred(t, "TryLock", err, time.Since(start))
			start = time.Now()
			_, err = m.Info(ctx)
			wantBarred(t, "Info", err, time.Since(start))

			door.config.Store(good)
			l := locktest.MustLock(t, c.NewMutex("mine"))
			locktest.MustDo(t, s, "HSET", "k", "stranger:1", "1")
			waiter := locktest.GoLock(func() (*watchlock.Lease, error) { return m.Lock(ctx) })
			locktest.Eventually(t, 5*time.Second, "it waits", func() bool {
				return locktest.MustDo(t, s, "PUBSUB", "NUMSUB", channelOfHash("k")).([]any)[1] == int64(1)
			})
			door.config.Store(bad)
			door.cut()
			start = time.Now()
			waiter.Wait(t)
			wantBarred(t, "a wait", waiter.Err, time.Since(start))
			start = time.Now()
			wantBarred(t, "Unlock", l.Unlock(ctx), time.Since(start))
			// It goes on in the background, until somebody has mended it.
			door.config.Store(good)
			locktest.Eventually(t, 10*time.Second, "it is released", func() bool { return locktest.MustDo(t, s, "EXISTS", "mine") == int64(0) })
			locktest.MustDo(t, s, "DEL", "k")
		})
	}
}

// channelOfHash is where releases of a lock that is a hash are published.
func channelOfHash(name string) string { return "redisson_lock__channel:{" + name + "}" }
