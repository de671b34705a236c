package watchlock

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed lua/acquire.lua
	acquireSource string
	//go:embed lua/renew.lua
	renewSource string
	//go:embed lua/release.lua
	releaseSource string
	//go:embed lua/info.lua
	infoSource string

	acquireScript = newScript(acquireSource)
	renewScript   = newScript(renewSource)
	releaseScript = newScript(releaseSource)
	infoScript    = newScript(infoSource)
)

// script is a Lua program and the name Redis gives it.
type script struct{ source, sha string }

func newScript(source string) *script {
	sum := sha1.Sum([]byte(source)) //nolint:gosec // as above
	return &script{source, hex.EncodeToString(sum[:])}
}

// call is one run of a script: what leaves, and to which slot.
type call struct {
	script *script
	keys   []string
	args   []any
}

// command is a call on its way. go-redis sends it once: it may not run twice
// without its owner knowing.
type command struct{ *redis.Cmd }

// NoRetry tells go-redis not to send the command again.
func (command) NoRetry() bool { return true }

// command builds the wire form: EVALSHA, or EVAL with the whole source.
func (c *call) command(ctx context.Context, whole bool) command {
	args := make([]any, 0, 3+len(c.keys)+len(c.args))
	if whole {
		args = append(args, "eval", c.script.source)
	} else {
		args = append(args, "evalsha", c.script.sha)
	}
	args = append(args, len(c.keys))
	for _, k := range c.keys {
		args = append(args, k)
	}
	args = append(args, c.args...)
	cmd := redis.NewCmd(ctx, args...)
	cmd.SetFirstKeyPos(3)
	return command{cmd}
}

// ownedKey is a lock and the owner that a script may act for.
type ownedKey struct {
	keys  lockKeys
	owner string
	lease time.Duration // renew: the TTL to have; 0 only looks
}

// acquireHash takes a lock that is a hash with one field.
func acquireHash(k ownedKey, before []string) call {
	args := make([]any, 0, 2+len(before))
	args = append(args, k.lease.Milliseconds(), k.owner)
	for _, b := range before {
		args = append(args, b)
	}
	return call{acquireScript, []string{k.keys.key}, args}
}

// readAcquire tells whether an acquire was granted, and else how long the
// holder's lease runs: negative when it has no end.
func readAcquire(reply any) (granted bool, ttl time.Duration, err error) {
	r, err := integers(reply, 1)
	if err != nil {
		return false, 0, err
	}
	if r[0] == 1 {
		return true, 0, nil
	}
	if r[0] != 0 || len(r) < 2 {
		return false, 0, badReply(reply)
	}
	return false, pttl(r[1]), nil
}

// pttl is a PTTL as a duration: negative without an end, and no more than the
// longest lease, since others may have set one that no duration can hold.
func pttl(ms int64) time.Duration {
	return time.Duration(min(max(ms, -1), maxDuration.Milliseconds())) * time.Millisecond
}

func renewHash(ks []ownedKey) call {
	return ownedCall(renewScript, ks, func(k ownedKey) any { return k.lease.Milliseconds() })
}

func releaseHash(ks []ownedKey) call {
	return ownedCall(releaseScript, ks, func(k ownedKey) any { return k.keys.channel })
}

// ownedCall pairs each key with its owner and one more argument.
func ownedCall(s *script, ks []ownedKey, more func(ownedKey) any) call {
	c := call{s, make([]string, 0, len(ks)), make([]any, 0, 2*len(ks))}
	for _, k := range ks {
		c.keys = append(c.keys, k.keys.key)
		c.args = append(c.args, k.owner, more(k))
	}
	return c
}

// verdict is what Redis says of one renewed lock.
type verdict int

const (
	kept    verdict = 1
	notMine verdict = 0
	unseen  verdict = -1
)

// readRenew returns a verdict for each of n locks.
func readRenew(reply any, n int) ([]verdict, error) {
	r, err := integers(reply, n)
	if err != nil {
		return nil, err
	}
	verdicts := make([]verdict, n)
	for i := range verdicts {
		if verdicts[i] = verdict(r[i]); verdicts[i] < unseen || verdicts[i] > kept {
			return nil, badReply(reply)
		}
	}
	return verdicts, nil
}

// readRelease tells for each of n locks whether it was its owner's until now.
func readRelease(reply any, n int) ([]bool, error) {
	r, err := integers(reply, 2*n)
	if err != nil {
		return nil, err
	}
	freed := make([]bool, n)
	for i := range freed {
		if freed[i] = r[2*i] == 1; !freed[i] && r[2*i] != 0 {
			return nil, badReply(reply)
		}
	}
	return freed, nil
}

func infoHash(k lockKeys) call {
	return call{infoScript, []string{k.key}, nil}
}

// readInfo reads the answer of info.lua.
func readInfo(reply any) (LockInfo, error) {
	r, ok := reply.([]any)
	if !ok || len(r) != 4 {
		return LockInfo{}, badReply(reply)
	}
	fields, ok1 := r[0].(int64)
	ttl, ok2 := r[1].(int64)
	owner, ok3 := r[2].(string)
	holds, ok4 := r[3].(string)
	if !ok1 || !ok2 || !ok3 || !ok4 {
		return LockInfo{}, badReply(reply)
	}
	if fields == 0 {
		return LockInfo{}, nil
	}
	info := LockInfo{Held: true, Owner: owner, TTL: pttl(ttl)}
	// Somebody else's field may hold anything; a number that is none counts 0.
	_, _ = fmt.Sscanf(holds, "%d", &info.Holds)
	return info, nil
}

// integers reads a reply of at least n integers.
func integers(reply any, n int) ([]int64, error) {
	raw, ok := reply.([]any)
	if !ok || len(raw) < n {
		return nil, badReply(reply)
	}
	r := make([]int64, len(raw))
	for i, v := range raw {
		if r[i], ok = v.(int64); !ok {
			return nil, badReply(reply)
		}
	}
	return r, nil
}

func badReply(reply any) error {
	return fmt.Errorf("unexpected reply %.200q", fmt.Sprint(reply))
}

// fate is what is known of a call after it.
type fate int

const (
	replied fate = iota // it ran, and this is its reply
	refused             // the server's answer is no, and will stay no
	later               // the server's answer is not now; the call changed nothing
	unsent              // there was no connection; the call never left
	unknown             // it may have run, may run yet, or never will
)

// saysLater reports whether the first word of an error reply says: try again.
func saysLater(code string) bool {
	switch code {
	case "LOADING", "BUSY", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "MASTERDOWN",
		"MISCONF", "OOM", "NOREPLICAS", "MOVED", "ASK":
		return true
	}
	return false
}

// judge classifies the error of a call, and words it for the caller.
func judge(err error) (fate, error) {
	var reply redis.Error
	switch {
	case err == nil:
		return replied, nil
	case errors.As(err, &reply):
		return judgeReply(reply)
	case errors.Is(err, redis.ErrClosed):
		return refused, err
	case neverSent(err):
		return unsent, unavailable(err)
	}
	return unknown, unavailable(err)
}

func judgeReply(err redis.Error) (fate, error) {
	text := err.Error()
	code, rest, _ := strings.Cut(text, " ")
	switch {
	case code == "WRONGTYPE":
		return refused, fmt.Errorf("%w: %w", ErrWrongType, err)
	case saysLater(code), code == "ERR" && strings.HasPrefix(rest, "max number of clients"):
		return later, unavailable(err)
	}
	return refused, err
}

func isNoScript(err error) bool { return redis.HasErrorPrefix(err, "NOSCRIPT") }
