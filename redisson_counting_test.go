package watchlock

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// countTogether has every mutex take turns in one section at the same time, and
// fails unless they count exactly and none meets another inside.
func countTogether(t *testing.T, mutexes []*Mutex, turns int, hold func() time.Duration) {
	t.Helper()
	var c counter
	var wg sync.WaitGroup
	start := make(chan struct{})
	for _, m := range mutexes {
		wg.Go(func() {
			<-start
			for range turns {
				err := m.Do(context.Background(), func(context.Context) error {
					c.section(hold())
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
	c.check(t, len(mutexes)*turns)
}

func upTo(d time.Duration) func() time.Duration {
	return func() time.Duration { return rand.N(d) }
}

// mutexesOf makes n clients and a handle of the same lock in each.
func mutexesOf(s *scene, n int, name string) []*Mutex {
	var list []*Mutex
	for range n {
		rdb := s.rdb(func(o *redis.Options) { o.PoolSize = 2 })
		list = append(list, newTestMutex(s.clientOn(rdb), name))
	}
	return list
}

func TestRL23_GoroutinesOfOneClientCountExactly(t *testing.T) {
	s, _ := realScene(t)
	c := s.client()
	var list []*Mutex
	for range 15 {
		list = append(list, newTestMutex(c, "counter"))
	}
	countTogether(t, list, 1, upTo(5*time.Millisecond))
	countTogether(t, list, fullCount(400), upTo(time.Millisecond))
	s.end()
}

func TestRL24_ManyTurnsOfManyClientsCountExactly(t *testing.T) {
	s, _ := realScene(t)
	countTogether(t, mutexesOf(s, 16, "counter"), 100, upTo(time.Millisecond))
	s.handsOver("counter")
	s.end()
}

func TestRL25_AHundredClientsCountExactly(t *testing.T) {
	s, _ := realScene(t)
	countTogether(t, mutexesOf(s, 100, "counter"), 1, upTo(time.Millisecond))
	s.end()
}
