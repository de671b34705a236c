// Package pgtest runs the machine's own PostgreSQL for tests: a cluster in a
// temporary folder, on a unix socket, apart from any that runs already.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrAbsent says that this machine has no PostgreSQL. ci/prepare.sh installs it.
var ErrAbsent = errors.New("pgtest: there is no /usr/lib/postgresql/*/bin/initdb")

const startTimeout = 30 * time.Second

// Server is a PostgreSQL that runs until Stop, or until this process ends.
type Server struct {
	dir    string
	output *os.File
	as     *syscall.Credential // who runs it; nil for ourselves
	stop   func()
}

// Start makes a cluster and runs it. PostgreSQL refuses to run as root: then it
// runs as the user postgres, whom Debian's package has made.
func Start() (s *Server, err error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // the pattern is good
	if len(found) == 0 {
		return nil, ErrAbsent
	}
	newest := slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) })
	s = &Server{}
	defer func() {
		if err != nil {
			err = fmt.Errorf("pgtest: %w\n%s", err, s.log())
			s.Stop()
		}
	}()
	if s.dir, err = os.MkdirTemp("", "pgtest"); err != nil {
		return s, err
	}
	if s.output, err = os.Create(filepath.Join(s.dir, "log")); err != nil {
		return s, err
	}
	if os.Geteuid() == 0 {
		if s.as, err = credential("postgres"); err != nil {
			return s, err
		}
		if err := os.Chown(s.dir, int(s.as.Uid), int(s.as.Gid)); err != nil {
			return s, err
		}
	}
	data := filepath.Join(s.dir, "data")
	initdb := s.command(newest, "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions")
	if err := initdb.Run(); err != nil {
		return s, fmt.Errorf("initdb: %w", err)
	}
	// Without fsync: what a crash of the machine would lose is of no use to a test.
	postgres := s.command(filepath.Join(filepath.Dir(newest), "postgres"), "-D", data, "-k", s.dir,
		"-c", "listen_addresses=", "-c", "fsync=off", "-c", "jit=off", "-c", "max_connections=200")
	if err := s.run(postgres); err != nil {
		return s, err
	}
	return s, s.await()
}

func version(initdb string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(initdb)))) // 0 for what is no number
	return n
}

func credential(name string) (*syscall.Credential, error) {
	account, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(account.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(account.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, err
}

func (s *Server) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir = s.dir
	cmd.Stdout, cmd.Stderr = s.output, s.output
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: s.as}
	dieWithUs(cmd.SysProcAttr)
	return cmd
}

// run starts the server and sets what stops it.
func (s *Server) run(cmd *exec.Cmd) error {
	started, exited := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the child is killed when the thread ends that forked it
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it is told to end, and how it did does not matter
			close(exited)
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	s.stop = func() {
		_ = cmd.Process.Signal(syscall.SIGQUIT) // at once; SIGKILL would leave its shared memory
		select {
		case <-exited:
		case <-time.After(startTimeout):
			_ = cmd.Process.Kill()
			<-exited
		}
	}
	return nil
}

// await returns when the server takes connections.
func (s *Server) await() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, s.DSN())
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// DSN names its database postgres.
func (s *Server) DSN() string {
	return "host=" + s.dir + " user=postgres dbname=postgres"
}

// Stop ends the server and removes its folder.
func (s *Server) Stop() {
	if s.stop != nil {
		s.stop()
	}
	if s.output != nil {
		_ = s.output.Close()
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}

func (s *Server) log() string {
	text, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}
