package interop

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestAGrantWhoseReplyNestLostStandsInNobodysWayForLongerThanItsTTL(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		tell(t, "string form: the peer loses the reply", string(s.Family()), nestName)
		const ttl = 1500 * time.Millisecond
		ctx := t.Context()
		wire := redistest.NewWire()
		n := startNestOn(t, relay(t, s, wire), newSection(t))
		m := newStringClient(t, s).NewSetNXMutex("k")
		lost := wire.On(redistest.Is("SET"), redistest.DropReply)
		// ioredis connects anew and sends it again, and then its own key is in the way.
		if _, err := n.lock(m.Name(), ttl); !errors.Is(err, errBusy) || lost.Hits() != 1 {
			t.Errorf("the service's lock: %v, %d replies were lost", err, lost.Hits())
		}
		if _, err := m.TryLock(ctx, 0); !errors.Is(err, watchlock.ErrNotAcquired) {
			t.Errorf("TryLock within the TTL: %v", err)
		}
		end := time.Now().Add(time.Duration(do(t, s, "PTTL", m.Name()).(int64)) * time.Millisecond)
		lease, err := m.Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		late := time.Since(end)
		if late > foreignPoll+slack {
			t.Errorf("entered %v after the key's end", late)
		}
		woke(t, late)
		if err := lease.Unlock(ctx); err != nil {
			t.Errorf("Unlock: %v", err)
		}
	})
}

// relay lets other programs reach the server through the wire, by a socket whose
// path it returns.
func relay(t *testing.T, s *redistest.Server, wire *redistest.Wire) (path string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "relay") // not t.TempDir: a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var dialer net.Dialer
	dial := wire.Dialer(dialer.DialContext)
	var all sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		wire.Cut()
		all.Wait()
		_ = os.RemoveAll(dir)
	})
	all.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := dial(context.Background(), s.Network(), s.Addr())
			if err != nil {
				_ = client.Close()
				continue
			}
			all.Go(func() { join(client, server) })
		}
	})
	return path
}

// join carries what two connections say, until one of them ends.
func join(a, b net.Conn) {
	var all sync.WaitGroup
	for _, pair := range [][2]net.Conn{{a, b}, {b, a}} {
		all.Go(func() {
			_, _ = io.Copy(pair[0], pair[1])
			_, _ = a.Close(), b.Close()
		})
	}
	all.Wait()
}
