package storage

import (
	"database/sql"
	"errors"
	"strings"
	"testing"
)

const big = int64(1_790_000_000_000_000) // a token is the time in µs

func TestLateWriteWithAnOlderTokenIsRefusedTokenByToken(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db database) {
		s, ctx := db.open(t), t.Context()
		must(t, s.Add(ctx, "1001", "PAID"))
		must(t, s.WriteOnce(ctx, "1001", "PACKED", big))
		must(t, s.WriteOnce(ctx, "1001", "SENT", big+2))
		wantStale(t, s.WriteOnce(ctx, "1001", "LATE", big), big, big+2)
		wantStale(t, s.Write(ctx, "1001", "LATE", big+1), big+1, big+2)
		_, err := s.Claim(ctx, "1001", big+1)
		wantStale(t, err, big+1, big+2)
		wantRow(t, s, "1001", "SENT", big+2)
	})
}

func TestOneTokenWritesOnceOrAsOftenAsItLikes(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db database) {
		s, ctx := db.open(t), t.Context()
		must(t, s.Add(ctx, "1001", "PAID"))
		must(t, s.WriteOnce(ctx, "1001", "PACKED", big))
		err := s.WriteOnce(ctx, "1001", "PACKED", big)
		wantStale(t, err, big, big)
		if err == nil || !strings.Contains(err.Error(), "already") {
			t.Errorf("the second write says %v", err)
		}
		for _, status := range []string{"SEALED", "WEIGHED", "SENT"} {
			must(t, s.Write(ctx, "1001", status, big))
		}
		wantRow(t, s, "1001", "SENT", big)
	})
}

func TestMissingRowIsNotAStaleToken(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db database) {
		s, ctx := db.open(t), t.Context()
		must(t, s.Add(ctx, "1001", "PAID"))
		_, claimErr := s.Claim(ctx, "1002", big)
		_, readErr := s.Shipment(ctx, "1002")
		for name, err := range map[string]error{
			"WriteOnce": s.WriteOnce(ctx, "1002", "SENT", big),
			"Write":     s.Write(ctx, "1002", "SENT", big),
			"Claim":     claimErr, "Shipment": readErr,
		} {
			missing, stale := (*NoRowError)(nil), (*StaleError)(nil)
			if !errors.As(err, &missing) || missing.Order != "1002" || errors.As(err, &stale) {
				t.Errorf("%s: got %v, want that there is no row", name, err)
			}
		}
		wantRow(t, s, "1001", "PAID", 0)
	})
}

// TestClaimKeepsOlderTokensFromWhatWasRead: without it, the last holder could
// still write between the next one's look and its first write.
func TestClaimKeepsOlderTokensFromWhatWasRead(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db database) {
		s, ctx := db.open(t), t.Context()
		must(t, s.Add(ctx, "1001", "PAID"))
		must(t, s.Write(ctx, "1001", "PACKED", big))
		if status, err := s.Claim(ctx, "1001", big+1); status != "PACKED" || err != nil {
			t.Errorf("the claim reads %q, %v", status, err)
		}
		wantStale(t, s.Write(ctx, "1001", "LATE", big), big, big+1)
		must(t, s.Write(ctx, "1001", "SENT", big+1))
		wantRow(t, s, "1001", "SENT", big+1)
	})
}

func TestFenceGuardsManyRowsAtOnce(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db database) {
		s, ctx := db.open(t), t.Context()
		must(t, s.Add(ctx, "1001", "PAID"))
		must(t, s.Add(ctx, "1002", "PAID"))
		must(t, s.InFence(ctx, "shop", big, setAll(ctx, "PACKED", "1001", "1002")))
		must(t, s.InFence(ctx, "shop", big, setAll(ctx, "SEALED", "1001"))) // a second transaction of the same holder
		must(t, s.InFence(ctx, "shop", big+1, setAll(ctx, "SENT", "1002")))
		wantStale(t, s.InFence(ctx, "shop", big, func(*sql.Tx) error {
			t.Error("f runs with a stale token")
			return nil
		}), big, big+1)
		must(t, s.InFence(ctx, "another shop", big, setAll(ctx, "PAID")))
		wantRow(t, s, "1001", "SEALED", 0)
		wantRow(t, s, "1002", "SENT", 0)
	})
}

func TestFailedWorkInAFenceLeavesNothing(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db database) {
		s, ctx := db.open(t), t.Context()
		must(t, s.Add(ctx, "1001", "PAID"))
		broken := errors.New("broken")
		err := s.InFence(ctx, "shop", big, func(tx *sql.Tx) error {
			must(t, setAll(ctx, "HALF", "1001")(tx))
			return broken
		})
		if !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
		must(t, s.InFence(ctx, "shop", big-1, setAll(ctx, "SENT"))) // the claim of the failed one is gone too
		wantRow(t, s, "1001", "PAID", 0)
	})
}

// TestRowThatComesBetweenWriteAndLookIsWritten plays the one case in which the
// look after a write that changed nothing finds no reason for it.
func TestRowThatComesBetweenWriteAndLookIsWritten(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db database) {
		s, ctx := db.open(t), t.Context()
		tries := 0
		err := s.update(ctx, "1001", big, func() (bool, error) {
			tries++
			done, err := changed(s.db.ExecContext(ctx, write, "SENT", big, "1001"))
			if tries == 1 {
				must(t, s.Add(ctx, "1001", "PAID"))
			}
			return done, err
		})
		if err != nil || tries != 2 {
			t.Errorf("%d tries, %v", tries, err)
		}
		wantRow(t, s, "1001", "SENT", big)
	})
}
