package renew_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

const toldBy = 1500 * time.Millisecond // of a loss, from when Redis can be asked again

// wantToldSoon fails unless each lease ends within toldBy, as lost.
func wantToldSoon(t *testing.T, leases map[string]*watchlock.Lease, from time.Time) {
	t.Helper()
	for what, l := range leases {
		select {
		case <-l.Done():
			if err := l.Err(); !errors.Is(err, watchlock.ErrLost) {
				t.Errorf("%s: ended with %v", what, err)
			}
		case <-time.After(time.Until(from.Add(toldBy))):
			t.Errorf("%s: not told %v after the server was back", what, time.Since(from).Round(time.Millisecond))
		}
	}
}

// holdAll takes a renewed lock and one with a lease time, of each kind.
func holdAll(t *testing.T, c *watchlock.Client) map[string]*watchlock.Lease {
	t.Helper()
	leases := map[string]*watchlock.Lease{}
	for _, kind := range []string{"mutex", "fenced", "string"} {
		leases[kind+", renewed"] = locktest.MustLock(t, locktest.MutexOf(c, kind, "{k}"+kind))
		leases[kind+", with a lease time"] = locktest.MustLock(t, locktest.MutexOf(c, kind, "{k}t"+kind), watchlock.WithLeaseTime(time.Minute))
	}
	return leases
}

// askAlways has the client's commands answered until stop is closed.
func askAlways(c *watchlock.Client, stop <-chan struct{}) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(3 * time.Millisecond):
				_, _ = c.NewMutex("{k}other").Info(context.Background())
			}
		}
	}()
	return done
}

func TestAHolderIsToldSoonThatTheServerCameBackEmpty(t *testing.T) {
	for name, busy := range map[string]bool{"nobody asks anything": false, "other commands are answered": true} {
		t.Run(name, func(t *testing.T) {
			redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
				c := locktest.NewTestClient(t, s.Client())
				leases := holdAll(t, c)
				<-time.After(500 * time.Millisecond)
				if busy {
					stop := make(chan struct{})
					done := askAlways(c, stop)
					defer func() { close(stop); <-done }()
				}
				s.Kill()
				s.Restart()
				wantToldSoon(t, leases, time.Now())
			})
		})
	}
}

// A restart that no command meets: between two of them the connection ends, and
// go-redis dials anew without an error.
func TestAHolderIsToldSoonThatTheServerLostItsDataWithTheConnections(t *testing.T) {
	s := redistest.Start(t)
	c := locktest.NewTestClient(t, s.Client())
	leases := holdAll(t, c)
	<-time.After(500 * time.Millisecond)
	locktest.MustDo(t, s, "FLUSHALL")
	locktest.MustDo(t, s, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	locktest.MustDo(t, s, "CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes")
	wantToldSoon(t, leases, time.Now())
}

func TestAHolderIsToldSoonThatANodeCameBackEmpty(t *testing.T) {
	t.Parallel() // it is time that it takes
	s, rdb := locktest.StartCluster(t)
	c := locktest.NewTestClient(t, rdb)
	leases := holdAll(t, c)
	<-time.After(500 * time.Millisecond)
	s.Kill()
	s.Restart()
	locktest.Eventually(t, 10*time.Second, "the node serves its slots again", func() bool {
		_, err := s.Do("SET", "up", "1")
		return err == nil
	})
	wantToldSoon(t, leases, time.Now())
}

func TestConnectionsThatFlapVerifyWhatIsHeldOnceASecond(t *testing.T) {
	locktest.EachKindInBubble(t, func(t *testing.T, v *redistest.Virtual, kind string) {
		w := redistest.NewWire()
		c := locktest.NewTestClient(t, v.Client(w.Options()))
		locktest.KnowsServer(t, c, kind)
		l := locktest.MustLock(t, locktest.MutexOf(c, kind, "k"))
		time.Sleep(2 * time.Second)
		v.Reset()
		for i := range 100 {
			w.Cut()
			time.Sleep(50 * time.Millisecond)
			_, _ = locktest.MutexOf(c, kind, "other").Info(context.Background())
			time.Sleep(time.Duration(29+7*(i%7)) * time.Millisecond) // 50 in the mean, in step with nothing
		}
		asked := v.CountIf(redistest.Runs(wire.RenewSource)) + v.CountIf(redistest.Runs(wire.RenewStringSource))
		if asked > 15 { // 10 s, its ends, and a renewal that is due
			t.Errorf("asked %d times in 10 s about what is held", asked)
		}
		if asked < 5 {
			t.Errorf("asked %d times in 10 s, each of which the connections broke", asked)
		}
		locktest.MustUnlock(t, l)
	})
}

// A connection that was opened for more commands at once is no sign of anything.
func TestANewConnectionOfAPoolVerifiesNothing(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		locktest.LoadAllScripts(t, v)
		w := redistest.NewWire()
		c := locktest.NewTestClient(t, v.Client(w.Options(), func(o *redis.Options) { o.ConnMaxLifetime = time.Second }))
		l := locktest.MustLock(t, c.NewMutex("k"))
		time.Sleep(2 * time.Second)
		v.Reset()
		conns := v.Conns()
		w.On(redistest.Match(redistest.Any).Mentions("slow"), redistest.DelayReply(300*time.Millisecond)).Times(0)
		for range 5 {
			for range 3 {
				go func() { _, _ = c.NewMutex("slow").Info(context.Background()) }()
				time.Sleep(70 * time.Millisecond)
			}
			time.Sleep(500 * time.Millisecond)
		}
		if v.Conns() == conns {
			t.Error("no connection was opened")
		}
		if n := v.CountIf(redistest.Runs(wire.RenewSource)); n != 0 {
			t.Errorf("asked %d times about what is held", n)
		}
		locktest.MustUnlock(t, l)
	})
}
