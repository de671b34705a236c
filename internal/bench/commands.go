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

// setUp are commands that open connections, and this program's own.
var setUp = []string{
	"hello", "auth", "client", "select", "info", "config", "script", "function", "command", "flushall", "dbsize", "exists",
}

// calls is how often the server has run each command, also in scripts.
func (s *server) calls() (map[string]int64, error) {
	fields, err := s.info("commandstats")
	if err != nil {
		return nil, err
	}
	all := map[string]int64{}
	for key, value := range fields {
		name, ok := strings.CutPrefix(key, "cmdstat_")
		if !ok || slices.Contains(setUp, strings.SplitN(name, "|", 2)[0]) {
			continue
		}
		calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
		if all[name], err = strconv.ParseInt(calls, 10, 64); err != nil {
			return nil, fmt.Errorf("INFO commandstats: %q: %w", value, err)
		}
	}
	return all, nil
}

// commands are those that clients sent between two looks, and those that the
// server ran, which includes what their scripts called.
func (a adapter) commands(before, after books) (sent, run int64) {
	for name, n := range after.calls {
		n -= before.calls[name]
		run += n
		if !slices.Contains(a.inside, name) {
			sent += n
		}
	}
	return sent, run
}

// clients is how many connections the server has besides this program's own, and
// how many of them subscribe.
func (s *server) clients() (all, subscribed int, err error) {
	list, err := s.admin.ClientList(context.Background()).Result()
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
	user, err1 := strconv.ParseInt(string(fields[11]), 10, 64)
	system, err2 := strconv.ParseInt(string(fields[12]), 10, 64)
	if err1 != nil || err2 != nil {
		return 0, fmt.Errorf("/proc/%d/stat: %q", pid, stat)
	}
	return time.Duration(user+system) * 10 * time.Millisecond, nil
}
