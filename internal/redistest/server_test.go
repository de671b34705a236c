package redistest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestServersOfEachFamilyAnswerCountAndMonitor(t *testing.T) {
	NoLeaks(t)
	OnEachFamily(t, func(t *testing.T, s *Server) {
		ctx := t.Context()
		c := s.Client()
		if !strings.HasSuffix(t.Name(), string(s.Family())) {
			t.Errorf("family %s", s.Family())
		}
		before := s.CommandCalls()["incr"]
		stop := s.Monitor()
		const calls = 200
		for range calls {
			if err := c.Eval(ctx, `return redis.call('incr', KEYS[1])`, []string{"n"}).Err(); err != nil {
				t.Fatal(err)
			}
		}
		lines := stop()
		if n := s.CommandCalls()["incr"] - before; n != calls {
			t.Errorf("%d calls of INCR, want %d", n, calls)
		}
		n := 0
		for _, line := range lines {
			if strings.Contains(line, `lua] "incr" "n"`) {
				n++
			}
		}
		if n != calls {
			t.Errorf("monitor shows %d INCRs, want %d", n, calls)
		}
		s.Config("lua-time-limit", "1234")
		got, err := s.Do("CONFIG", "GET", "lua-time-limit")
		if err != nil || !strings.Contains(fmt.Sprint(got), "1234") {
			t.Errorf("CONFIG GET: %v, %v", got, err)
		}
		if _, err := s.Do("DEBUG", "SLEEP", "0"); err != nil {
			t.Errorf("DEBUG: %v", err)
		}
	})
}

func TestStoppedServerKeepsItsConnectionsAndItsClock(t *testing.T) {
	NoLeaks(t)
	for _, opts := range [][]ServerOption{nil, {WithTCP()}} {
		s := Start(t, opts...)
		c := s.Client(once)
		ctx := t.Context()
		if err := c.Set(ctx, "k", 1, 200*time.Millisecond).Err(); err != nil {
			t.Fatal(err)
		}
		s.Stop()
		if err := c.Get(ctx, "k").Err(); !isTimeout(err) {
			t.Errorf("%s: GET of a stopped server: %v", s.Network(), err)
		}
		s.Cont()
		if err := c.Get(ctx, "k").Err(); !errors.Is(err, redis.Nil) {
			t.Errorf("%s: GET after 300 ms: %v, want an expired key", s.Network(), err)
		}
	}
}

func TestRestartedServerHasItsAddressAndWithAOFItsData(t *testing.T) {
	NoLeaks(t)
	for _, test := range []struct {
		name string
		opts []ServerOption
		want string
	}{
		{"without AOF", nil, ""},
		{"with AOF", []ServerOption{WithAOF()}, "v"},
		{"with AOF over TCP", []ServerOption{WithAOF(), WithTCP()}, "v"},
	} {
		s := Start(t, test.opts...)
		c := s.Client()
		ctx := t.Context()
		addr := s.Addr()
		for _, end := range []func(){s.Kill, s.Stop, func() {}} {
			pid := s.Pid()
			if err := c.Set(ctx, "k", "v", 0).Err(); err != nil {
				t.Fatalf("%s: %v", test.name, err)
			}
			end()
			s.Restart()
			if got := c.Get(ctx, "k").Val(); got != test.want {
				t.Errorf("%s: k is %q, want %q", test.name, got, test.want)
			}
			if s.Addr() != addr || s.Pid() == pid {
				t.Errorf("%s: address %s was %s, pid %d was %d", test.name, s.Addr(), addr, s.Pid(), pid)
			}
		}
	}
}

func TestKilledServerRefusesConnections(t *testing.T) {
	s := Start(t, WithArgs("--maxclients", "50"))
	if got, err := s.Do("CONFIG", "GET", "maxclients"); err != nil || !strings.Contains(fmt.Sprint(got), "50") {
		t.Errorf("CONFIG GET: %v, %v", got, err)
	}
	c := s.Client(once)
	s.Kill()
	if err := c.Ping(t.Context()).Err(); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("PING: %v", err)
	}
}

func TestServerAndItsDirectoryAreGoneAfterItsTest(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs a server")
	}
	var pid int
	var dir string
	t.Run("inner", func(t *testing.T) {
		s := Start(t)
		pid, dir = s.Pid(), s.dir
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	})
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d: %v", pid, err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", dir, err)
	}
}

// orphanAddr makes the test below, run again in a process of its own, start a
// server, tell its address and wait to be killed.
const orphanAddr = "REDISTEST_ORPHAN"

func TestServerDiesWithTheProcessThatStartedIt(t *testing.T) {
	if os.Getenv(orphanAddr) != "" {
		fmt.Println(Start(t).Addr())
		select {}
	}
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends a child with its parent")
	}
	Redis70.program(t) // or skip
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), orphanAddr+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	addr := strings.TrimSpace(line)
	if err != nil || !strings.HasSuffix(addr, "/s") {
		t.Fatalf("address %q, %v", line, err)
	}
	defer os.RemoveAll(filepath.Dir(addr))
	eventually(t, "the server is gone", func() bool {
		conn, err := net.Dial("unix", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
}

// fakeTB is a test that can fail without failing the one that runs it.
type fakeTB struct {
	testing.TB
	cleanups []func()
	failed   string
	skipped  string
}

func (f *fakeTB) Helper()                        {}
func (f *fakeTB) Cleanup(c func())               { f.cleanups = append(f.cleanups, c) }
func (f *fakeTB) Errorf(format string, a ...any) { f.failed = fmt.Sprintf(format, a...) }
func (f *fakeTB) Fatalf(format string, a ...any) { f.failed = fmt.Sprintf(format, a...) }
func (f *fakeTB) Skipf(format string, a ...any)  { f.skipped = fmt.Sprintf(format, a...) }

func TestAbsentFamilyIsSkippedButFailsInCI(t *testing.T) {
	t.Setenv(serversDir, t.TempDir())
	t.Setenv("PATH", t.TempDir())
	for _, family := range Families() {
		t.Setenv("CI", "")
		var local, ci fakeTB
		family.program(&local)
		if local.failed != "" || !strings.Contains(local.skipped, "ci/servers.sh") {
			t.Errorf("%s: failed %q, skipped %q", family, local.failed, local.skipped)
		}
		t.Setenv("CI", "true")
		family.program(&ci)
		if ci.skipped != "" || !strings.Contains(ci.failed, "ci/servers.sh") {
			t.Errorf("%s in CI: failed %q, skipped %q", family, ci.failed, ci.skipped)
		}
	}
}

func TestFamiliesAreThoseThatTheEnvironmentNames(t *testing.T) {
	t.Setenv(familiesVariable, "")
	if got := Families(); len(got) != 3 {
		t.Errorf("without it: %v", got)
	}
	t.Setenv(familiesVariable, "redis70,valkey9")
	if got := Families(); !slices.Equal(got, []Family{Redis70, Valkey9}) {
		t.Errorf("two named: %v", got)
	}
	t.Setenv(familiesVariable, "redis70, valkey9")
	defer func() {
		if said := fmt.Sprint(recover()); !strings.Contains(said, `" valkey9"`) {
			t.Errorf("one that there is not: %s", said)
		}
	}()
	Families()
}

func TestProgramComesFromTheServersDirectoryFirst(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(serversDir, dir)
	want := filepath.Join(dir, string(Valkey9))
	if err := os.WriteFile(want, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := Valkey9.program(t); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestNoLeaksNamesTheGoroutineThatIsLeft(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for 3 s")
	}
	var tb fakeTB
	NoLeaks(&tb)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go leftBehind(ctx)
	tb.cleanups[0]()
	if !strings.Contains(tb.failed, "leftBehind") {
		t.Errorf("failure %q", tb.failed)
	}
}

func leftBehind(ctx context.Context) { <-ctx.Done() }
