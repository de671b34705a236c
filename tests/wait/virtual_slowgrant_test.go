package wait_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestVirtualGrantThatComesTooLateIsGivenBackAndTriedAgain(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, w := locktest.VirtualWired(t, v)
		m := locktest.NewTestMutex(c, "job", watchlock.WithLeaseTime(time.Second))
		for _, late := range []int{1, 2} {
			slow := w.On(locktest.Acquires(), redistest.DelayReply(600*time.Millisecond)).Times(late)
			v.Reset()
			start := time.Now()
			l := locktest.MustLock(t, m)
			if slow.Hits() != late {
				t.Fatalf("%d slow grants, want %d", slow.Hits(), late)
			}
			if left := time.Until(l.ExpiresAt()); left < 500*time.Millisecond {
				t.Errorf("returned with %v of 1 s left", left)
			}
			if at, want := time.Since(start), time.Duration(late)*600*time.Millisecond; at < want || at > want+20*time.Millisecond {
				t.Errorf("%d slow grants: returned after %v, want %v", late, at, want)
			}
			locktest.MustUnlock(t, l)
			synctest.Wait()
			if v.Mini().Exists("job") {
				t.Error("a key is there after Unlock")
			}
		}
	})
}

func TestVirtualGrantsThatAreAlwaysTooLateAreAnErrorThatNamesTheRoundTrip(t *testing.T) {
	for name, c := range map[string]struct {
		wait   time.Duration
		trip   time.Duration
		grants int
	}{
		"Lock":                          {locktest.Unbounded, 600 * time.Millisecond, 3},
		"TryLock":                       {time.Minute, 600 * time.Millisecond, 3},
		"one attempt":                   {0, 600 * time.Millisecond, 1},
		"a negative wait":               {-1, 600 * time.Millisecond, 1},
		"replies after the key's end":   {time.Minute, 990 * time.Millisecond, 3},
		"reply after it to one attempt": {0, 990 * time.Millisecond, 1},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				client, w := locktest.VirtualWired(t, v)
				if l, err := locktest.NewTestMutex(client, "warm").TryLock(context.Background(), 0); err == nil {
					locktest.MustUnlock(t, l)
				}
				lease := time.Second
				if c.trip > 900*time.Millisecond {
					lease = 900 * time.Millisecond
				}
				slow := w.On(locktest.Acquires(), redistest.DelayReply(c.trip)).Times(0)
				start := time.Now()
				var l *watchlock.Lease
				var err error
				m := locktest.NewTestMutex(client, "job", watchlock.WithLeaseTime(lease))
				if c.wait == locktest.Unbounded {
					l, err = m.Lock(context.Background())
				} else {
					l, err = m.TryLock(context.Background(), c.wait)
				}
				if l != nil || err == nil || !strings.Contains(err.Error(), c.trip.String()) || !watchlock.IsUnavailable(err) {
					t.Errorf("lease %v, error %v, want one that names %v", l, err, c.trip)
				}
				locktest.VirtualWantErr(t, "error", err, nil, watchlock.ErrNotAcquired, watchlock.ErrLost)
				if slow.Hits() != c.grants {
					t.Errorf("%d attempts, want %d", slow.Hits(), c.grants)
				}
				if took := time.Since(start); took != time.Duration(c.grants)*c.trip {
					t.Errorf("returned after %v", took)
				}
				synctest.Wait()
				if v.Mini().Exists("job") {
					t.Error("the grant was not given back")
				}
				if held := client.Held(); len(held) != 0 {
					t.Errorf("Held lists %v", held)
				}
			})
		})
	}
}

// The reply says "granted", and comes when somebody else holds the lock already.
func TestVirtualGrantWhoseReplyComesAfterItsEndIsNeverAcquired(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
		c, w := locktest.VirtualWired(t, v)
		other := locktest.NewTestClient(t, v.Client())
		w.On(locktest.Acquires(), redistest.DelayReply(900*time.Millisecond))
		rival := make(chan *watchlock.Lease, 1)
		time.AfterFunc(time.Millisecond, func() {
			l, err := locktest.NewTestMutex(other, "job").Lock(context.Background())
			if err != nil {
				t.Errorf("the rival: %v", err)
			}
			rival <- l
		})
		l, err := locktest.NewTestMutex(c, "job").TryLock(context.Background(), 3*time.Second, watchlock.WithLeaseTime(500*time.Millisecond))
		if l != nil {
			t.Error("acquired, though the key had run out and another has it")
		}
		locktest.VirtualWantErr(t, "TryLock", err, []error{watchlock.ErrNotAcquired})
		synctest.Wait()
		holder := <-rival
		if err := holder.Err(); err != nil {
			t.Errorf("the rival: %v", err)
		}
		locktest.MustUnlock(t, holder)
	})
}
