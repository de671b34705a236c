package locktest

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// EachKind runs f as a subtest for each lock kind, as mutexOf names them.
func EachKind(t *testing.T, f func(t *testing.T, kind string)) {
	for _, kind := range []string{"mutex", "fenced", "string"} {
		t.Run(kind, func(t *testing.T) { f(t, kind) })
	}
}

// EachKindInBubble is eachKind on virtual time, each with a server of its own that
// knows all scripts.
func EachKindInBubble(t *testing.T, f func(t *testing.T, v *redistest.Virtual, kind string)) {
	EachKind(t, func(t *testing.T, kind string) {
		InBubble(t, func(t *testing.T, v *redistest.Virtual) {
			LoadAllScripts(t, v)
			f(t, v, kind)
		})
	})
}

// LoadAllScripts gives the server the scripts of all kinds.
func LoadAllScripts(t testing.TB, v *redistest.Virtual) {
	t.Helper()
	raw := v.Client()
	defer raw.Close()
	for _, source := range []string{
		wire.AcquireSource, wire.RenewSource, wire.ReleaseSource, wire.InfoSource, wire.AcquireFencedSource,
		wire.AcquireStringSource, wire.RenewStringSource, wire.ReleaseStringSource,
		wire.RelayScript.Source, wire.RelayFencedScript.Source,
	} {
		if err := raw.ScriptLoad(context.Background(), source).Err(); err != nil {
			t.Fatalf("SCRIPT LOAD: %v", err)
		}
	}
	v.Reset()
}

// StrangersKey makes key a stranger's, in the form of a kind and without an end.
func StrangersKey(v *redistest.Virtual, kind, key string) {
	if kind == "string" {
		_ = v.Mini().Set(key, "stranger:1")
		return
	}
	v.Mini().HSet(key, "stranger:1", "1")
}

// Hook is a caller's hook of two functions; one that is nil does nothing of its own.
type Hook struct {
	One  func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error
	Many func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error
}

// DialHook does nothing of its own.
func (Hook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

// ProcessHook runs One.
func (h Hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	if h.One == nil {
		return next
	}
	return func(ctx context.Context, cmd redis.Cmder) error { return h.One(ctx, cmd, next) }
}

// ProcessPipelineHook runs Many.
func (h Hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	if h.Many == nil {
		return next
	}
	return func(ctx context.Context, cmds []redis.Cmder) error { return h.Many(ctx, cmds, next) }
}

// IsLockCommand leaves out what opens, checks and subscribes connections.
func IsLockCommand(name string) bool {
	return slices.Contains([]string{"EVAL", "EVALSHA", "SET", "DELEX", "GET", "PTTL", "PUBLISH", "SPUBLISH"}, strings.ToUpper(name))
}

// ErrOpen is what an open Breaker returns.
var ErrOpen = errors.New("the circuit breaker is open")

// Breaker is the usual circuit breaker as a hook: while it is open it calls nothing
// and returns an error.
type Breaker struct {
	one, Many atomic.Bool // open for single commands; for pipelines
	Stopped   atomic.Int64
}

// Open opens or shuts it for all.
func (b *Breaker) Open(open bool) {
	b.one.Store(open)
	b.Many.Store(open)
}

// Hook is the breaker as a hook.
func (b *Breaker) Hook() Hook {
	return Hook{
		One: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if b.one.Load() {
				b.Stopped.Add(1)
				return ErrOpen
			}
			return next(ctx, cmd)
		},
		Many: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
			if b.Many.Load() {
				b.Stopped.Add(1)
				return ErrOpen
			}
			return next(ctx, cmds)
		},
	}
}
