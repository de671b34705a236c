package main

import (
	"context"
	"errors"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/examples/fencing/storage"
)

// Acts 1 and 2: the late write. Worker A looks at its lease, is stopped for longer
// than the lease, and goes on with the write that comes next. It cannot know that
// time has passed, however short the way from the look to the write is.

// withoutTokens shows the fault. The UPDATE compares nothing.
func (s *story) withoutTokens(ctx context.Context) error {
	s.Act("A late write without a check",
		"Worker A is stopped between its last look at the lease and its write.")
	const order = "1001"
	if err := s.store.Add(ctx, order, "PAID"); err != nil {
		return err
	}
	h, err := s.handOver(ctx, "lock:order:"+order, func(lease *watchlock.FencedLease) error {
		s.Say("worker A", "looks at its lease: error %v", lease.Err())
		return nil
	})
	if err != nil {
		return err
	}
	defer h.end()
	for _, w := range []struct{ who, status string }{{"worker B", "CANCELLED"}, {"worker A", "SENT"}} {
		_, err := s.store.DB().ExecContext(ctx, `UPDATE shipments SET status = $1 WHERE order_id = $2`, w.status, order)
		if err != nil {
			return err
		}
		s.Say(w.who, "writes %s", w.status)
	}
	row, err := s.store.Shipment(ctx, order)
	if err != nil {
		return err
	}
	s.Say("customer", "cancelled order %s, and it is %s", order, row.Status)
	return nil
}

// withTokens is the same with the token in the statement and in the row.
func (s *story) withTokens(ctx context.Context) error {
	s.Act("The same with a token",
		"Each grant has a larger token. The row keeps the newest, and takes no older one.")
	const order = "1002"
	if err := s.store.Add(ctx, order, "PAID"); err != nil {
		return err
	}
	packed := false
	h, err := s.handOver(ctx, "lock:order:"+order, func(lease *watchlock.FencedLease) error {
		packed = s.set(ctx, "worker A", order, "PACKED", lease.Token()) == nil
		s.Say("worker A", "looks at its lease: error %v", lease.Err())
		return nil
	})
	if err != nil {
		return err
	}
	defer h.end()
	cancelled := s.set(ctx, "worker B", order, "CANCELLED", h.second.Token()) == nil
	late := s.set(ctx, "worker A", order, "SENT", h.first.Token())
	row, err := s.store.Shipment(ctx, order)
	if err != nil {
		return err
	}
	s.Say("customer", "cancelled order %s, and it is %s", order, row.Status)

	stale := (*storage.StaleError)(nil)
	s.Claim(packed && cancelled, "writes of live holders were taken")
	s.Claim(errors.As(late, &stale) && stale.Token == h.first.Token() && stale.Seen == h.second.Token(),
		"the late write was refused, since %d is older than %d", h.first.Token(), h.second.Token())
	s.Claim(row.Status == "CANCELLED" && row.Token == h.second.Token(), "the row is as worker B left it")
	missing := (*storage.NoRowError)(nil)
	gone := s.set(ctx, "worker B", "1003", "CANCELLED", h.second.Token())
	s.Claim(errors.As(gone, &missing) && !errors.As(gone, &stale), "a row that is not there is told apart from a stale token")
	return nil
}

// set writes a row and says what came of it.
func (s *story) set(ctx context.Context, who, order, status string, token int64) error {
	err := s.write(ctx, order, status, token)
	if err != nil {
		s.Say(who, "writes %s with token %d: NO, %v", status, token, err)
	} else {
		s.Say(who, "writes %s with token %d: yes", status, token)
	}
	return err
}
