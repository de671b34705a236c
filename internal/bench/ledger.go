package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ledger is what the server has done up to an instant.
type ledger struct {
	calls map[string]int64 // by command, those of scripts too
	cpu   time.Duration
}

// setUp are commands that open connections, and this program's own.
var setUp = []string{
	"hello", "auth", "client", "select", "info", "config", "script", "function", "command", "flushall", "dbsize", "exists",
}

// ledger reads the server's books.
func (s *server) ledger() (ledger, error) {
	fields, err := s.info("commandstats")
	if err != nil {
		return ledger{}, err
	}
	l := ledger{calls: map[string]int64{}}
	for key, value := range fields {
		name, ok := strings.CutPrefix(key, "cmdstat_")
		if !ok || slices.Contains(setUp, strings.SplitN(name, "|", 2)[0]) {
			continue
		}
		calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
		if l.calls[name], err = strconv.ParseInt(calls, 10, 64); err != nil {
			return ledger{}, fmt.Errorf("INFO commandstats: %q: %w", value, err)
		}
	}
	l.cpu, err = processCPU(s.process.Pid)
	return l, err
}

// since is what the server has done between two looks: the commands that clients
// sent, and those that it ran, which includes what their scripts called. inside
// names the commands that come from scripts only.
func (l ledger) since(before ledger, inside []string) (sent, run int64) {
	for name, n := range l.calls {
		n -= before.calls[name]
		run += n
		if !slices.Contains(inside, name) {
			sent += n
		}
	}
	return sent, run
}

// clients is how many connections the server has besides this program's own, and
// how many of them subscribe.
func (s *server) clients() (all, subscribed int, err error) {
	ctx := context.Background()
	list, err := s.admin.ClientList(ctx).Result()
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(list) {
		if !strings.Contains(line, " name="+adminName+" ") {
			all++
		}
		if !strings.Contains(line, " sub=0 ") {
			subscribed++
		}
	}
	return all, subscribed, nil
}

// processCPU is the time that a process has spent on the CPU. The kernel counts
// in hundredths of a second.
func processCPU(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name, in brackets, may have anything in it; user time is 12 fields on.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat: %q", pid, stat)
	}
	user, err1 := strconv.ParseInt(string(fields[11]), 10, 64)
	system, err2 := strconv.ParseInt(string(fields[12]), 10, 64)
	if err1 != nil || err2 != nil {
		return 0, fmt.Errorf("/proc/%d/stat: %q", pid, stat)
	}
	return time.Duration(user+system) * 10 * time.Millisecond, nil
}
