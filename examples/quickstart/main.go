// Command quickstart tells what a lock in Redis is good for, in six short acts:
//
//	go run -C examples ./quickstart
//	go run -C examples ./quickstart -redis redis://localhost:6379/0
//
// It prints who did what and when, and after each act what that proved. It exits
// with 1 when a claim does not hold. Read the acts in their order: shipment.go,
// watchdog.go, busy.go, lease.go, late.go.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/examples/internal/connect"
)

func main() { os.Exit(command(os.Args[1:], os.Stdout, os.Stderr)) }

// command is main with everything that comes from outside as a parameter.
func command(args []string, out, errOut io.Writer) (exitCode int) {
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.SetOutput(errOut)
	redisURL := flags.String("redis", "", "`URL` of a Redis to use instead of an embedded one; keys get a prefix and are removed")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, time.Minute)
	defer cancel()

	rdb, about, stop, err := connect.Redis(ctx, *redisURL)
	if err != nil {
		_, _ = fmt.Fprintln(errOut, "quickstart:", err)
		return 1
	}
	defer stop()
	_, _ = fmt.Fprintln(out, "watchlock quickstart, on", about)
	if err := run(ctx, rdb, out); err != nil {
		_, _ = fmt.Fprintln(errOut, "\nquickstart:", err)
		return 1
	}
	return 0
}

// run tells the whole story on rdb. It returns an error when a claim does not
// hold or Redis fails, and leaves no key behind.
func run(ctx context.Context, rdb *redis.Client, out io.Writer) error {
	return newStory(rdb, out).tell(ctx)
}
