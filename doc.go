// Package watchlock is a lock client for Redis in the manner of Redisson, and
// shares its locks with it.
//
// [New] makes a [Client], whose NewMutex, NewFencedMutex and NewSetNXMutex name a
// lock. [Mutex.Do] and [Mutex.TryDo] run a function under it and always release it;
// Lock and TryLock return a [Lease], to be unlocked. The watchdog renews
// a lease's TTL of 30 s every 10 s, unless WithLeaseTime gave it an end. Waiters
// sleep on a Redis message.
//
// A holder whose lease runs out is told before Redis can grant the lock to
// anybody else: its [Lease.Context] is cancelled, and Err says [ErrLost]. What an
// operator or an eviction takes away it learns at the next contact with Redis, and of a
// restart or a failover when it is noticed. No two leases of one name are trusted at once while the server
// keeps the key and its clock runs no more than 1 % fast.
//
// That is not consensus. It cannot exclude a holder that is stopped between its
// last look at Err and its effect for longer than the TTL, nor a second grant
// after a failover that lost the key. Where that would corrupt data, let the
// storage check a fencing token ([FencedMutex]), or use a row lock or a unique
// constraint where the state lives in a database anyway.
//
// Every error about a lock has a [*LockError] in it, for errors.As. [ErrNotAcquired]
// is a 409; [IsUnavailable] a 503, unless the LockError's Op is "unlock": then the
// work is done.
package watchlock
