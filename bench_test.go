package watchlock

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// Benchmarks for benchstat, on a real server over loopback TCP. Compare commits
// with -count 10; internal/bench compares with other clients.

// benchClient is a client of a server of its own, with room for 64 at a time.
func benchClient(b *testing.B, opts ...Option) *Client {
	b.Helper()
	b.ReportAllocs()
	s := redistest.Start(b, redistest.WithTCP())
	return newTestClient(b, s.Client(func(o *redis.Options) { o.PoolSize = 64 }), opts...)
}

// benchPair is one Lock and one Unlock.
func benchPair(b *testing.B, ctx context.Context, m *Mutex) {
	l, err := m.Lock(ctx)
	if err == nil {
		err = l.Unlock(ctx)
	}
	if err != nil {
		b.Error(err)
	}
}

func BenchmarkUncontended(b *testing.B) {
	m := benchClient(b).NewMutex("order:42")
	for b.Loop() {
		benchPair(b, context.Background(), m)
	}
}

// BenchmarkUncontendedCancellable is with a context that can end, as a request's.
func BenchmarkUncontendedCancellable(b *testing.B) {
	m := benchClient(b).NewMutex("order:42")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for b.Loop() {
		benchPair(b, ctx, m)
	}
}

// BenchmarkUncontended64 is 64 goroutines, each with a lock of its own.
func BenchmarkUncontended64(b *testing.B) {
	c := benchClient(b)
	benchShare(b, 64, func(i int) *Mutex { return c.NewMutex(fmt.Sprint("order:", i)) })
}

func BenchmarkContended(b *testing.B) {
	for _, n := range []int{2, 16, 128} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			m := benchClient(b).NewMutex("order:42")
			benchShare(b, n, func(int) *Mutex { return m })
		})
	}
}

// BenchmarkContendedInRedis has every Unlock release in Redis.
func BenchmarkContendedInRedis(b *testing.B) {
	m := benchClient(b, WithLocalHandoff(0)).NewMutex("order:42")
	benchShare(b, 16, func(int) *Mutex { return m })
}

func BenchmarkContendedFenced(b *testing.B) {
	m := benchClient(b).NewFencedMutex("order:42")
	benchShare(b, 16, func(int) *Mutex { return m.m })
}

// benchShare shares b.N pairs out between n goroutines, and reports how much more
// the most served of them got than the least.
func benchShare(b *testing.B, n int, of func(i int) *Mutex) {
	b.Helper()
	served := make([]int, n)
	var left atomic.Int64
	left.Store(int64(b.N))
	b.ResetTimer()
	var all sync.WaitGroup
	for i := range n {
		m := of(i)
		all.Go(func() {
			for left.Add(-1) >= 0 {
				benchPair(b, context.Background(), m)
				served[i]++
			}
		})
	}
	all.Wait()
	b.StopTimer()
	least, most := b.N, 0
	for _, s := range served {
		least, most = min(least, s), max(most, s)
	}
	b.ReportMetric(float64(most)/float64(max(least, 1)), "most/least")
}

func BenchmarkReentry(b *testing.B) {
	m := benchClient(b).NewMutex("order:42")
	outer, err := m.Lock(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = outer.Unlock(context.Background()) }()
	ctx := outer.Context(context.Background())
	for b.Loop() {
		benchPair(b, ctx, m)
	}
}

// BenchmarkRenewalOf1000 is one round of the watchdog over 1,000 held locks, its
// batches one after another.
func BenchmarkRenewalOf1000(b *testing.B) {
	const held = 1000
	c := benchClient(b)
	var bursts []*burst
	for i := range held {
		l := mustLock(b, c.NewMutex(fmt.Sprint("order:", i)))
		defer func() { _ = l.Unlock(context.Background()) }()
		bursts = append(bursts, l.hold.burst)
	}
	for b.Loop() {
		now := c.clock.Now()
		for _, burst := range bursts {
			burst.gate.mu.Lock()
			burst.verifyAt = now
			burst.gate.mu.Unlock()
		}
		renewed := 0
		for _, batch := range wire.InBatches(c.dog.round(bursts, now), renewal.batch) {
			c.dog.renew(batch)
			renewed += len(batch)
		}
		if renewed != held {
			b.Fatalf("%d renewed, want %d", renewed, held)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/held, "ns/lock")
}

// BenchmarkLeaseContext makes contexts of one long hold.
func BenchmarkLeaseContext(b *testing.B) {
	ends, cancel := context.WithCancel(context.Background())
	defer cancel()
	for name, parent := range map[string]func() (context.Context, func()){
		"parent that cannot end":        func() (context.Context, func()) { return context.Background(), func() {} },
		"parent that goes on":           func() (context.Context, func()) { return ends, func() {} },
		"parent that ends soon, in use": func() (context.Context, func()) { return context.WithCancel(ends) },
	} {
		b.Run(name, func(b *testing.B) {
			c := newTestClient(b, redistest.Start(b).Client())
			l := mustLock(b, newTestMutex(c, "bench"))
			b.ReportAllocs()
			for b.Loop() {
				ctx, end := parent()
				if l.Context(ctx).Err() != nil {
					b.Fatal("lost")
				}
				end()
			}
			mustUnlock(b, l)
		})
	}
}
