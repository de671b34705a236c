package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/examples/fencing/storage"
	"github.com/seed-8c25f305/watchlock/examples/internal/timeline"
)

// Act 6: the end of act 5 when the job is not told, because it does not run. A
// process can be stopped at any point, also between its last look at the lease and
// the write that comes next. When it runs on, that write comes late: somebody else
// has the lock. No lock can prevent this, but the row can. A fenced lock gives each
// holder a larger number, the token, and the UPDATE says
//
//	… SET status = $1, lock_token = $2 WHERE order_id = $3 AND lock_token <= $2
//
// The statements are in examples/fencing/storage; `go run -C examples ./fencing`
// tells more of this.

// lateWrite stops worker A for longer than its lease and lets it write then.
func (s *story) lateWrite(ctx context.Context) error {
	const lease, order = 600 * time.Millisecond, "3003"
	s.Act("A write that comes too late, and the row says no",
		"Worker A is stopped for longer than its lease of 600 ms, just before a write.",
		"The row remembers the newest token that it has seen.")
	rows, remove, err := openRows(ctx)
	if err != nil {
		return err
	}
	defer remove()
	if err := rows.Add(ctx, order, "PAID"); err != nil {
		return err
	}
	mine, err := s.client()
	if err != nil {
		return err
	}
	defer mine.Close()
	theirs, err := s.client()
	if err != nil {
		return err
	}
	defer theirs.Close()

	lock := mine.NewFencedMutex("lock:order:"+order, watchlock.WithLeaseTime(lease))
	first, err := lock.Lock(ctx)
	if err != nil {
		return err
	}
	s.Say("worker A", "holds lock:order:%s for %s, token %d", order, timeline.MS(lease), first.Token())
	live := s.set(ctx, rows, "worker A", order, "PACKED", first.Token()) == nil
	s.Say("worker A", "is stopped, as by a garbage collector or a machine that is moved")
	var second int64
	err = theirs.NewFencedMutex("lock:order:"+order).Do(ctx, func(ctx context.Context, token int64) error {
		second = token
		s.Say("worker B", "holds lock:order:%s, token %d", order, token)
		return s.set(ctx, rows, "worker B", order, "CANCELLED", token)
	})
	if err != nil {
		return err
	}
	s.Say("worker A", "runs on, and does what came next")
	late := s.set(ctx, rows, "worker A", order, "SENT", first.Token())
	told := first.Unlock(ctx)
	s.Say("worker A", "unlocks: %v", told)

	var third int64
	var status string
	err = lock.Do(ctx, func(ctx context.Context, token int64) (err error) {
		third = token
		s.Say("worker A", "holds lock:order:%s again, token %d", order, token)
		if status, err = rows.Claim(ctx, order, token); err == nil {
			s.Say("worker A", "shows the row its token and reads it: %s, nothing to do", status)
		}
		return err
	})
	if err != nil {
		return err
	}
	stale := (*storage.StaleError)(nil)
	s.Claim(first.Token() < second && second < third, "each grant had a larger token")
	s.Claim(live && errors.As(late, &stale) && stale.Seen == second, "the row refused the late write: it has seen token %d, and %d is less", second, first.Token())
	s.Claim(status == "CANCELLED", "order %s is %s, as worker B left it", order, status)
	s.Claim(errors.Is(told, watchlock.ErrLost), "Unlock told worker A that its lease was lost")
	return nil
}

// set writes a row and says what came of it.
func (s *story) set(ctx context.Context, rows *storage.Store, who, order, status string, token int64) error {
	err := s.write(ctx, rows, order, status, token)
	if err != nil {
		s.Say(who, "writes %s with token %d: NO, %v", status, token, err)
	} else {
		s.Say(who, "writes %s with token %d: yes", status, token)
	}
	return err
}

// openRows makes an SQLite file that remove removes.
func openRows(ctx context.Context) (rows *storage.Store, remove func(), err error) {
	dir, err := os.MkdirTemp("", "watchlock-quickstart")
	if err != nil {
		return nil, nil, err
	}
	rows, err = storage.OpenSQLite(ctx, filepath.Join(dir, "shop.db"))
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, nil, err
	}
	return rows, func() {
		_ = rows.Close()
		_ = os.RemoveAll(dir)
	}, nil
}
