package main

import (
	"context"
	"database/sql"
	"errors"
	"sync"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/examples/fencing/storage"
)

// Act 3: many rows. One row of another table, the fence, keeps the newest token
// for all of them. Each transaction claims it first, and so holds off all others
// until it commits. That helps with what is under way when a lease ends, too: a
// commit cannot be called back, but it lies wholly before the next holder's work.

// fence lets worker A's lease end between its writes and its commit.
func (s *story) fence(ctx context.Context) error {
	s.Act("Many rows, and a commit under way when the lease ends",
		"Each transaction claims the fence row first, with its token.")
	orders := []string{"2001", "2002", "2003"}
	for _, order := range orders {
		if err := s.store.Add(ctx, order, "PAID"); err != nil {
			return err
		}
	}
	var writing sync.WaitGroup
	commit, committed := make(chan struct{}), make(chan error, 1)
	h, err := s.handOver(ctx, "lock:orders", func(lease *watchlock.FencedLease) error {
		written := make(chan struct{})
		writing.Go(func() {
			committed <- s.store.InFence(ctx, "orders", lease.Token(), func(tx *sql.Tx) error {
				defer func() { <-commit }()
				defer close(written)
				return setAll(ctx, tx, "PACKED", orders)
			})
		})
		select {
		case <-written:
		case err := <-committed:
			return err // not even the claim
		}
		s.Say("worker A", "claims the fence, writes PACKED to %d rows, and has not committed", len(orders))
		return nil
	})
	if err != nil {
		close(commit)
		writing.Wait()
		return err
	}
	defer h.end()

	var seen int
	next := make(chan error, 1)
	s.Say("worker B", "claims the fence, and waits at it")
	go func() {
		next <- s.store.InFence(ctx, "orders", h.second.Token(), func(tx *sql.Tx) error {
			row := tx.QueryRowContext(ctx, `SELECT count(*) FROM shipments WHERE order_id LIKE '2%' AND status = 'PACKED'`)
			return errors.Join(row.Scan(&seen), setAll(ctx, tx, "SENT", orders))
		})
	}()
	s.Say("worker A", "goes on, and commits")
	close(commit)
	inFlight := <-committed
	nextErr := <-next
	s.Say("worker B", "is past the fence, sees %d rows PACKED, writes SENT: error %v", seen, nextErr)
	late := s.store.InFence(ctx, "orders", h.first.Token(), func(tx *sql.Tx) error {
		return setAll(ctx, tx, "PAID", orders)
	})
	s.Say("worker A", "begins another transaction: NO, %v", late)

	s.Claim(inFlight == nil && nextErr == nil && seen == len(orders), "worker B saw all of worker A's commit")
	stale := (*storage.StaleError)(nil)
	s.Claim(errors.As(late, &stale) && stale.Seen == h.second.Token(), "worker A's next transaction was refused before it wrote anything")
	sent := 0
	for _, order := range orders {
		if row, err := s.store.Shipment(ctx, order); err == nil && row.Status == "SENT" {
			sent++
		}
	}
	s.Claim(sent == len(orders), "all %d rows are as worker B left them", sent)
	return nil
}

func setAll(ctx context.Context, tx *sql.Tx, status string, orders []string) error {
	for _, order := range orders {
		if _, err := tx.ExecContext(ctx, `UPDATE shipments SET status = $1 WHERE order_id = $2`, status, order); err != nil {
			return err
		}
	}
	return nil
}
