package wait_test

import (
	"context"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// farClient is a client of a server that is trip away, and the wire.
func farClient(t testing.TB, v *redistest.Virtual, kind string, trip time.Duration) (*watchlock.Client, *redistest.Wire) {
	t.Helper()
	w := redistest.NewWire()
	c := locktest.NewTestClient(t, v.Client(w.Options()))
	locktest.KnowsServer(t, c, kind)
	w.On(locktest.Slowly, redistest.DelayReply(trip)).Times(0)
	return c, w
}

func TestALockWhoseCallerHasLeftIsNotSent(t *testing.T) {
	locktest.EachKindInBubble(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		c, w := farClient(t, v, kind, 200*time.Millisecond)
		first := make(chan *watchlock.Lease, 1)
		go func() { first <- locktest.MustLock(t, locktest.MutexOf(c, kind, "first")) }() // has the lane
		time.Sleep(10 * time.Millisecond)
		gone := make(chan struct{}, 8)
		for i := range 8 {
			go func() {
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
				defer cancel()
				if _, err := locktest.MutexOf(c, kind, "left").Lock(ctx); err == nil {
					t.Errorf("caller %d was granted it", i)
				}
				gone <- struct{}{}
			}()
		}
		for range 8 {
			<-gone
		}
		l := <-first
		time.Sleep(3 * time.Second)
		for _, cmd := range w.Seen() {
			if cmd.Name != "DELEX" && len(cmd.Args) > 0 && redistest.Match(redistest.Any).Mentions("left")(cmd) &&
				!redistest.Runs(wire.ReleaseSource)(cmd) && !redistest.Runs(wire.ReleaseStringSource)(cmd) {
				t.Errorf("sent %v, and nobody waits for it", cmd)
			}
		}
		locktest.MustUnlock(t, l)
	})
}

func TestAGrantThatNobodyWantsGoesBackInTheNextFlight(t *testing.T) {
	locktest.EachKindInBubble(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		const trip = 200 * time.Millisecond
		c, _ := farClient(t, v, kind, trip)
		// Other callers keep the lane busy, and one orphan is being released.
		stop := make(chan struct{})
		busy := make(chan struct{})
		go func() {
			defer close(busy)
			for {
				select {
				case <-stop:
					return
				default:
					locktest.MustUnlock(t, locktest.MustLock(t, locktest.MutexOf(c, kind, "busy")))
				}
			}
		}()
		time.Sleep(50 * time.Millisecond)
		worst := time.Duration(0)
		for i := range 40 {
			// Leaves while its attempt is on the way, at another instant each time.
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(20+i*7%190)*time.Millisecond)
			l, err := locktest.MutexOf(c, kind, "k").Lock(ctx)
			cancel()
			if err == nil {
				locktest.MustUnlock(t, l)
				continue
			}
			left := time.Now()
			for held := time.Duration(0); ; time.Sleep(time.Millisecond) {
				since := time.Since(left)
				if v.Mini().Exists("k") {
					held = since
				}
				if since > 2*time.Second {
					worst = max(worst, held)
					break
				}
			}
		}
		close(stop)
		<-busy
		// It may be taken up to a round trip after the caller has left, and is then
		// on its way back with the answer: one more until the release has run.
		if most := trip + trip/4; worst > most {
			t.Errorf("the key was held by nobody until %v after its caller had left, want at most %v", worst, most)
		}
	})
}
