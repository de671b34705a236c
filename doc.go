// Package watchlock is a lock client for Redis in the manner of Redisson, and
// shares its locks with it.
//
// A [Client] issues locks by name. A [Lease] is one lock held: the client's
// watchdog renews its TTL of 30 s every 10 s until Unlock, unless an explicit
// lease time was given. Waiters sleep on a Redis message. [Mutex.Do] and
// [Mutex.TryDo] cannot be used wrongly; Lock and TryLock are for when the hold
// is not one function.
//
// # What it promises
//
// A holder whose lease runs out is told before Redis can grant the lock to
// anybody else: its [Lease.Context] is cancelled, and Err says [ErrLost]. What
// an operator, an eviction or a failover takes away it learns at the next
// contact with Redis. No two leases of one name are trusted at once while the
// server keeps the key and its clock runs no more than 1 % fast.
//
// # What it does not promise
//
// A lock in Redis is not consensus. It cannot exclude a holder that is stopped
// between its last look at Err and its effect for longer than the TTL, nor a
// second grant after a failover that lost the key. Where that would corrupt
// data, let the storage check: a fencing token in the row that is written, or no
// lock in Redis at all but a row lock or a unique constraint where the state
// lives in a database anyway.
//
// # Errors
//
// Every error about a lock is a [*LockError] around a sentinel, a context's
// error, or what Redis or the network said. [ErrNotAcquired] is a 409,
// [IsUnavailable] a 503.
package watchlock
