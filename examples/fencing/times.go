package main

import (
	"context"
	"errors"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/examples/fencing/storage"
)

// Act 4: once or as often as one likes. With lock_token < token a token writes a
// row once. Sent again because the answer was lost, the write is refused, and the
// error shows by its equal tokens that it had been taken. A holder that writes
// more than once compares with <=.

// times writes a row more than once under one token.
func (s *story) times(ctx context.Context) error {
	s.Act("One write or many under one token",
		"lock_token < token lets a token write once, lock_token <= token as often as it likes.")
	const order = "3001"
	if err := s.store.Add(ctx, order, "PAID"); err != nil {
		return err
	}
	client, err := watchlock.New(s.rdb, watchlock.WithKeyPrefix(s.prefix))
	if err != nil {
		return err
	}
	defer client.Close()
	return client.NewFencedMutex("lock:order:"+order).Do(ctx, func(ctx context.Context, token int64) error {
		once := s.store.WriteOnce(ctx, order, "PACKED", token)
		s.Say("worker A", "writes PACKED where lock_token < %d: error %v", token, once)
		again := s.store.WriteOnce(ctx, order, "PACKED", token)
		s.Say("worker A", "sends that again: NO, %v", again)
		stale := (*storage.StaleError)(nil)
		s.Claim(once == nil && errors.As(again, &stale) && stale.Seen == token, "with < the second write was refused, and the first shown to be its own")

		taken := 0
		for _, status := range []string{"SEALED", "WEIGHED", "SENT"} {
			if s.set(ctx, "worker A", order, status, token) == nil {
				taken++
			}
		}
		s.Claim(taken == 3, "with <= the same token wrote %d times more", taken)
		return nil
	})
}
