package otel

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/extra/redisotel/v9"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// traced is a client of rdb whose commands all have spans, and where they are kept.
func traced(t *testing.T, rdb redis.UniversalClient) (*watchlock.Client, *tracetest.SpanRecorder) {
	t.Helper()
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	if err := redisotel.InstrumentTracing(rdb, redisotel.WithTracerProvider(provider)); err != nil {
		t.Fatal(err)
	}
	c, err := watchlock.New(rdb, watchlock.WithWatchdogTimeout(300*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, spans
}

// statements are the lock commands in the spans, pipelines command by command.
func statements(spans *tracetest.SpanRecorder) (found []string) {
	for _, s := range spans.Ended() {
		for _, a := range s.Attributes() {
			if a.Key != attribute.Key("db.statement") && a.Key != attribute.Key("db.query.text") {
				continue
			}
			for line := range strings.Lines(a.Value.AsString()) {
				name, _, _ := strings.Cut(line, " ")
				if slices.Contains([]string{"eval", "evalsha", "set", "delex", "get", "pttl"}, strings.ToLower(strings.TrimSpace(name))) {
					found = append(found, strings.TrimSpace(line))
				}
			}
		}
	}
	return found
}

func TestEachCommandOfALockHasASpan(t *testing.T) {
	for _, family := range redistest.Families() {
		for kind, lock := range map[string]func(c *watchlock.Client) func(context.Context, ...watchlock.LockOption) (func() error, error){
			"mutex":  func(c *watchlock.Client) lockFunc { return of(c.NewMutex("k")) },
			"string": func(c *watchlock.Client) lockFunc { return of(c.NewSetNXMutex("k")) },
		} {
			t.Run(fmt.Sprintf("%s/%s", family, kind), func(t *testing.T) {
				s := redistest.Start(t, redistest.On(family))
				c, spans := traced(t, s.Client())
				ctx := context.Background()
				unlock, err := lock(c)(ctx) // learns what the server can, and gives it its scripts
				if err != nil {
					t.Fatal(err)
				}
				<-time.After(150 * time.Millisecond)
				if err := unlock(); err != nil {
					t.Fatal(err)
				}
				spans.Reset()
				if _, err := s.Do("CONFIG", "RESETSTAT"); err != nil {
					t.Fatal(err)
				}

				if unlock, err = lock(c)(ctx); err != nil {
					t.Fatal(err)
				}
				acquired := len(statements(spans))
				<-time.After(500 * time.Millisecond) // renewed each 100 ms
				renewed := len(statements(spans))
				if err := unlock(); err != nil {
					t.Fatal(err)
				}
				released := len(statements(spans))
				if acquired == 0 || renewed < acquired+3 || released <= renewed {
					t.Errorf("%d spans after the acquire, %d after 500 ms of renewals, %d after the release: %q",
						acquired, renewed, released, statements(spans))
				}
				// What scripts call is counted too, so only what runs on its own is compared.
				calls := s.CommandCalls()
				if came := calls["evalsha"] + calls["eval"] + calls["delex"]; came > released {
					t.Errorf("%d commands came, %d spans", came, released)
				}
			})
		}
	}
}

// lockFunc takes a lock and returns what gives it back.
type lockFunc = func(context.Context, ...watchlock.LockOption) (func() error, error)

func of(m *watchlock.Mutex) lockFunc {
	return func(ctx context.Context, opts ...watchlock.LockOption) (func() error, error) {
		l, err := m.Lock(ctx, opts...)
		return func() error { return l.Unlock(context.WithoutCancel(ctx)) }, err
	}
}

func TestTheSpanOfALoneCommandIsAChildOfTheCallers(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client()
	c, spans := traced(t, rdb)
	if err := rdb.Ping(context.Background()).Err(); err != nil {
		t.Fatal(err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	ctx, parent := provider.Tracer("caller").Start(context.Background(), "request")
	l, err := c.NewMutex("k").Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(ctx); err != nil {
		t.Fatal(err)
	}
	parent.End()
	children := 0
	for _, span := range spans.Ended() {
		if span.Parent().SpanID() == parent.SpanContext().SpanID() {
			children++
		}
	}
	if children < 2 {
		t.Errorf("%d spans of an acquire and a release are children of the caller's", children)
	}
}
