package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	startTimeout = 10 * time.Second
	adminName    = "bench" // of this program's own connections
)

// server is a Redis of this program's own.
type server struct {
	addr  string
	dir   string
	cmd   *exec.Cmd
	admin *redis.Client
}

// serverProgram is Redis 7.0 of the tests' folder, else what is on the path.
func serverProgram() (string, error) {
	if dir := os.Getenv("WATCHLOCK_SERVERS"); dir != "" {
		return exec.LookPath(filepath.Join(dir, "redis70"))
	}
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return "", errors.New("no redis-server on the path: run ci/servers.sh and set WATCHLOCK_SERVERS")
	}
	return path, nil
}

// startServer runs Redis on a free port of 127.0.0.1, without persistence, until
// it is stopped or ctx ends.
func startServer(ctx context.Context) (*server, error) {
	program, err := serverProgram()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "watchlock-bench")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	_ = l.Close()
	_, port, _ := net.SplitHostPort(addr)
	s := &server{addr: addr, dir: dir}
	s.cmd = exec.CommandContext(ctx, program, "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no",
		"--dir", dir, "--maxclients", "2000", "--loglevel", "warning")
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	opt := clientOptions(addr)
	opt.ClientName = adminName
	s.admin = redis.NewClient(opt)
	if err := s.await(); err != nil {
		s.stop()
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	return s, nil
}

// await returns when this very process answers: somebody else may have taken the
// port.
func (s *server) await() error {
	for end := time.Now().Add(startTimeout); time.Now().Before(end); pause(10 * time.Millisecond) {
		conn, err := net.DialTimeout("tcp", s.addr, time.Second)
		if err != nil {
			continue // go-redis would log it
		}
		_ = conn.Close()
		info, err := s.info("server")
		if err == nil && info["process_id"] != strconv.Itoa(s.cmd.Process.Pid) {
			return fmt.Errorf("another process answers at %s", s.addr)
		}
		return err
	}
	return fmt.Errorf("no answer in %v", startTimeout)
}

// stop ends the server and removes its folder.
func (s *server) stop() {
	_ = s.admin.Close()
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	_ = os.RemoveAll(s.dir)
}

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
