package watchlock

import (
	"fmt"
	"slices"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// Close ends the client. New calls and all waiters get ErrClosed at once (a Lock
// whose context cannot end may first have to end the attempt it is in, of at most
// 1 s when Redis does not answer), and every lease's context is cancelled with it.
// Holders have the unlock timeout (WithUnlockTimeout) to Unlock, and their leases
// are renewed meanwhile; what they do not give back is not released under running
// work but left to expire, and the error names it. Close waits for all of this and
// for its goroutines, about 1 s beyond the unlock timeout when Redis does not
// answer, and at most 1 s for the logger. It does not close the Redis client. Called again, it returns the same.
func (c *Client) Close() error {
	c.mu.Lock()
	again := c.closed.Swap(true)
	c.mu.Unlock()
	if again {
		<-c.finished
		return c.closeErr
	}
	defer close(c.finished)

	for _, g := range c.allGates() {
		g.close()
	}
	c.checkIdle()
	c.clock.Wait(c.idle, c.clock.Now()+c.cfg.unlockTimeout)
	c.orphans.Last()

	c.mu.Lock()
	c.stopped.Store(true)
	c.mu.Unlock()
	var left []string
	for _, g := range c.allGates() {
		if g.abandon() {
			left = append(left, g.keys.Name)
		}
	}
	close(c.stopping)
	c.end()
	c.subs.Close()
	c.runner.Close()
	c.await(transport.AttemptTimeout + 2*transport.FlightsShare)
	c.teller.close() // the last: those before may have something to say
	if len(left) > 0 {
		slices.Sort(left)
		c.closeErr = fmt.Errorf("watchlock: close: not unlocked in %v and left to expire: %.1000q", c.cfg.unlockTimeout, left)
	}
	return c.closeErr
}

// await waits for the client's goroutines, but not for long. They end by themselves, within an
// attempt's timeout, but for one that stands in a hook of the caller's, and one that asks a
// sentinel that stands still: those end when the hook does, or go-redis gives up.
func (c *Client) await(most time.Duration) {
	ended := make(chan struct{})
	go func() {
		c.tasks.Wait()
		close(ended)
	}()
	c.clock.Wait(ended, c.clock.Now()+most)
}

// checkIdle tells Close when nobody refers to any gate.
func (c *Client) checkIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, gates := range c.gates {
		for _, g := range gates {
			if g.refs.Load() != 0 {
				return
			}
		}
	}
	c.idleOnce.Do(func() { close(c.idle) })
}

// close ends all waiting with ErrClosed and tells the holders, who may still
// unlock.
func (g *gate) close() {
	g.mu.Lock()
	g.closed = true
	for g.queue.first != nil {
		g.deliverLocked(g.queue.first, delivery{err: ErrClosed})
	}
	var endings []ending
	if g.held != nil {
		for h := g.held.holds; h != nil; h = h.next {
			endings = append(endings, h.endLocked(ErrClosed))
		}
	}
	g.wakeLocked()
	g.mu.Unlock()
	tellAll(endings)
}

// abandon leaves what is still held to its TTL, and reports whether anything is.
func (g *gate) abandon() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.held
	if b == nil {
		return false
	}
	b.over, g.held = true, nil
	g.c.dog.remove(b)
	g.unref()
	return true
}
