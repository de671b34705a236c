package interop

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/interop/porting"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// portingPatience is how long a step may take that needs no waiting.
const portingPatience = 20 * time.Second

// portingSide is one of those who run the idioms of the guide: Go, or Kotlin on
// one version of Redisson.
type portingSide struct {
	name  string
	start func(client, idiom, lock string) *portingCall
}

func (s portingSide) isGo() bool { return s.name == "Go" }

// by is what this side is expected to do.
func by[T any](s portingSide, kotlin, inGo T) T {
	if s.isGo() {
		return inGo
	}
	return kotlin
}

// portingCall is one idiom under way. Its job waits in the middle until end is called.
type portingCall struct {
	inside      chan string   // has what the job was given, once for each run of the job
	over        chan string   // has the outcome: done, busy, or what went wrong
	interrupted chan string   // has an entry once the thread is interrupted
	goOn        chan struct{} // closed by end, on the Go side
	end         func()
	interrupt   func() // the thread, when it sleeps, or the context
}

func newPortingCall() *portingCall {
	return &portingCall{
		inside: make(chan string, 10), over: make(chan string, 1), interrupted: make(chan string, 1), goOn: make(chan struct{}),
	}
}

func (c *portingCall) insideIn(t *testing.T) string {
	t.Helper()
	return portingNext(t, c.inside, "inside")
}

func (c *portingCall) outcomeIn(t *testing.T) string {
	t.Helper()
	return portingNext(t, c.over, "over")
}

func portingNext(t *testing.T, from <-chan string, what string) string {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(portingPatience):
		t.Fatalf("not %s after %v", what, portingPatience)
		return ""
	}
}

// portingSides starts all sides on one server.
func portingSides(t *testing.T, s *redistest.Server) []portingSide {
	t.Helper()
	sides := []portingSide{portingGo(t, s)}
	for _, version := range redissons() {
		sides = append(sides, portingKotlin(t, s, version))
	}
	return sides
}

func portingGo(t *testing.T, s *redistest.Server) portingSide {
	t.Helper()
	rdb, plain, err := porting.Connect(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	shop, err := porting.ConnectAsShop(rdb)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(plain.Close(), shop.Close(), rdb.Close()); err != nil {
			t.Error(err)
		}
	})
	return portingSide{"Go", func(client, idiom, lock string) *portingCall {
		ctx, cancel := context.WithCancel(context.Background())
		c := newPortingCall()
		c.interrupt = func() {
			cancel()
			c.interrupted <- ""
		}
		c.end = sync.OnceFunc(func() { close(c.goOn) })
		go func() {
			defer cancel()
			c.over <- portingRun(ctx, map[string]*watchlock.Client{"plain": plain, "shop": shop}[client], idiom, lock, c)
		}()
		return c
	}}
}

// portingRun runs one idiom in Go and says how it ended.
func portingRun(ctx context.Context, client *watchlock.Client, idiom, lock string, c *portingCall) string {
	say := func(value any) error {
		c.inside <- fmt.Sprint(value)
		<-c.goOn
		return nil
	}
	job := func(context.Context) error { return say("") }
	m, fenced := client.NewMutex(lock), client.NewFencedMutex(lock)
	numbered := func(_ context.Context, n int64) error { return say(n) }
	answer, err := "done", error(nil)
	switch idiom {
	case "order":
		err = porting.Ship(ctx, client, strings.TrimPrefix(lock, "lock:order:"), job)
	case "order-byHand":
		err = porting.ShipByHand(ctx, client, strings.TrimPrefix(lock, "lock:order:"), job)
	case "lock":
		err = porting.RunLocked(ctx, m, job)
	case "lock-byHand":
		err = porting.RunLockedByHand(ctx, m, job)
	case "lease":
		err = porting.RunForTenSeconds(ctx, client, lock, job)
	case "try-now":
		err = porting.RunIfFree(ctx, m, job)
	case "try-lease":
		err = porting.RunSoonAndBriefly(ctx, m, job)
	case "reentry":
		err = porting.Cancel(ctx, client, lock, job)
	case "reentry-byHand":
		err = porting.LockTwice(ctx, m, job)
	case "guard":
		err = porting.SendAll(ctx, m, []string{"A", "B"}, func(parcel string) error { return say(parcel) })
	case "info":
		answer, err = porting.Describe(ctx, m)
	case "force":
		var broken bool
		broken, err = porting.BreakOpen(ctx, m)
		answer = fmt.Sprint(broken)
	case "fenced":
		err = porting.Write(ctx, fenced, numbered)
	case "interrupt":
		err = porting.WaitUntilCancelled(ctx, m, job)
	case "coroutine":
		err = porting.RunAnywhere(ctx, m, job)
	case "shortInLong":
		err = porting.ShortInLong(ctx, m, job)
	case "fencedLease":
		err = porting.FencedLease(ctx, fenced, numbered)
	case "fencedReentry":
		err = porting.FencedReentry(ctx, fenced, numbered)
	case "unlockTwice":
		err = porting.UnlockTwice(ctx, m, job)
	case "unlockOnAnotherThread":
		err = porting.UnlockOnAnotherThread(ctx, m, job)
	case "lockOnAnotherThread":
		err = porting.LockOnAnotherThread(ctx, m, func(_ context.Context, got bool) error { return say(got) })
	default:
		return "no idiom " + idiom
	}
	for outcome, is := range map[string]error{
		"busy": watchlock.ErrNotAcquired, "lost": watchlock.ErrLost, "not held": watchlock.ErrNotHeld, "cancelled": context.Canceled,
	} {
		if errors.Is(err, is) {
			return outcome
		}
	}
	if err != nil {
		return err.Error()
	}
	return answer
}

// portingKotlin starts the Kotlin side on a JVM of its own.
func portingKotlin(t *testing.T, s *redistest.Server, version string) portingSide {
	t.Helper()
	dir := peerDir(t, "porting-"+version)
	cmd := exec.Command("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m",
		"-cp", filepath.Join(dir, "peer.jar")+":"+filepath.Join(dir, "lib", "*"), "porting.MainKt", s.Addr())
	var log strings.Builder
	cmd.Stderr = &log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	j := &portingJVM{stdin: stdin, calls: make(map[string]*portingCall), ready: make(chan string, 1)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		j.read(stdout)
	}()
	t.Cleanup(func() {
		stdin.Close() // which ends the program
		timer := time.AfterFunc(portingPatience, func() { cmd.Process.Kill() })
		defer timer.Stop()
		<-read
		if err := cmd.Wait(); err != nil {
			t.Errorf("the JVM with Redisson %s: %v", version, err)
		}
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, "nameMapper setting is deprecated") {
				continue // since 4.0 it has another place, which 3.52 does not have
			}
			if strings.Contains(line, "WARN") || strings.Contains(line, "ERROR") || strings.Contains(line, "SEVERE") || strings.Contains(line, "xception") {
				t.Errorf("Redisson %s logged: %s", version, line)
			}
		}
		if t.Failed() {
			t.Logf("Redisson %s:\n%s", version, log.String())
		}
	})
	if got := portingNext(t, j.ready, "ready"); got != "ready" {
		t.Fatalf("the JVM with Redisson %s says %q:\n%s", version, got, log.String())
	}
	return portingSide{"Redisson " + version, j.start}
}

// portingJVM is the conversation with one JVM.
type portingJVM struct {
	ready chan string

	mu    sync.Mutex
	stdin io.Writer
	calls map[string]*portingCall
}

func (j *portingJVM) order(words ...string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	_, _ = fmt.Fprintln(j.stdin, strings.Join(words, " ")) // a JVM that died says nothing any more, which the test notices
}

func (j *portingJVM) start(client, idiom, lock string) *portingCall {
	c := newPortingCall()
	j.mu.Lock()
	number := fmt.Sprint(len(j.calls) + 1)
	j.calls[number] = c
	j.mu.Unlock()
	c.end = sync.OnceFunc(func() { j.order("end", number) })
	c.interrupt = func() { j.order("interrupt", number) }
	j.order("start", number, client, idiom, lock)
	return c
}

// read delivers what the JVM says to whom it concerns.
func (j *portingJVM) read(stdout io.Reader) {
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		number, value, _ := strings.Cut(rest, " ")
		j.mu.Lock()
		c := j.calls[number]
		j.mu.Unlock()
		switch {
		case c != nil && word == "inside":
			c.inside <- value
		case c != nil && word == "interrupted":
			c.interrupted <- value
		case c != nil && word == "over":
			c.over <- value
		default:
			select {
			case j.ready <- lines.Text():
			default:
			}
		}
	}
	close(j.ready)
}
