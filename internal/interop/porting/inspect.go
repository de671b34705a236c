package porting

import (
	"context"
	"errors"
	"fmt"

	"github.com/seed-8c25f305/watchlock"
)

// SendAll sends no parcel once the lock is lost.
// guide: guard
func SendAll(ctx context.Context, m *watchlock.Mutex, parcels []string, send func(string) error) (err error) {
	lease, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()
	for _, parcel := range parcels {
		if err := lease.Err(); err != nil { // no round trip
			return fmt.Errorf("not sent: %s: %w", parcel, err)
		}
		if err := send(parcel); err != nil {
			return err
		}
	}
	return nil
}

// end

// Describe says who holds the lock: advice, which may be out of date at once.
// guide: info
func Describe(ctx context.Context, m *watchlock.Mutex) (string, error) {
	info, err := m.Info(ctx)
	here := 0
	if info.Mine {
		here = info.Holds // of this client, on whichever goroutine
	}
	return fmt.Sprintf("held %v, here %d times, for %d ms", info.Held, here, info.TTL.Milliseconds()), err
}

// end

// BreakOpen takes the lock away from its holder, and reports whether there was one.
// guide: force
func BreakOpen(ctx context.Context, m *watchlock.Mutex) (bool, error) {
	err := m.ForceUnlock(ctx)
	if errors.Is(err, watchlock.ErrNotHeld) {
		return false, nil
	}
	return err == nil, err
}

// end
