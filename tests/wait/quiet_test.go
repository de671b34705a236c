package wait_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// quietVariable makes this test's child do the work: go-redis logs to the standard
// error that a process began with.
const quietVariable = "WATCHLOCK_TEST_QUIET"

func TestTwoClientsOnOneRedisClientHaveHandlersOfTheirOwn(t *testing.T) {
	if addr := os.Getenv(quietVariable); addr != "" {
		rdb := redis.NewClient(&redis.Options{Addr: addr}) // its options as they come
		defer rdb.Close()
		for range 2 {
			c := locktest.NewTestClient(t, rdb)
			locktest.MustUnlock(t, locktest.MustLock(t, c.NewMutex("n")))
		}
		return
	}
	s := redistest.Start(t, redistest.WithTCP())
	child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1")
	child.Env = append(os.Environ(), quietVariable+"="+s.Addr())
	child.Stdout = nil
	var said limitedText
	child.Stderr = &said
	if err := child.Run(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	if strings.Contains(string(said), "handler") {
		t.Errorf("go-redis said %s", said)
	}
}

// limitedText keeps the first of what is written.
type limitedText []byte

func (l *limitedText) Write(p []byte) (int, error) {
	*l = append(*l, p[:min(len(p), 4096-min(len(*l), 4096))]...)
	return len(p), nil
}
