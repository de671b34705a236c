package interop

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

const tokenCounter = "redisson_lock_token:{order:1}"

// mustToken takes the fenced lock and gives it back, and returns the token.
func mustToken(t testing.TB, m *watchlock.FencedMutex) (token int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), replyWait)
	defer cancel()
	err := m.Do(ctx, func(_ context.Context, got int64) error { token = got; return nil })
	if err != nil {
		t.Fatalf("Do: %v", err)
	}
	return token
}

// rising fails the test at a token that is not larger than the one before it.
type rising struct {
	last int64
	who  string
	n    int
}

func (r *rising) take(t testing.TB, who string, token int64) {
	t.Helper()
	if r.n++; token <= r.last {
		t.Fatalf("grant %d: %s has the token %d after %d of %s", r.n, who, token, r.last, r.who)
	}
	r.last, r.who = token, who
}

func TestTenThousandTokensTakenInTurnByTheJVMAndGoRise(t *testing.T) {
	onEachPeerAtOnce(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		m, peer := newClient(t, s).NewFencedMutex("order:1"), j.open(t, s)
		var tokens rising
		for range 5000 {
			tokens.take(t, "the JVM", value[int64](t, peer.must("takeToken", "main", "order:1")))
			tokens.take(t, "Go", mustToken(t, m))
		}
		if tokens.last >= 1<<53 {
			t.Errorf("the last token %d is not exact in every language", tokens.last)
		}
	})
}

// noteTokens takes tokens on goroutines of the client and appends them to the
// journal, with nothing but the lock to say whose turn it is.
func noteTokens(ctx context.Context, m *watchlock.FencedMutex, journal string, goroutines, each int) error {
	errs := make(chan error, goroutines)
	for range goroutines {
		go func() {
			var err error
			for range each {
				if err = m.Do(ctx, func(_ context.Context, token int64) error { return note(journal, token) }); err != nil {
					break
				}
			}
			errs <- err
		}()
	}
	var first error
	for range goroutines {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}

func note(journal string, token int64) error {
	f, err := os.OpenFile(journal, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintln(f, token, "Go")
	return err
}

// With four goroutines before one lock, Go reserves tokens and hands them on
// without Redis.
func TestTokensRiseInTheOrderOfTheGrantsWhenManyOnBothSidesWait(t *testing.T) {
	const parties, each = 4, 100
	onEachPeerAtOnce(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		ctx, cancel := context.WithTimeout(t.Context(), replyWait)
		defer cancel()
		peer := j.open(t, s)
		journal := filepath.Join(t.TempDir(), "journal")
		onJVM := peer.start("noteTokens", "main", "order:1", "journal", journal, "threads", parties, "each", each)
		var all sync.WaitGroup
		for range 2 {
			m := newClient(t, s).NewFencedMutex("order:1")
			all.Go(func() {
				if err := noteTokens(ctx, m, journal, parties, each); err != nil {
					t.Errorf("Do: %v", err)
				}
			})
		}
		value[any](t, await(t, onJVM))
		all.Wait()

		f, err := os.Open(journal)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var tokens rising
		by := make(map[string]int)
		for lines := bufio.NewScanner(f); lines.Scan(); {
			var token int64
			var who string
			if _, err := fmt.Sscan(lines.Text(), &token, &who); err != nil {
				t.Fatalf("the journal says %q: %v", lines.Text(), err)
			}
			tokens.take(t, who, token)
			by[who]++
		}
		if by["JVM"] != parties*each || by["Go"] != 2*parties*each {
			t.Errorf("noted by each: %v, want %d on the JVM and %d in Go", by, parties*each, 2*parties*each)
		}
	})
}

func TestAReEntryOnTheJVMTakesAnotherTokenAndGosNextIsLarger(t *testing.T) {
	onEachPeerAtOnce(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		m, peer := newClient(t, s).NewFencedMutex("order:1"), j.open(t, s)
		var tokens rising
		for range 3 {
			for range 3 {
				tokens.take(t, "the JVM", value[int64](t, peer.must("lockAndGetToken", "main", "order:1")))
			}
			mustBe(t, peer, 3, "getHoldCount", "main", "order:1", "fenced", true)
			if info, err := m.Info(t.Context()); err != nil || info.Holds != 3 || info.Token != tokens.last {
				t.Errorf("Info: %+v, %v, want 3 holds and the token %d", info, err, tokens.last)
			}
			for range 3 {
				peer.must("unlock", "main", "order:1", "fenced", true)
			}
			tokens.take(t, "Go", mustToken(t, m))
			mustBe(t, peer, tokens.last, "getToken", "main", "order:1")
		}
	})
}

func TestGosNextTokenIsLargerThanEachBeforeTheCounterWasDeleted(t *testing.T) {
	onEachPeerAtOnce(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		m, peer := newClient(t, s).NewFencedMutex("order:1"), j.open(t, s)
		var tokens rising
		for range 5 {
			tokens.take(t, "Go", mustToken(t, m))
			for range 20 {
				tokens.take(t, "the JVM", value[int64](t, peer.must("takeToken", "main", "order:1")))
			}
			do(t, s, "DEL", tokenCounter)
		}
		tokens.take(t, "Go", mustToken(t, m))
		tokens.take(t, "the JVM", value[int64](t, peer.must("takeToken", "main", "order:1")))
	})
}

// What the storage has seen is larger than the JVM's tokens until Go grants
// again: all that the JVM writes until then is refused.
func TestAJVMThatGrantsFirstAfterTheCounterWasDeletedStartsAtOneAndGoGoesOn(t *testing.T) {
	onEachPeerAtOnce(t, func(t *testing.T, s *redistest.Server, j *jvm) {
		m, peer := newClient(t, s).NewFencedMutex("order:1"), j.open(t, s)
		var tokens rising
		tokens.take(t, "the JVM", value[int64](t, peer.must("takeToken", "main", "order:1")))
		mustBe(t, peer, 1, "getToken", "main", "order:1")
		tokens.take(t, "Go", mustToken(t, m))
		if skew := time.Since(time.UnixMicro(tokens.last)).Abs(); skew > time.Minute {
			t.Errorf("Go's token %d is %v from the time", tokens.last, skew)
		}
		tokens.take(t, "the JVM", value[int64](t, peer.must("takeToken", "main", "order:1")))

		do(t, s, "DEL", tokenCounter)
		for want := range int64(3) {
			mustBe(t, peer, want+1, "takeToken", "main", "order:1")
		}
		tokens.take(t, "Go", mustToken(t, m))
		tokens.take(t, "the JVM", value[int64](t, peer.must("takeToken", "main", "order:1")))
	})
}
