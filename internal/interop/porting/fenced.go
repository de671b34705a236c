package porting

import (
	"context"

	"github.com/seed-8c25f305/watchlock"
)

// Write stores under the lock, with the token that the storage checks.
// guide: fenced
func Write(ctx context.Context, m *watchlock.FencedMutex, store func(context.Context, int64) error) error {
	return m.Do(ctx, store)
}

// end
