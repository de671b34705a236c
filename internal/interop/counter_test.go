package interop

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// latchLife is how long the latch of an unlock is kept by a Redisson that does
// not delete it, at most.
const latchLife = 20 * time.Second

// counterFile is a file with the number 0, for sections on either side.
func counterFile(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "counter")
	if err := os.WriteFile(path, []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// countUp is one section: it adds one to the number in the file, unless that is
// until already. Whoever is inside meanwhile makes a count go missing, or reads
// half a number.
func countUp(path string, until int) (counted bool, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	n, err := strconv.Atoi(string(text))
	if err != nil || n >= until {
		return false, err
	}
	return true, os.WriteFile(path, []byte(strconv.Itoa(n+1)), 0o600)
}

// countInGo runs sections on goroutines of the client until the file has
// counted so far. It returns how many each did, when all are done.
func countInGo(ctx context.Context, m *watchlock.Mutex, path string, until, goroutines int) ([]int, error) {
	counts, errs := make([]int, goroutines), make([]error, goroutines)
	var all sync.WaitGroup
	for i := range goroutines {
		all.Go(func() {
			for more := true; more && errs[i] == nil; {
				errs[i] = m.Do(ctx, func(context.Context) (err error) {
					if more, err = countUp(path, until); more {
						counts[i]++
					}
					return err
				})
			}
		})
	}
	all.Wait()
	return counts, errors.Join(errs...)
}

// jvmShares is what the sections of a JVM return.
type jvmShares struct {
	Counts  []int
	Tokens  []int64
	Slowest time.Duration // the longest wait for the lock
}

func sum(counts []int) (n int) {
	for _, count := range counts {
		n += count
	}
	return n
}

// onlyLatches fails the test when anything is left in Redis but the latches
// that Redisson's unlocks leave, which end by themselves.
func onlyLatches(t testing.TB, s *redistest.Server, name string) {
	t.Helper()
	rdb := s.Client()
	keys, err := rdb.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	latches := 0
	for _, key := range keys {
		if !strings.HasPrefix(key, "redisson_unlock_latch:{"+name+"}:") {
			t.Errorf("%q is left in Redis", key)
			continue
		}
		latches++
		// -2 is of one that has ended since.
		if ttl := rdb.PTTL(t.Context(), key).Val(); ttl != -2 && (ttl <= 0 || ttl > latchLife) {
			t.Errorf("the latch %q ends in %v", key, ttl)
		}
	}
	t.Logf("%d latches of Redisson are left", latches)
}

func TestTwoClientsInGoAndAJVMCountUnderOneLockAndShareIt(t *testing.T) {
	const sections, each = 2000, 4
	onEachPeer(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		ctx, cancel := context.WithTimeout(t.Context(), replyWait)
		defer cancel()
		peer := j.open(t, s)
		var locks []*watchlock.Mutex
		var clients []*watchlock.Client
		for range 2 {
			c := newClient(t, s)
			clients, locks = append(clients, c), append(locks, c.NewMutex("order:1"))
		}
		// On a lock of its own, so that no side starts cold.
		warm(t, s, peer, clients[0].NewMutex("warm"))
		value[jvmShares](t, peer.must("sections", "main", "warm", "counter", counterFile(t), "until", 200, "threads", each))
		do(t, s, "FLUSHALL")

		path := counterFile(t)
		starter := mustLock(t, newClient(t, s).NewMutex("order:1"))
		onJVM := peer.start("sections", "main", "order:1", "counter", path, "until", sections, "threads", each)
		inGo := make([][]int, len(locks))
		var all sync.WaitGroup
		for i, m := range locks {
			all.Go(func() {
				var err error
				if inGo[i], err = countInGo(ctx, m, path, sections, each); err != nil {
					t.Errorf("Do: %v", err)
				}
			})
		}
		until(t, "all wait", func() bool { return subscribers(t, s, "order:1") == int64(len(locks)+1) })
		began := time.Now()
		mustUnlock(t, starter)
		all.Wait()
		jvm := value[jvmShares](t, await(t, onJVM))
		took := time.Since(began)

		if text, err := os.ReadFile(path); err != nil || string(text) != strconv.Itoa(sections) {
			t.Errorf("the unprotected counter is %q, %v, want %d", text, err, sections)
		}
		ofJVM, ofGo := sum(jvm.Counts), sum(inGo[0])+sum(inGo[1])
		if ofJVM+ofGo != sections {
			t.Errorf("%d sections on the JVM and %d in Go, want %d in all", ofJVM, ofGo, sections)
		}
		if share := 100 * ofGo / sections; share < 25 || share > 75 {
			t.Errorf("Go has %d %% of the sections, want 25 to 75 %%", share)
		}
		t.Logf("JVM %d %v, Go %d %v %v, in %v; a thread of the JVM waited %v",
			ofJVM, jvm.Counts, ofGo, inGo[0], inGo[1], took.Round(time.Millisecond), jvm.Slowest.Round(time.Millisecond))

		for _, c := range clients {
			if err := c.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
		until(t, "nobody listens any more", func() bool { return subscribers(t, s, "order:1") == 0 })
		onlyLatches(t, s, "order:1")
	})
}
