package locktest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main runs the tests of a package, and fails when goroutines are left after all of them.
func Main(m *testing.M) {
	code := m.Run()
	if err := leaks(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, "locktest: goroutines are left:", err)
		code = 1
	}
	os.Exit(code)
}

// leaks waits for goroutines that are on their way out.
func leaks() (err error) {
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); {
		if err = goleak.Find(notOurs()...); err == nil {
			return nil
		}
	}
	return err
}

// notOurs are goroutines of go-redis's that listen to sentinels, and that a closed
// FailoverClusterClient leaves behind. The library has no Channel of a PubSub itself.
func notOurs() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9.(*sentinelFailover).listen"),
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9.(*channel).initHealthCheck.func1"),
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9.(*channel).initMsgChan.func1"),
	}
}
