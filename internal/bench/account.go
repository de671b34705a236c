package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// account is everything that a run found, and where.
type account struct {
	Date, Command, Machine string
	Rounds                 int
	Span                   time.Duration
	Versions               []string
	Scenarios              []*result
}

// clientModules are those whose versions matter.
var clientModules = []string{
	"github.com/redis/go-redis/v9", "github.com/bsm/redislock", "github.com/go-redsync/redsync/v4", "github.com/redis/rueidis",
}

var (
	cpuName     = regexp.MustCompile(`model name\s*: (.*)`)
	javaVersion = regexp.MustCompile(`version "([^"]+)"`)
)

func newAccount(p plan, srv *server, command string) (*account, error) {
	info, err := srv.info("server")
	if err != nil {
		return nil, err
	}
	a := &account{Date: time.Now().Format(time.DateOnly), Command: command, Rounds: p.rounds, Span: p.span}
	cpu, load := "unknown CPU", "unknown"
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if found := cpuName.FindSubmatch(text); found != nil {
			cpu = string(found[1])
		}
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		load, _, _ = strings.Cut(string(text), " ")
	}
	a.Machine = fmt.Sprintf("%s, %d cores, %s/%s; Redis %s on loopback TCP; %s; load %s at the start",
		cpu, runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, info["redis_version"], runtime.Version(), load)
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, m := range build.Deps {
			if slices.Contains(clientModules, m.Path) {
				a.Versions = append(a.Versions, m.Path+" "+m.Version)
			}
		}
	}
	if text, err := exec.Command("java", "-version").CombinedOutput(); err == nil {
		if found := javaVersion.FindSubmatch(text); found != nil {
			a.Versions = append(a.Versions, "Java "+string(found[1]))
		}
	}
	return a, nil
}

// write puts the table, the raw figures and the plots into dir.
func (a *account) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(a, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "results.json"), raw, 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "results.md"), []byte(a.markdown()), 0o644); err != nil {
		return err
	}
	return a.draw(dir)
}
