package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	startTimeout = 10 * time.Second
	adminName    = "bench" // of this program's own connections
)

// server is a Redis of this program's own.
type server struct {
	addr    string
	dir     string
	process *os.Process
	exited  chan struct{}
	admin   *redis.Client
}

// serverProgram is the program to run: the one named, else Redis 7.0 of the
// tests' folder, else the one on the path.
func serverProgram(named string) (string, error) {
	if named != "" {
		return filepath.Abs(named)
	}
	if dir := os.Getenv("WATCHLOCK_SERVERS"); dir != "" {
		if path := filepath.Join(dir, "redis70"); isProgram(path) {
			return path, nil
		}
	}
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return "", errors.New("no redis-server on the path: name one with -server, or run ci/servers.sh and set WATCHLOCK_SERVERS")
	}
	return path, nil
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// startServer runs program on a free port of 127.0.0.1, without persistence.
func startServer(program string) (*server, error) {
	dir, err := os.MkdirTemp("", "watchlock-bench")
	if err != nil {
		return nil, err
	}
	var failure error
	for range 5 { // somebody else may take the port in between
		s := &server{dir: dir, exited: make(chan struct{})}
		if failure = s.launch(program); failure == nil {
			return s, nil
		}
		s.kill()
	}
	_ = os.RemoveAll(dir)
	return nil, fmt.Errorf("start %s: %w", program, failure)
}

func (s *server) launch(program string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.addr = l.Addr().String()
	_ = l.Close()
	_, port, _ := net.SplitHostPort(s.addr)
	cmd := exec.Command(program, "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no",
		"--dir", s.dir, "--daemonize", "no", "--maxclients", "2000", "--loglevel", "warning")
	cmd.SysProcAttr = childAttributes()
	started := make(chan error)
	go func() {
		// The death signal is bound to the thread that forked: it is kept.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it is killed
			close(s.exited)
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	s.process = cmd.Process
	opt := clientOptions(s.addr)
	opt.ClientName = adminName
	s.admin = redis.NewClient(opt)
	return s.await()
}

// await returns when this very process answers.
func (s *server) await() error {
	end := time.Now().Add(startTimeout)
	for time.Now().Before(end) {
		select {
		case <-s.exited:
			return errors.New("it ended by itself")
		case <-time.After(10 * time.Millisecond):
		}
		conn, err := net.DialTimeout("tcp", s.addr, time.Second)
		if err != nil {
			continue // go-redis would log it
		}
		_ = conn.Close()
		if info, err := s.info("server"); err == nil {
			if info["process_id"] != strconv.Itoa(s.process.Pid) {
				return fmt.Errorf("another process answers at %s", s.addr)
			}
			return nil
		}
	}
	return fmt.Errorf("no answer in %v", startTimeout)
}

// stop ends the server and removes its folder.
func (s *server) stop() {
	s.kill()
	_ = os.RemoveAll(s.dir)
}

func (s *server) kill() {
	if s.admin != nil {
		_ = s.admin.Close()
	}
	if s.process != nil {
		_ = s.process.Signal(syscall.SIGKILL)
		<-s.exited
	}
}

// empty removes all keys.
func (s *server) empty() error { return s.admin.FlushAll(context.Background()).Err() }

// info is one section of INFO.
func (s *server) info(section string) (map[string]string, error) {
	text, err := s.admin.Info(context.Background(), section).Result()
	if err != nil {
		return nil, err
	}
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[key] = value
		}
	}
	return fields, nil
}
