package interop

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// garbage is what a stranger may publish on the channel of a lock. None of it is
// a "0" or a "00".
func garbage() map[string]string {
	return map[string]string{
		"text":             "hello",
		"JSON":             `{"released":true}`,
		"nothing":          "",
		"another number":   "1",
		"a negative zero":  "-0",
		"three zeros":      "000",
		"a space before":   " 0",
		"a line end after": "0\r\n",
		"a zero byte":      "\x00",
		"no UTF-8":         "\xff\xfe0",
		"a RESP message":   "*3\r\n$7\r\nmessage\r\n",
		"a page":           strings.Repeat("0", 4096),
		"a MiB":            strings.Repeat("\x00\xff", 1<<19),
	}
}

// publish sends payload on the channel of the lock, to its one listener.
func publish(t testing.TB, rdb *redis.Client, name, payload string) {
	t.Helper()
	if heard, err := rdb.Publish(t.Context(), channelOf(name), payload).Result(); heard != 1 || err != nil {
		t.Errorf("%d connections heard it, %v, want 1", heard, err)
	}
}

// listeners are the ids of the connections that listen to messages. They stay
// the same unless one was lost.
func listeners(t testing.TB, rdb *redis.Client) (ids []string) {
	t.Helper()
	list, err := rdb.Do(t.Context(), "CLIENT", "LIST", "TYPE", "PUBSUB").Text()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(list) {
		id, _, _ := strings.Cut(line, " ")
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func TestGarbageOnTheChannelIsNoReleaseAndDelaysNone(t *testing.T) {
	onEachPeer(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		rdb := s.Client()
		c, peer := newClient(t, s), j.open(t, s)
		warm(t, s, peer, c.NewMutex("warm"))
		m := c.NewMutex("order:1")
		var before []string
		for what, payload := range garbage() {
			peer.must("lock", "main", "order:1")
			entered := asleep(t, s, "order:1", 1, func() <-chan entry { return startLock(t, m) })
			if before == nil {
				before = listeners(t, rdb)
			}
			publish(t, rdb, "order:1", payload)
			mustStillWait(t, entered, "Go")
			released := time.Now()
			peer.must("unlock", "main", "order:1")
			e := mustEnter(t, entered)
			soon(t, "Go", e.at.Sub(released))
			mustUnlock(t, e.lease)
			if t.Failed() {
				t.Fatalf("what was published is %s", what)
			}
		}
		if after := listeners(t, rdb); !slices.Equal(after, before) {
			t.Errorf("the connections that listen were %v, are %v", before, after)
		}
	})
}

// flood publishes garbage on the channel of the lock at a rate for each second,
// and a MiB ten times in each. The returned stop ends it and returns how many
// messages were sent.
func flood(t testing.TB, s *redistest.Server, name string, rate int) (stop func() int) {
	rdb, ctx := s.Client(), t.Context()
	var small []string
	for _, payload := range garbage() {
		if len(payload) < 1<<10 {
			small = append(small, payload)
		}
	}
	big := garbage()["a MiB"]
	quit, done := make(chan struct{}), make(chan int)
	go func() {
		began, sent := time.Now(), 0
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				done <- sent
				return
			case <-tick.C:
			}
			due := int(time.Since(began).Seconds() * float64(rate))
			_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
				for ; sent < due; sent++ {
					payload := small[sent%len(small)]
					if sent%(rate/10) == 0 {
						payload = big
					}
					p.Publish(ctx, channelOf(name), payload)
				}
				return nil
			})
			if err != nil {
				t.Errorf("PUBLISH: %v", err)
			}
		}
	}()
	return func() int {
		close(quit)
		return <-done
	}
}

// The two versions of Redisson hold a lock each at once, on a server of its own.
func TestAFloodOfGarbageCausesTwentyTriesASecondAtMostAndNoError(t *testing.T) {
	const (
		rate     = 10_000
		lasts    = 5 * time.Second
		mostRate = 20 // tries of a client in a second
	)
	conversation := t.Name()
	flooded := func(t *testing.T, s *redistest.Server, j *jvm) {
		rdb := s.Client()
		c, peer := newClient(t, s), j.open(t, s)
		warm(t, s, peer, c.NewMutex("warm"))
		m := c.NewMutex("order:1")
		// A lease with an end, so that all scripts are Go's tries.
		peer.must("lock", "main", "order:1", "lease", time.Minute.Milliseconds())
		entered := asleep(t, s, "order:1", 1, func() <-chan entry { return startLock(t, m) })
		behind := startLock(t, m)
		before := listeners(t, rdb)

		tries, began := s.CommandCalls()["evalsha"], time.Now()
		stop := flood(t, s, "order:1", rate)
		select {
		case e := <-entered:
			t.Errorf("Lock ended in the flood: %v", e.err)
		case <-time.After(lasts):
		}
		tries, took := s.CommandCalls()["evalsha"]-tries, time.Since(began)
		if n := subscribers(t, s, "order:1"); n != 1 {
			t.Errorf("%d connections listen, want 1", n)
		}
		released := time.Now()
		unlocked := peer.must("unlock", "main", "order:1")
		e := mustEnter(t, entered)
		soon(t, "Go", e.at.Sub(released))
		sent := stop()
		t.Logf("Go entered %v after the release, which took the JVM %v and ended after %v",
			e.at.Sub(released), unlocked.took(), unlocked.ended().Sub(released))

		// One may be of the last poll before.
		if most := int(mostRate*took.Seconds()) + 1; tries > most {
			t.Errorf("%d tries in %v, want at most %d", tries, took, most)
		}
		if per := float64(sent) / took.Seconds(); per < 0.9*rate {
			t.Errorf("only %.0f messages were sent in a second, want %d", per, rate)
		}
		t.Logf("%d messages, %d tries in %v", sent, tries, took.Round(time.Millisecond))
		if after := listeners(t, rdb); !slices.Equal(after, before) {
			t.Errorf("the connections that listen were %v, are %v", before, after)
		}
		if err := e.lease.Err(); err != nil {
			t.Errorf("Err of the lease that was got in the flood: %v", err)
		}
		mustUnlock(t, e.lease)
		mustUnlock(t, mustEnter(t, behind).lease)
	}
	for _, family := range redistest.Families() {
		t.Run(string(family), func(t *testing.T) {
			for _, version := range redissons() {
				t.Run("redisson-"+version, func(t *testing.T) {
					t.Parallel()
					tell(t, conversation, string(family), "Redisson "+version)
					j := sharedJVM(t, version)
					flooded(t, redistest.Start(t, redistest.On(family), redistest.WithTCP()), j)
					j.mustBeQuiet(t)
				})
			}
		})
	}
}

func TestAReleaseThatAStrangerPublishesIsActedOnAtOnceAndLetsNobodyIn(t *testing.T) {
	onEachPeer(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		rdb := s.Client()
		c, peer := newClient(t, s), j.open(t, s)
		warm(t, s, peer, c.NewMutex("warm"))
		m := c.NewMutex("order:1")
		// forge publishes a release as the JVM and as Go does, in turn, and fails the test
		// unless its listener asks Redis at once.
		forged := []string{"0", "00"}
		forge := func(who, name string) {
			forged[0], forged[1] = forged[1], forged[0]
			before, at := s.CommandCalls()["evalsha"], time.Now()
			publish(t, rdb, name, forged[0])
			until(t, who+" asks Redis", func() bool { return s.CommandCalls()["evalsha"] > before })
			if took := time.Since(at); took > messageWake {
				t.Errorf("%s asked Redis %v after the message, want at most %v", who, took, messageWake)
			}
		}

		// The JVM holds, Go waits.
		peer.must("lock", "main", "order:1")
		entered := asleep(t, s, "order:1", 1, func() <-chan entry { return startLock(t, m) })
		for range 6 {
			forge("Go", "order:1")
			mustStillWait(t, entered, "Go")
			mustBe(t, peer, true, "isHeldByCurrentThread", "main", "order:1")
		}
		released := time.Now()
		peer.must("unlock", "main", "order:1")
		e := mustEnter(t, entered)
		soon(t, "Go", e.at.Sub(released))

		// Go holds and another of its callers waits: the holder looks.
		behind := startLock(t, m)
		until(t, "the caller behind waits", func() bool { return subscribers(t, s, "order:1") == 1 })
		forge("the holder", "order:1")
		mustBe(t, peer, false, "tryLock", "main", "order:1", "wait", 20)
		mustStillWait(t, behind, "the caller behind")
		if err := e.lease.Err(); err != nil {
			t.Errorf("Err of the holder after a forged release: %v", err)
		}
		mustUnlock(t, e.lease)
		mustUnlock(t, mustEnter(t, behind).lease)

		// Go holds, the JVM waits.
		m = c.NewMutex("order:2")
		lease := mustLock(t, m)
		onJVM := asleep(t, s, "order:2", 2, func() <-chan reply { return peer.start("lock", "main", "order:2") })
		for range 6 {
			forge("the JVM", "order:2")
			mustStillWait(t, onJVM, "the JVM")
			if info, err := m.Info(t.Context()); err != nil || !info.Mine {
				t.Errorf("Info: %+v, %v, want a lock of this client", info, err)
			}
		}
		if _, err := newClient(t, s).NewMutex("order:2").TryLock(t.Context(), 0); !errors.Is(err, watchlock.ErrNotAcquired) {
			t.Errorf("TryLock of another client: %v", err)
		}
		released = time.Now()
		mustUnlock(t, lease)
		r := await(t, onJVM)
		value[any](t, r)
		soon(t, "the JVM", r.ended().Sub(released))
		peer.must("unlock", "main", "order:2")
	})
}

// Redisson logs each message that is no number, may not hear a release that comes
// close behind one, and subscribes to nothing more on that connection: so each
// conversation has a client of its own. Its waiter wakes at the end of the lease
// that it has seen. Go hears the release.
func TestGarbageDelaysAJVMThatWaitsBesideGoByOneLeaseAtMostAndNotGo(t *testing.T) {
	onEachVictim(t, 0, func(t *testing.T, j *jvm, sides []side) {
		value[any](t, await(t, j.send("hush", nil)))
		for _, side := range sides {
			side.judge(t, func(t *testing.T) {
				s := side.server
				c, third := newClient(t, s), newClient(t, s)
				warm(t, s, side.peer, c.NewMutex("warm"))
				for _, what := range []string{"text", "nothing", "another number"} {
					name := "order:" + what
					waitTogether(t, s, j.open(t, s), c.NewMutex(name), third.NewMutex(name), garbage()[what])
				}
				for _, line := range j.logged(t) {
					if !strings.Contains(line, "java.lang.NumberFormatException") {
						t.Errorf("Redisson %s logged: %.2000s", j.version, line)
					}
				}
			})
		}
	})
}

// waitTogether has the JVM and Go wait for a lock that a third holds, publishes
// garbage, and fails the test unless Go enters at a release, and the JVM after a
// lease at most.
func waitTogether(t *testing.T, s *redistest.Server, peer *jvmClient, m, third *watchlock.Mutex, payload string) {
	t.Helper()
	const lasts, late = 2 * time.Second, 5 * time.Second
	rdb, name := s.Client(), m.Name()
	holder := mustLock(t, third, watchlock.WithLeaseTime(lasts))
	onJVM := waitsFor(t, s, name, func() <-chan reply { return peer.start("lock", "main", name) })
	entered := startLock(t, m, watchlock.WithLeaseTime(lasts))
	until(t, "Go listens too", func() bool { return rdb.PubSubNumSub(t.Context(), channelOf(name)).Val()[channelOf(name)] == 2 })
	for range 3 {
		if heard, err := rdb.Publish(t.Context(), channelOf(name), payload).Result(); heard != 2 || err != nil {
			t.Errorf("%d connections heard %.20q, %v, want 2", heard, payload, err)
		}
	}
	mustStillWait(t, onJVM, "the JVM")
	mustStillWait(t, entered, "Go")

	released := time.Now()
	mustUnlock(t, holder)
	jvmEnters := func(r reply) {
		value[any](t, r)
		if took := r.ended().Sub(released); took > lasts+late {
			t.Errorf("after %.20q the JVM entered %v after the release, want at most %v", payload, took, lasts+late)
		}
		released = time.Now()
		peer.must("unlock", "main", name)
	}
	goEnters := func(e entry) {
		if e.err != nil {
			t.Fatal(e.err)
		}
		soon(t, "Go", e.at.Sub(released))
		released = time.Now()
		mustUnlock(t, e.lease)
	}
	select {
	case r := <-onJVM:
		mustStillWait(t, entered, "Go")
		jvmEnters(r)
		goEnters(mustEnter(t, entered))
	case e := <-entered:
		mustStillWait(t, onJVM, "the JVM")
		goEnters(e)
		jvmEnters(await(t, onJVM))
	case <-time.After(replyWait):
		t.Fatal("neither enters")
	}
}
