// Command longjob is a job in steps, as cron would start it on several machines:
// one of them does it, and stops when it has lost the lock.
//
//	go run -C examples ./longjob
//	go run -C examples ./longjob -redis redis://localhost:6379/0 -steps 20
//
// Start it twice on one Redis: the second says that it is busy. Delete the key
// lock:longjob while it runs: within a third of the watchdog timeout the job
// hears that its lock is gone, and begins no further step. The exit code tells:
//
//	0  all steps are done
//	1  it could not run, or a step failed
//	2  the flags are wrong
//	3  the lock was lost: steps are left to do
//	4  somebody else is at it
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/examples/internal/connect"
)

// The exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
	exitLost   = 3
	exitBusy   = 4
)

const lockName = "lock:longjob"

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	cancel()
	os.Exit(code)
}

// command is main with everything that comes from outside as a parameter.
func command(ctx context.Context, args []string, out, errOut io.Writer) (exitCode int) {
	flags := flag.NewFlagSet("longjob", flag.ContinueOnError)
	flags.SetOutput(errOut)
	redisURL := flags.String("redis", "", "`URL` of a Redis; without it the job has an embedded one for itself")
	steps := flags.Int("steps", 5, "`number` of steps")
	pause := flags.Duration("step", 500*time.Millisecond, "how long each step takes")
	watchdog := flags.Duration("watchdog", 30*time.Second, "the lock's TTL, renewed every third of it")
	if err := flags.Parse(args); err != nil {
		return exitUsage
	}
	rdb, about, stop, err := connect.Redis(ctx, *redisURL)
	if err != nil {
		_, _ = fmt.Fprintln(errOut, "longjob:", err)
		return exitFailed
	}
	defer stop()
	client, err := watchlock.New(rdb, watchlock.WithWatchdogTimeout(*watchdog))
	if err != nil {
		_, _ = fmt.Fprintln(errOut, "longjob:", err)
		return exitUsage
	}
	defer client.Close()

	_, _ = fmt.Fprintln(out, "longjob, on", about)
	j := job{steps: *steps, pause: *pause, out: out}
	err = j.run(ctx, client.NewMutex(lockName))
	if err != nil {
		_, _ = fmt.Fprintln(errOut, "longjob:", err)
	}
	return codeOf(err)
}

// codeOf turns the job's error into what a script that started it can act on.
func codeOf(err error) int {
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, watchlock.ErrLost):
		return exitLost
	case errors.Is(err, watchlock.ErrNotAcquired):
		return exitBusy
	}
	return exitFailed
}

// job is the work, in steps none of which can be undone.
type job struct {
	steps int
	pause time.Duration
	out   io.Writer

	done int // steps
}

// run does the steps under the lock, or nothing when somebody else has it: the
// wait is 0, since a second run of this job has nothing to wait for.
func (j *job) run(ctx context.Context, lock *watchlock.Mutex) error {
	return lock.TryDo(ctx, 0, func(ctx context.Context) error {
		for j.done < j.steps {
			// ctx ends when the lock is lost. Its Err reads the clock, so it is
			// right even if this process has just been stopped for a minute. Ask
			// it last thing before what cannot be undone.
			if ctx.Err() != nil {
				return fmt.Errorf("stopped after %d of %d steps: %w", j.done, j.steps, context.Cause(ctx))
			}
			j.step()
			// What can be broken off is given ctx, and ends with the lock.
			select {
			case <-time.After(j.pause):
			case <-ctx.Done():
			}
		}
		return nil
	})
}

// step does what cannot be undone.
func (j *job) step() {
	j.done++
	_, _ = fmt.Fprintf(j.out, "step %d of %d\n", j.done, j.steps)
}
