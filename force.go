package watchlock

import (
	"context"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// This file is what takes a lock away.

// force releases owner, whoever that is, and ends the burst if it is ours.
//
//  1. The burst ends first, so that its holder is told before anybody else can
//     be granted the lock.
//  2. The release names the owner that was read. However often it is sent, it
//     can only remove that one. An answer that it was gone is as good: it had
//     been there, and is no longer.
func (g *gate) force(ctx context.Context, k wire.Kind, keys *wire.Keys, owner wire.Owner) error {
	g.mu.Lock()
	var endings []ending
	switch b := g.held; {
	case b != nil && b.owner == owner:
		endings = b.takenLocked("it was forced open")
	case g.attempt != nil && g.attempt.owner == owner:
		g.attempt.forced = true // its grant is on its way here
	}
	g.mu.Unlock()
	tellAll(endings)
	deadline := g.c.clock.Now() + g.c.cfg.unlockTimeout
	o := wire.Owned{Keys: keys, Owner: owner}
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		left := max(deadline-g.c.clock.Now(), time.Millisecond)
		_, res := k.Release(g.c.runner.On(ctx, left, ctx.Done()), []wire.Owned{o})
		if res.Fate == transport.Replied {
			return nil
		}
		if err := ctxError(ctx); err != nil {
			return err
		}
		if res.Fate.Vain() || g.c.clock.Now()+pause >= deadline {
			return res.Err
		}
		g.c.clock.Wait(ctx.Done(), g.c.clock.Now()+pause)
	}
}
