package watchlock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// eachKind runs f as a subtest for each lock kind, as mutexOf names them.
func eachKind(t *testing.T, f func(t *testing.T, kind string)) {
	for _, kind := range []string{"mutex", "fenced", "string"} {
		t.Run(kind, func(t *testing.T) { f(t, kind) })
	}
}

// eachKindInBubble is eachKind on virtual time, each with a server of its own that
// knows all scripts.
func eachKindInBubble(t *testing.T, f func(t *testing.T, v *redistest.Virtual, kind string)) {
	eachKind(t, func(t *testing.T, kind string) {
		inBubble(t, func(t *testing.T, v *redistest.Virtual) {
			loadAllScripts(t, v)
			f(t, v, kind)
		})
	})
}

// loadAllScripts gives the server the scripts of all kinds.
func loadAllScripts(t testing.TB, v *redistest.Virtual) {
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

// strangersKey makes key a stranger's, in the form of a kind and without an end.
func strangersKey(v *redistest.Virtual, kind, key string) {
	if kind == "string" {
		_ = v.Mini().Set(key, "stranger:1")
		return
	}
	v.Mini().HSet(key, "stranger:1", "1")
}

// hook is a caller's hook of two functions; one that is nil does nothing of its own.
type hook struct {
	one  func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error
	many func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error
}

func (hook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	if h.one == nil {
		return next
	}
	return func(ctx context.Context, cmd redis.Cmder) error { return h.one(ctx, cmd, next) }
}

func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	if h.many == nil {
		return next
	}
	return func(ctx context.Context, cmds []redis.Cmder) error { return h.many(ctx, cmds, next) }
}

// around is a hook that does the same to a command and to a pipeline.
func around(f func(ctx context.Context, cmds []redis.Cmder, next func() error) error) hook {
	return hook{
		one: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			return f(ctx, []redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
		},
		many: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
			return f(ctx, cmds, func() error { return next(ctx, cmds) })
		},
	}
}

// sightings is what a hook has seen, as tracing does.
type sightings struct {
	mu               sync.Mutex
	seen             map[string]int
	alone, pipelines int
}

func (s *sightings) hook() hook {
	return hook{
		one: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			s.note(false, cmd)
			return next(ctx, cmd)
		},
		many: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
			s.note(true, cmds...)
			return next(ctx, cmds)
		},
	}
}

func (s *sightings) note(pipeline bool, cmds ...redis.Cmder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = map[string]int{}
	}
	if pipeline {
		s.pipelines++
	} else {
		s.alone++
	}
	for _, cmd := range cmds {
		s.seen[textOf(cmd)]++
	}
}

// differs returns the lock commands of a server's list that were seen less often
// than they came, and those that were seen more often.
func (s *sightings) differs(came []redistest.Command) (missed, twice []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := map[string]int{}
	for text, n := range s.seen {
		left[text] = n
	}
	for _, c := range came {
		if !isLockCommand(c.Name) {
			continue
		}
		text := c.String()
		if left[text]--; left[text] < 0 {
			missed = append(missed, text)
		}
	}
	for text, n := range left {
		if name, _, _ := strings.Cut(text, " "); n > 0 && isLockCommand(name) {
			twice = append(twice, text)
		}
	}
	return missed, twice
}

func (s *sightings) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = nil
}

func (s *sightings) counts() (alone, pipelines int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.alone, s.pipelines
}

// textOf is a command as redistest.Command prints it.
func textOf(cmd redis.Cmder) string {
	words := make([]string, 0, len(cmd.Args()))
	for _, arg := range cmd.Args() {
		words = append(words, fmt.Sprint(arg))
	}
	words[0] = strings.ToUpper(words[0])
	return strings.Join(words, " ")
}

// isLockCommand leaves out what opens, checks and subscribes connections.
func isLockCommand(name string) bool {
	return slices.Contains([]string{"EVAL", "EVALSHA", "SET", "DELEX", "GET", "PTTL", "PUBLISH", "SPUBLISH"}, strings.ToUpper(name))
}

var errOpen = errors.New("the circuit breaker is open")

// breaker is the usual circuit breaker as a hook: while it is open it calls nothing
// and returns an error.
type breaker struct {
	one, many atomic.Bool // open for single commands; for pipelines
	stopped   atomic.Int64
}

func (b *breaker) open(open bool) {
	b.one.Store(open)
	b.many.Store(open)
}

func (b *breaker) hook() hook {
	return hook{
		one: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if b.one.Load() {
				b.stopped.Add(1)
				return errOpen
			}
			return next(ctx, cmd)
		},
		many: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
			if b.many.Load() {
				b.stopped.Add(1)
				return errOpen
			}
			return next(ctx, cmds)
		},
	}
}

// prefix is a hook that puts text before each key, in place.
func prefix(text string) hook {
	return around(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		for _, cmd := range cmds {
			args := cmd.Args()
			first, n := 1, 1
			switch strings.ToUpper(fmt.Sprint(args[0])) {
			case "EVAL", "EVALSHA":
				first = 3
				_, _ = fmt.Sscan(fmt.Sprint(args[2]), &n)
			case "SET", "DELEX", "GET", "PTTL", "DEL", "EXISTS":
			default:
				continue
			}
			for i := first; i < first+n; i++ {
				args[i] = text + fmt.Sprint(args[i])
			}
		}
		return next()
	})
}
