package redistest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Do sends one command on a connection of the server's own and returns its
// reply as go-redis decodes it.
func (s *Server) Do(args ...any) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	return s.admin.Do(ctx, args...).Result()
}

// Config sets a configuration parameter while the server runs.
func (s *Server) Config(key, value string) {
	s.t.Helper()
	if _, err := s.Do("CONFIG", "SET", key, value); err != nil {
		s.t.Fatalf("redistest: CONFIG SET %s %q: %v", key, value, err)
	}
}

// CommandCalls returns how often each command has run since the start or the
// last CONFIG RESETSTAT, by its name in lower case. Subcommands are named
// "config|set". It counts what scripts call, and what Do sends.
func (s *Server) CommandCalls() map[string]int {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	info, err := s.admin.Info(ctx, "commandstats").Result()
	if err != nil {
		s.t.Fatalf("redistest: INFO commandstats: %v", err)
	}
	calls := map[string]int{}
	for line := range strings.Lines(info) {
		rest, ok := strings.CutPrefix(line, "cmdstat_")
		if !ok {
			continue
		}
		name, figures, _ := strings.Cut(rest, ":calls=")
		figure, _, _ := strings.Cut(figures, ",")
		n, err := strconv.Atoi(figure)
		if err != nil {
			s.t.Fatalf("redistest: INFO commandstats: %q", line)
		}
		calls[name] = n
	}
	return calls
}

// markers makes the text of a Monitor's marker unlike any other.
var markers atomic.Int64

// Monitor collects what MONITOR tells about every command that the server
// runs from now on, those of scripts included. The returned stop must be called; it
// returns the lines, up to the last command that was answered before it.
func (s *Server) Monitor() (stop func() []string) {
	s.t.Helper()
	conn, err := net.DialTimeout(s.Network(), s.addr, adminTimeout)
	if err != nil {
		s.t.Fatalf("redistest: monitor: %v", err)
	}
	s.t.Cleanup(func() { _ = conn.Close() }) // ends the reader when the test fails
	r := bufio.NewReader(conn)
	_ = conn.SetDeadline(time.Now().Add(adminTimeout))
	if _, err = conn.Write([]byte("MONITOR\r\n")); err == nil {
		var line string
		if line, err = r.ReadString('\n'); err == nil && line != "+OK\r\n" {
			err = fmt.Errorf("answer %q", line)
		}
	}
	if err != nil {
		s.t.Fatalf("redistest: monitor: %v", err)
	}
	_ = conn.SetDeadline(time.Time{})

	marker := fmt.Sprintf("redistest-monitor-%d", markers.Add(1))
	var lines []string // the reader's until done is closed
	var failure error
	done := make(chan struct{})
	go func() {
		defer close(done)
		lines, failure = readMonitor(r, marker)
	}()
	return func() []string {
		s.t.Helper()
		_ = conn.SetDeadline(time.Now().Add(adminTimeout))
		if _, err := s.Do("ECHO", marker); err != nil {
			s.t.Fatalf("redistest: monitor: %v", err)
		}
		<-done
		_ = conn.Close()
		if failure != nil {
			s.t.Fatalf("redistest: monitor: %v", failure)
		}
		return lines
	}
}

// readMonitor returns the lines before the one with the marker.
func readMonitor(r *bufio.Reader, marker string) ([]string, error) {
	var lines []string
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return nil, err
		}
		line = strings.TrimSuffix(strings.TrimPrefix(line, "+"), "\r\n")
		if strings.Contains(line, marker) {
			return lines, nil
		}
		lines = append(lines, line)
	}
}
