package watchlock

import (
	"errors"
	"fmt"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// Sentinels to branch on with errors.Is. Each comes inside a *LockError.
var (
	// ErrNotAcquired says that others held the lock whenever Redis was asked, until
	// the wait was over. The LockError's TTL is how long the last one's lease still
	// ran then.
	ErrNotAcquired = errors.New("not acquired")

	// ErrLost says that this process may no longer trust the lease: it ran out,
	// could not be renewed in time, passed its WithMaxHold, was taken away in
	// Redis, or was dropped without Unlock.
	ErrLost = errors.New("lease lost")

	// ErrNotHeld says that there is nothing to unlock: the lease was unlocked
	// before or is nil, or ForceUnlock found the lock free.
	ErrNotHeld = errors.New("not held")

	// ErrClosed says that the client was closed.
	ErrClosed = transport.ErrClosed

	// ErrWrongType says that the lock's key is not of Redis's type for this lock, a
	// hash, or a string for NewSetNXMutex, or, for ForceUnlock, has more than one
	// owner. Nothing was changed. Locks of several kinds that are all hashes, plain,
	// fenced, or Redisson's fair and read-write locks, are not told apart.
	ErrWrongType = transport.ErrWrongType

	// ErrTokenRange says that the counter of a fenced lock is not an integer
	// below 2^53 - 1, so that no exact token can follow. Nothing was taken.
	ErrTokenRange = transport.ErrTokenRange
)

// LockError is around every error of this package that concerns one lock.
type LockError struct {
	// Op is what was tried: "lock", "try lock", "unlock", "force unlock",
	// "extend", "info" or "lease".
	Op string
	// Name is the lock's name as given to NewMutex or its like.
	Name string
	// TTL is, with ErrNotAcquired, how long the holder's lease still ran when
	// it was last seen; 0 when unknown, negative when it has no end.
	TTL time.Duration
	// Err is the reason: a sentinel, a context's error, the server's reply or
	// the network's error.
	Err error
}

// Error names the operation, the lock and the reason.
func (e *LockError) Error() string {
	if e.TTL > 0 && errors.Is(e.Err, ErrNotAcquired) {
		return fmt.Sprintf("watchlock: %s %.128q: %v, held for %v more", e.Op, e.Name, e.Err, e.TTL.Round(time.Millisecond))
	}
	return fmt.Sprintf("watchlock: %s %.128q: %v", e.Op, e.Name, e.Err)
}

// Unwrap returns Err.
func (e *LockError) Unwrap() error { return e.Err }

// IsUnavailable reports whether err says that Redis could not be asked, or
// could not answer for now: no connection, no answer in time, or a reply such
// as LOADING or READONLY. It tells a 503 from the 409 of ErrNotAcquired, of
// which it is never true, and from what no retry mends, such as NOPERM. Nor is it
// true of a reply that no Redis is known to send, such as a proxy's own error:
// nobody knows then what became of the command, and what it took is given back.
// Nor of a TLS certificate that one side does not accept.
func IsUnavailable(err error) bool { return transport.IsUnavailable(err) }

// errUnseen says that a renewal script could not look at the key.
var errUnseen = errors.New("the server could not look at the lock")

// errForced says that a grant was taken away before it was heard of.
var errForced = errors.New("forced open while it was being granted")

// slowError says that a grant came too late to be of use.
type slowError struct{ trip, lease time.Duration }

func (e *slowError) Error() string {
	return fmt.Sprintf("the round trip of %v leaves less than half of the lease of %v", e.trip, e.lease)
}
