package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	startTimeout = 10 * time.Second // for a server to answer, or to end by itself
	adminTimeout = 5 * time.Second
	portAttempts = 10
)

// Server is a real server that runs as a child process in a directory of its
// own. Its methods are for the goroutine of the test, except Client, Do and
// what only reads.
type Server struct {
	t       testing.TB
	family  Family
	program string
	dir     string
	tcp     bool
	aof     bool
	extra   []string
	env     []string

	busPort string // of a cluster's node
	conf    string // of a sentinel: the file in which it keeps what it knows
	stopped bool   // by Stop

	addr  string // a socket's path, or host:port
	proc  *process
	admin *redis.Client
}

// ServerOption changes what Start does.
type ServerOption func(*Server)

// On chooses the family; the default is Redis70.
func On(family Family) ServerOption { return func(s *Server) { s.family = family } }

// WithTCP makes the server listen on a free port of 127.0.0.1 instead of a
// unix socket.
func WithTCP() ServerOption { return func(s *Server) { s.tcp = true } }

// WithArgs adds arguments to the server's command line, after all others.
func WithArgs(args ...string) ServerOption {
	return func(s *Server) { s.extra = append(s.extra, args...) }
}

// WithEnv adds variables, each NAME=value, to the environment of the server.
func WithEnv(vars ...string) ServerOption {
	return func(s *Server) { s.env = append(s.env, vars...) }
}

// WithAOF makes the server keep its data in an append-only file that is synced
// at every write, so that it survives Kill and Restart.
func WithAOF() ServerOption { return func(s *Server) { s.aof = true } }

// Start returns a server that answers and has no data. It is killed when the
// test ends, or this process does. When the family's program is absent the
// test is skipped, or fails if the environment variable CI is set.
func Start(t testing.TB, opts ...ServerOption) *Server {
	t.Helper()
	if testing.Short() {
		t.Skip("redistest: a real server, left out with -short")
	}
	s := &Server{t: t, family: Redis70}
	for _, apply := range opts {
		apply(s)
	}
	s.program = s.family.program(t)
	// Not t.TempDir: a test's long name does not fit in a unix socket's path.
	dir, err := os.MkdirTemp("", "redistest")
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	s.dir = dir
	t.Cleanup(s.close)
	s.addr = filepath.Join(dir, "s")
	for range portAttempts {
		if s.tcp {
			s.addr = freePort(t)
		}
		if err = s.launch(); err == nil || !s.tcp {
			break
		}
	}
	if err != nil {
		t.Fatalf("redistest: start %s: %v\n%s", s.program, err, s.output())
	}
	return s
}

func (s *Server) close() {
	if s.admin != nil {
		_ = s.admin.Close()
	}
	if s.proc != nil {
		s.proc.kill()
	}
	if s.t.Failed() {
		s.t.Logf("output of %s:\n%s", s.family, s.output())
	}
	if err := os.RemoveAll(s.dir); err != nil {
		s.t.Errorf("redistest: %v", err)
	}
}

// launch starts the process at s.addr and waits until it answers.
func (s *Server) launch() error {
	output, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer output.Close() // the child has its own descriptor
	program, args := s.program, s.args()
	if len(s.env) > 0 {
		// env(1) becomes the server, so the process is the same.
		program, args = "env", slices.Concat(s.env, []string{program}, args)
	}
	if s.proc, err = startProcess(program, args, output); err != nil {
		return err
	}
	if s.admin == nil || s.admin.Options().Addr != s.addr {
		s.admin = s.newClient(func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = adminTimeout, adminTimeout })
	}
	return s.await()
}

func (s *Server) args() []string {
	if s.conf != "" {
		_, port, _ := net.SplitHostPort(s.addr) // made by freePort
		return []string{s.conf, "--dir", s.dir, "--bind", "127.0.0.1", "--port", port}
	}
	args := []string{"--dir", s.dir, "--save", "", "--enable-debug-command", "local", "--daemonize", "no"}
	if s.tcp {
		_, port, _ := net.SplitHostPort(s.addr) // made by freePort
		args = append(args, "--bind", "127.0.0.1", "--port", port)
	} else {
		args = append(args, "--port", "0", "--unixsocket", s.addr)
	}
	if s.aof {
		args = append(args, "--appendonly", "yes", "--appendfsync", "always")
	} else {
		args = append(args, "--appendonly", "no")
	}
	return append(args, s.extra...)
}

// await polls until this very process answers: another one may have taken the
// port.
func (s *Server) await() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := s.ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ticker.C:
		case <-s.proc.exited:
			return fmt.Errorf("it ended by itself; last: %w", err)
		case <-ctx.Done():
			s.proc.kill()
			return fmt.Errorf("no answer in %v; last: %w", startTimeout, err)
		}
	}
}

func (s *Server) ask(ctx context.Context) error {
	conn, err := net.DialTimeout(s.Network(), s.addr, time.Second)
	if err != nil {
		return err // before go-redis logs it
	}
	_ = conn.Close() // nothing was sent
	client := s.newClient(func(o *redis.Options) {
		o.MaxRetries, o.DialerRetries, o.DialTimeout, o.ReadTimeout = -1, 1, time.Second, time.Second
	})
	defer client.Close()
	if err := client.Ping(ctx).Err(); err != nil {
		return err
	}
	info, err := client.Info(ctx, "server").Result()
	if err != nil {
		return err
	}
	if pid := "process_id:" + strconv.Itoa(s.Pid()) + "\r\n"; !strings.Contains(info, pid) {
		return fmt.Errorf("another process answers at %s", s.addr)
	}
	return nil
}

func (s *Server) newClient(opts ...func(*redis.Options)) *redis.Client {
	opt := quietOptions()
	opt.Network, opt.Addr = s.Network(), s.addr
	for _, apply := range opts {
		apply(opt)
	}
	return redis.NewClient(opt)
}

// Client returns a new client of the server that is closed when the test ends.
// Its options are those of Virtual.Client; opts may change any of them.
func (s *Server) Client(opts ...func(*redis.Options)) *redis.Client {
	client := s.newClient(opts...)
	s.t.Cleanup(func() { _ = client.Close() }) // fails when the test has closed it already
	return client
}

// Family returns what the server is.
func (s *Server) Family() Family { return s.family }

// Network returns "unix" or "tcp".
func (s *Server) Network() string {
	if s.tcp {
		return "tcp"
	}
	return "unix"
}

// Addr returns the path of the server's socket, or its host and port. It stays
// the same over Restart.
func (s *Server) Addr() string { return s.addr }

// Pid returns the process id of the server, which Restart changes.
func (s *Server) Pid() int { return s.proc.os.Pid }

// Stop makes the kernel stop the process: connections stay open, nothing is
// answered, keys still expire. Cont ends it.
func (s *Server) Stop() {
	s.stopped = true
	s.proc.signal(syscall.SIGSTOP)
}

// Cont lets a stopped process run on.
func (s *Server) Cont() {
	s.proc.signal(syscall.SIGCONT)
	s.stopped = false
}

// Kill ends the process at once, as a crash does, and returns when it is gone.
func (s *Server) Kill() { s.proc.kill() }

// Restart ends the process if it runs, in good order, and returns when a new
// one answers at the same address. The data is there again only WithAOF.
func (s *Server) Restart() {
	s.t.Helper()
	s.proc.terminate(startTimeout)
	s.stopped = false
	if err := s.launch(); err != nil {
		s.t.Fatalf("redistest: restart %s: %v\n%s", s.program, err, s.output())
	}
}

func (s *Server) output() string {
	text, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// freePort returns an address of 127.0.0.1 that nobody listened on just now.
func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("redistest: find a free port: %v", err)
	}
	defer l.Close()
	return l.Addr().String()
}
