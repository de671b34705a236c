package hooks_test

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// around is a hook that does the same to a command and to a pipeline.
func around(f func(ctx context.Context, cmds []redis.Cmder, next func() error) error) locktest.Hook {
	return locktest.Hook{
		One: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			return f(ctx, []redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
		},
		Many: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
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

func (s *sightings) hook() locktest.Hook {
	return locktest.Hook{
		One: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			s.note(false, cmd)
			return next(ctx, cmd)
		},
		Many: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
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
		if !locktest.IsLockCommand(c.Name) {
			continue
		}
		text := c.String()
		if left[text]--; left[text] < 0 {
			missed = append(missed, text)
		}
	}
	for text, n := range left {
		if name, _, _ := strings.Cut(text, " "); n > 0 && locktest.IsLockCommand(name) {
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

// prefix is a hook that puts text before each key, in place.
func prefix(text string) locktest.Hook {
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
