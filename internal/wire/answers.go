package wire

import (
	"fmt"
	"time"
)

// This file reads what scripts answer.

// Grant is the answer to an acquire.
type Grant struct {
	Taken bool
	Token int64         // of a fenced lock that was taken
	Last  int64         // token reserved with it
	TTL   time.Duration // of the holder's lease else: negative when it has no end
}

// ReadAcquire reads the answer of an acquire script.
func ReadAcquire(r []int64) (Grant, error) {
	switch {
	case len(r) == 0:
	case r[0] == 1 && len(r) == 1:
		return Grant{Taken: true}, nil
	case r[0] == 1 && len(r) == 3:
		if token, last := r[1], r[2]; token <= last {
			return Grant{Taken: true, Token: token, Last: last}, nil
		}
	case r[0] == 0 && len(r) == 2:
		return Grant{TTL: pttl(r[1])}, nil
	}
	return Grant{}, badReply(r)
}

// MaxDuration is the longest lease.
const MaxDuration = 100 * 365 * 24 * time.Hour

// pttl is a PTTL as a duration: negative without an end, and no more than the
// longest lease, since others may have set one that no duration can hold.
func pttl(ms int64) time.Duration {
	return time.Duration(min(max(ms, -1), MaxDuration.Milliseconds())) * time.Millisecond
}

// ReadRelay reads the answer of a relay script: tried says that it took the lock for
// the next owner, or found that it could not.
func ReadRelay(r []int64) (a Answers, g Grant, tried bool, err error) {
	if len(r) < 2 {
		return nil, Grant{}, false, badReply(r)
	}
	if a, err = ReadRelease(r[:2], 1); err != nil || len(r) == 2 {
		return a, Grant{}, false, err
	}
	g, err = ReadAcquire(r[2:])
	return a, g, true, err
}

// Verdict is what Redis says of one renewed lock.
type Verdict int

// What Redis says of an owner.
const (
	Kept    Verdict = 1
	NotMine Verdict = 0
	Unseen  Verdict = -1
)

// ReadRenew returns a verdict for each of n locks.
func ReadRenew(r []int64, n int) ([]Verdict, error) {
	if len(r) != n {
		return nil, badReply(r)
	}
	verdicts := make([]Verdict, n)
	for i := range verdicts {
		if verdicts[i] = Verdict(r[i]); verdicts[i] < Unseen || verdicts[i] > Kept {
			return nil, badReply(r)
		}
	}
	return verdicts, nil
}

// Answers are those to a release: for each lock, whether it was its owner's until
// now, and how many were told.
type Answers []int64

// Mine reports whether the lock i was its owner's until now.
func (a Answers) Mine(i int) bool { return a[2*i] == 1 }

// Told is 0 when nobody could be told.
func (a Answers) Told(i int) int { return int(max(a[2*i+1], 0)) }

// ReadRelease reads the answer about each of n locks.
func ReadRelease(r []int64, n int) (Answers, error) {
	if len(r) != 2*n {
		return nil, badReply(r)
	}
	for i := range n {
		if r[2*i] != 0 && r[2*i] != 1 {
			return nil, badReply(r)
		}
	}
	return r, nil
}

// Holder is who holds a lock, as Redis says.
type Holder struct {
	Held  bool
	Owner string
	Holds int
	TTL   time.Duration // negative when the key has no end
	Token int64         // the counter of a fenced lock
}

// ReadInfo reads the answer of info.lua.
func ReadInfo(reply any) (Holder, error) {
	r, ok := reply.([]any)
	if !ok || len(r) != 5 {
		return Holder{}, badReply(reply)
	}
	fields, ok1 := r[0].(int64)
	ttl, ok2 := r[1].(int64)
	owner, ok3 := r[2].(string)
	holds, ok4 := r[3].(string)
	token, ok5 := r[4].(string)
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 {
		return Holder{}, badReply(reply)
	}
	var info Holder
	_, _ = fmt.Sscanf(token, "%d", &info.Token)
	if fields == 0 {
		return info, nil
	}
	info.Held, info.Owner, info.TTL = true, owner, pttl(ttl)
	// Somebody else's field may hold anything; a number that is none counts 0.
	_, _ = fmt.Sscanf(holds, "%d", &info.Holds)
	return info, nil
}

func badReply(reply any) error {
	return fmt.Errorf("unexpected reply %.200q", fmt.Sprint(reply))
}
