package watchlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// slowSink is where log lines go, each after write has returned: as to a pipe whose reader lags.
type slowSink struct{ write func() }

func (s slowSink) Write(p []byte) (int, error) { s.write(); return len(p), nil }

func (s slowSink) Sync() error { return nil }

func slowLogger(write func()) Option {
	encoder := zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig())
	return WithLogger(zap.New(zapcore.NewCore(encoder, slowSink{write}, zap.InfoLevel)))
}

// blockedLogger is one whose lines wait until the test ends.
func blockedLogger(t *testing.T) Option {
	read := make(chan struct{})
	t.Cleanup(func() { close(read) })
	return slowLogger(func() { <-read })
}

// virtualLoseOne takes a lock for a moment, so that its end is logged.
func virtualLoseOne(t *testing.T, c *Client) {
	t.Helper()
	l := mustLock(t, c.NewMutex("lost", WithLeaseTime(20*time.Millisecond)))
	<-l.Done()
	synctest.Wait()
}

// Many leases run out together, and each line about one takes a while. Each holder is told
// before somebody else can be granted its lock.
func TestVirtualASlowLoggerDelaysNobodysNewsOfALoss(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		const locks, lease = 20, 10 * time.Second
		a := newTestClient(t, v.Client(), slowLogger(func() { time.Sleep(100 * time.Millisecond) }))
		b := newTestClient(t, v.Client())
		var all sync.WaitGroup
		for i := range locks {
			name := fmt.Sprint("k", i)
			l := mustLock(t, newTestMutex(a, name, WithLeaseTime(lease)))
			ctx, done := l.Context(context.Background()), l.Done()
			all.Go(func() {
				mustUnlock(t, mustLock(t, newTestMutex(b, name)))
				if !virtualClosed(ctx.Done()) || !virtualClosed(done) {
					t.Errorf("%s: somebody else was in before its holder was told", name)
				}
			})
		}
		all.Wait()
		time.Sleep(time.Minute) // the lines are written
	})
}

// While the logger blocks, as it does with a pipe that nobody reads, everything goes on.
func TestVirtualALogLineThatBlocksHoldsNothingBack(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := newTestClient(t, v.Client(), blockedLogger(t))
		other := newTestClient(t, v.Client())
		job := mustLock(t, newTestMutex(c, "job"))
		ctx := job.Context(context.Background())
		virtualLoseOne(t, c)
		time.Sleep(5 * time.Minute)
		if err := errors.Join(job.Err(), ctx.Err()); err != nil {
			t.Errorf("the renewed lease: %v", err)
		}
		if _, err := newTestMutex(other, "job").TryLock(context.Background(), 0); !errors.Is(err, ErrNotAcquired) {
			t.Errorf("another client: %v", err)
		}
		// A wait behind this very client is worth a line too, and so is a loss that its own call finds.
		got := goLock(func() (*Lease, error) { return newTestMutex(c, "job").Lock(context.Background()) })
		synctest.Wait()
		mustUnlock(t, job)
		<-got.done
		v.Mini().FlushAll()
		if err := got.lease.Unlock(context.Background()); !errors.Is(err, ErrLost) {
			t.Errorf("Unlock of a lost lock: %v", err)
		}
		mustUnlock(t, mustLock(t, newTestMutex(c, "job")))
	})
}

func TestVirtualALogLineThatBlocksDoesNotKeepCloseFromReturning(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c := newTestClient(t, v.Client(), blockedLogger(t))
		virtualLoseOne(t, c)
		start := time.Now()
		if err := c.Close(); err != nil || time.Since(start) != lastWords {
			t.Errorf("Close took %v: %v", time.Since(start), err)
		}
	})
}

func TestVirtualCloseWaitsForLinesThatAreOnTheirWayAndNoneComesAfterIt(t *testing.T) {
	for each, most := range map[time.Duration]int{100 * time.Millisecond: 5, 400 * time.Millisecond: 3} {
		inBubble(t, func(t *testing.T, v *redistest.Virtual) {
			var begun atomic.Int32
			c := newTestClient(t, v.Client(), slowLogger(func() { begun.Add(1); time.Sleep(each) }))
			for range 5 {
				l := mustLock(t, newTestMutex(c, "lost", WithLeaseTime(20*time.Millisecond)))
				<-l.Done()
			}
			time.Sleep(time.Second)
			begun.Store(0)
			for i := range 5 {
				mustLock(t, newTestMutex(c, fmt.Sprint("lost", i), WithLeaseTime(20*time.Millisecond)))
			}
			time.Sleep(20 * time.Millisecond)
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Minute)
			if n := int(begun.Load()); n != most {
				t.Errorf("lines of %v each: %d were begun, want %d", each, n, most)
			}
		})
	}
}

func TestVirtualLinesThatDoNotFitAreCountedAndSaid(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		const more = 100
		core, logs := observer.New(zap.DebugLevel)
		read := make(chan struct{})
		hooked := zap.New(core, zap.Hooks(func(zapcore.Entry) error { <-read; return nil }))
		c := newTestClient(t, v.Client(), WithLogger(hooked))
		for i := range mostLines + more + 1 { // one is being written
			c.teller.say(line{text: fmt.Sprint("line ", i)})
			if i == 0 {
				synctest.Wait()
			}
		}
		close(read)
		synctest.Wait()
		said := logs.FilterMessageSnippet("dropped").All()
		if len(said) != 1 || said[0].ContextMap()["lines"] != int64(more) || logs.Len() != mostLines+2 {
			t.Fatalf("%d lines, of drops %v", logs.Len(), said)
		}
		for i, e := range logs.FilterMessageSnippet("line ").All() {
			if e.Message != fmt.Sprint("line ", i) {
				t.Fatalf("line %d is %q", i, e.Message)
			}
		}
		c.teller.say(line{text: "after it"})
		synctest.Wait()
		if n := logs.FilterMessage("after it").Len(); n != 1 {
			t.Errorf("a line after the drops was written %d times", n)
		}
	})
}

func TestVirtualALineHasTheTimeOfWhatItTells(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		core, logs := observer.New(zap.DebugLevel)
		slow := zap.New(core, zap.AddCaller(), zap.Fields(zap.String("service", "orders")), zap.Hooks(func(zapcore.Entry) error {
			time.Sleep(time.Second)
			return nil
		}))
		c := newTestClient(t, v.Client(), WithLogger(slow))
		start := time.Now()
		for i := range 3 {
			mustLock(t, newTestMutex(c, fmt.Sprint("k", i), WithLeaseTime(10*time.Second)))
		}
		time.Sleep(time.Minute)
		if logs.Len() != 3 {
			t.Fatalf("logged %v", logs.All())
		}
		for _, e := range logs.All() {
			if at := e.Time.Sub(start); at != 10*time.Second-bootclock.Margin(10*time.Second) {
				t.Errorf("a line has the time %v", at)
			}
			if !e.Caller.Defined || !strings.HasPrefix(e.Message, "lease lost") {
				t.Errorf("caller %v, message %q", e.Caller, e.Message)
			}
		}
	})
}

// A name mapper is the caller's too: it runs where a lock is made, and nowhere else.
func TestVirtualTheNameMapperRunsAtNewMutexOnly(t *testing.T) {
	inBubble(t, func(t *testing.T, v *redistest.Virtual) {
		mapped := 0
		c := newTestClient(t, v.Client(), WithNameMapper(func(name string) string { mapped++; return "p:" + name }))
		m := newTestMutex(c, "k")
		for range 3 {
			l := mustLock(t, m)
			got := goLock(func() (*Lease, error) { return m.Lock(context.Background()) })
			time.Sleep(15 * time.Second)
			_, _ = m.Info(context.Background())
			mustUnlock(t, l)
			<-got.done
			if err := m.ForceUnlock(context.Background()); err != nil {
				t.Error(err)
			}
		}
		if mapped != 1 {
			t.Errorf("it ran %d times for one NewMutex", mapped)
		}
	})
}
