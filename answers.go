package watchlock

import (
	"fmt"
	"time"
)

// This file reads what scripts answer.

// grant is the answer to an acquire.
type grant struct {
	taken bool
	token int64         // of a fenced lock that was taken
	last  int64         // token reserved with it
	ttl   time.Duration // of the holder's lease else: negative when it has no end
}

// readAcquire reads the answer of an acquire script.
func readAcquire(r []int64) (grant, error) {
	switch {
	case len(r) == 0:
	case r[0] == 1 && len(r) == 1:
		return grant{taken: true}, nil
	case r[0] == 1 && len(r) == 3:
		if token, last := r[1], r[2]; token <= last { //nolint:gosec // there are three
			return grant{taken: true, token: token, last: last}, nil
		}
	case r[0] == 0 && len(r) == 2:
		return grant{ttl: pttl(r[1])}, nil
	}
	return grant{}, badReply(r)
}

// maxDuration is the longest lease.
const maxDuration = 100 * 365 * 24 * time.Hour

// pttl is a PTTL as a duration: negative without an end, and no more than the
// longest lease, since others may have set one that no duration can hold.
func pttl(ms int64) time.Duration {
	return time.Duration(min(max(ms, -1), maxDuration.Milliseconds())) * time.Millisecond
}

// readRelay reads the answer of a relay script: tried says that it took the lock for
// the next owner, or found that it could not.
func readRelay(r []int64) (a answers, g grant, tried bool, err error) {
	if len(r) < 2 {
		return nil, grant{}, false, badReply(r)
	}
	if a, err = readRelease(r[:2], 1); err != nil || len(r) == 2 {
		return a, grant{}, false, err
	}
	g, err = readAcquire(r[2:])
	return a, g, true, err
}

// verdict is what Redis says of one renewed lock.
type verdict int

const (
	kept    verdict = 1
	notMine verdict = 0
	unseen  verdict = -1
)

// readRenew returns a verdict for each of n locks.
func readRenew(r []int64, n int) ([]verdict, error) {
	if len(r) != n {
		return nil, badReply(r)
	}
	verdicts := make([]verdict, n)
	for i := range verdicts {
		if verdicts[i] = verdict(r[i]); verdicts[i] < unseen || verdicts[i] > kept {
			return nil, badReply(r)
		}
	}
	return verdicts, nil
}

// answers are those to a release: for each lock, whether it was its owner's until
// now, and how many were told.
type answers []int64

func (a answers) mine(i int) bool { return a[2*i] == 1 }

// told is 0 when nobody could be told.
func (a answers) told(i int) int { return int(max(a[2*i+1], 0)) }

// readRelease reads the answer about each of n locks.
func readRelease(r []int64, n int) (answers, error) {
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

// holder is who holds a lock, as Redis says.
type holder struct {
	Held  bool
	Owner string
	Holds int
	TTL   time.Duration // negative when the key has no end
	Token int64         // the counter of a fenced lock
}

// readInfo reads the answer of info.lua.
func readInfo(reply any) (holder, error) {
	r, ok := reply.([]any)
	if !ok || len(r) != 5 {
		return holder{}, badReply(reply)
	}
	fields, ok1 := r[0].(int64)
	ttl, ok2 := r[1].(int64)
	owner, ok3 := r[2].(string)
	holds, ok4 := r[3].(string)
	token, ok5 := r[4].(string)
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 {
		return holder{}, badReply(reply)
	}
	var info holder
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
