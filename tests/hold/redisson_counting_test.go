package hold_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
)

// countTogether has every mutex take turns in one section at the same time, and
// fails unless they count exactly and none meets another inside.
func countTogether(t *testing.T, mutexes []*watchlock.Mutex, turns int, hold func() time.Duration) {
	t.Helper()
	var c locktest.Counter
	var wg sync.WaitGroup
	start := make(chan struct{})
	for _, m := range mutexes {
		wg.Go(func() {
			<-start
			for range turns {
				err := m.Do(context.Background(), func(context.Context) error {
					c.Section(hold())
					return nil
				})
				if err != nil {
					t.Errorf("do: %v", err)
					return
				}
			}
		})
	}
	close(start)
	wg.Wait()
	c.Check(t, len(mutexes)*turns)
}

func upTo(d time.Duration) func() time.Duration {
	return func() time.Duration { return rand.N(d) }
}

// mutexesOf makes n clients and a handle of the same lock in each.
func mutexesOf(s *locktest.Scene, n int, name string) []*watchlock.Mutex {
	var list []*watchlock.Mutex
	for range n {
		rdb := s.Rdb(func(o *redis.Options) { o.PoolSize = 2 })
		list = append(list, locktest.NewTestMutex(s.ClientOn(rdb), name))
	}
	return list
}

func TestRL23_GoroutinesOfOneClientCountExactly(t *testing.T) {
	s, _ := locktest.RealScene(t)
	c := s.Client()
	var list []*watchlock.Mutex
	for range 15 {
		list = append(list, locktest.NewTestMutex(c, "counter"))
	}
	countTogether(t, list, 1, upTo(5*time.Millisecond))
	countTogether(t, list, locktest.FullCount(400), upTo(time.Millisecond))
	s.End()
}

func TestRL24_ManyTurnsOfManyClientsCountExactly(t *testing.T) {
	s, _ := locktest.RealScene(t)
	countTogether(t, mutexesOf(s, 16, "counter"), 100, upTo(time.Millisecond))
	s.HandsOver("counter")
	s.End()
}

func TestRL25_AHundredClientsCountExactly(t *testing.T) {
	s, _ := locktest.RealScene(t)
	countTogether(t, mutexesOf(s, 100, "counter"), 1, upTo(time.Millisecond))
	s.End()
}
