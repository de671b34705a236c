package interop

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// holderEnv makes this program hold a lock instead of running tests.
const holderEnv = "WATCHLOCK_HOLDER"

// holder is a process that holds a lock until it is killed.
type holder struct{ process *os.Process }

// startHolder returns once another process of this program holds the lock
// called name with that watchdog timeout.
func startHolder(t testing.TB, s *redistest.Server, name string, watchdog time.Duration) *holder {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), holderEnv+"="+s.Addr()+" "+name+" "+watchdog.String())
	cmd.Stderr = os.Stderr
	if _, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if said, err := bufio.NewReader(out).ReadString('\n'); said != "held\n" {
		t.Fatalf("the holder said %q, %v", said, err)
	}
	return &holder{process: cmd.Process}
}

// kill ends the process with SIGKILL.
func (h *holder) kill() { _ = h.process.Signal(syscall.SIGKILL) }

// holdUntilKilled is what a holder does. It ends with its stdin, too.
func holdUntilKilled() {
	var addr, name, timeout string
	if _, err := fmt.Sscan(os.Getenv(holderEnv), &addr, &name, &timeout); err != nil {
		panic(err)
	}
	watchdog, err := time.ParseDuration(timeout)
	if err != nil {
		panic(err)
	}
	c, err := watchlock.New(redis.NewClient(&redis.Options{Addr: addr}), watchlock.WithWatchdogTimeout(watchdog))
	if err != nil {
		panic(err)
	}
	lease, err := c.NewMutex(name).Lock(context.Background())
	if err != nil {
		panic(err)
	}
	fmt.Println("held")
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = lease.Unlock(context.Background())
}
