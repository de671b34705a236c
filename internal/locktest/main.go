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
		// go-redis waits for none of what listens to sentinels and asks them.
		if err = goleak.Find(goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9.(*sentinelFailover).listen")); err == nil {
			return nil
		}
	}
	return err
}
