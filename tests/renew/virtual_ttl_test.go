package renew_test

import (
	"context"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// virtualWatchTTL looks at the key's end at each command that the server has
// run and fails when one made it earlier. The returned func ends it and tells
// how often it looked.
func virtualWatchTTL(t *testing.T, v *redistest.Virtual, key string) (stop func() int) {
	t.Helper()
	quit, looks := make(chan struct{}), make(chan int)
	go func() {
		n, latest := 0, time.Time{}
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			if ttl := v.Mini().TTL(key); ttl > 0 {
				end := time.Now().Add(ttl)
				if end.Before(latest) {
					t.Errorf("a TTL was lowered by %v", latest.Sub(end))
				}
				latest, n = end, n+1
			}
			select {
			case <-tick.C:
			case <-quit:
				looks <- n
				return
			}
		}
	}()
	return func() int { close(quit); return <-looks }
}

func TestVirtualTTLIsNeverLowered(t *testing.T) {
	cases := map[string]func(t *testing.T, v *redistest.Virtual, c *watchlock.Client){
		"by an inner shorter lease": func(t *testing.T, _ *redistest.Virtual, c *watchlock.Client) {
			m := locktest.NewTestMutex(c, "job")
			outer := locktest.MustLock(t, m)
			ctx := outer.Context(context.Background())
			for _, lease := range []time.Duration{10 * time.Millisecond, time.Second, 15 * time.Second} {
				inner, err := m.Lock(ctx, watchlock.WithLeaseTime(lease))
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(lease / 2)
				locktest.MustUnlock(t, inner)
			}
			locktest.MustUnlock(t, outer)
		},
		"by an inner watchdog under a longer explicit lease": func(t *testing.T, v *redistest.Virtual, c *watchlock.Client) {
			m := locktest.NewTestMutex(c, "job")
			outer := locktest.MustLock(t, m, watchlock.WithLeaseTime(2*time.Minute))
			inner, err := m.Lock(outer.Context(context.Background()))
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(65 * time.Second)
			if n := v.CountIf(locktest.Renews()); n == 0 {
				t.Error("nothing was renewed")
			}
			locktest.MustUnlock(t, inner)
			locktest.MustUnlock(t, outer)
		},
		"by renewals before a max hold": func(t *testing.T, _ *redistest.Virtual, c *watchlock.Client) {
			for _, hold := range []time.Duration{30 * time.Second, 31 * time.Second, 45 * time.Second} {
				l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"), watchlock.WithMaxHold(hold))
				<-l.Done()
				time.Sleep(time.Second)
			}
		},
		"of a longer one that somebody set by hand": func(t *testing.T, v *redistest.Virtual, c *watchlock.Client) {
			l := locktest.MustLock(t, locktest.NewTestMutex(c, "job"))
			time.Sleep(5 * time.Second)
			v.Mini().SetTTL("job", time.Hour)
			time.Sleep(time.Minute)
			if ttl := v.Mini().TTL("job"); ttl != 59*time.Minute {
				t.Errorf("TTL is %v after a minute of renewals, want 59m0s", ttl)
			}
			locktest.MustUnlock(t, l)
		},
		"by the look that a message causes": func(t *testing.T, v *redistest.Virtual, c *watchlock.Client) {
			m := locktest.NewTestMutex(c, "job")
			l := locktest.MustLock(t, m, watchlock.WithLeaseTime(20*time.Second))
			behind := make(chan struct{})
			go func() {
				defer close(behind)
				_, _ = m.TryLock(context.Background(), 10*time.Second)
			}()
			time.Sleep(time.Second)
			for range 5 {
				v.Mini().Publish(locktest.ChannelOfTest("job"), "0")
				time.Sleep(time.Second)
			}
			if n := v.CountIf(locktest.Renews()); n != 5 {
				t.Errorf("%d looks at Redis after 5 messages", n)
			}
			if err, ttl := l.Err(), v.Mini().TTL("job"); err != nil || ttl != 14*time.Second {
				t.Errorf("%v, TTL %v, want 14s", err, ttl)
			}
			<-behind
			locktest.MustUnlock(t, l)
		},
	}
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				c := locktest.VirtualClient(t, v)
				stop := virtualWatchTTL(t, v, "job")
				run(t, v, c)
				if stop() < 100 {
					t.Error("the TTL was hardly looked at")
				}
			})
		})
	}
}
