package main

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

// account is everything that a run found, and where.
type account struct {
	Date      string
	Command   string
	Rounds    int
	Span      string
	Machine   machine
	Versions  map[string]string
	Absent    map[string]string `json:",omitempty"` // clients that this machine has not, and why
	Scenarios []*result
}

// machine is where a run took place.
type machine struct {
	CPU, System, Go, Redis string
	Cores                  int
	Load                   float64 // of the last minute, at the start
}

// clientModules are those whose versions matter.
var clientModules = []string{
	"github.com/redis/go-redis/v9", "github.com/bsm/redislock", "github.com/go-redsync/redsync/v4", "github.com/redis/rueidis",
}

func newAccount(p plan, srv *server, args []string) (*account, error) {
	info, err := srv.info("server")
	if err != nil {
		return nil, err
	}
	version := info["redis_version"]
	if v := info["valkey_version"]; v != "" {
		version = "(Valkey " + v + ")"
	}
	a := &account{
		Date:     time.Now().Format(time.DateOnly),
		Command:  strings.TrimSpace("go run -C internal/bench . " + strings.Join(args, " ")),
		Rounds:   p.rounds,
		Span:     p.span.String(),
		Versions: map[string]string{},
		Absent:   p.absent(),
		Machine: machine{
			CPU: cpuName(), System: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(), Redis: version,
			Cores: runtime.NumCPU(), Load: loadAverage(),
		},
	}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, m := range build.Deps {
			if slices.Contains(clientModules, m.Path) {
				a.Versions[m.Path] = m.Version
			}
		}
	}
	if slices.ContainsFunc(p.adapters(), func(a adapter) bool { return a.jvm }) {
		a.Versions["Java"] = javaVersion()
	}
	return a, nil
}

func cpuName() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown CPU"
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, ok := strings.CutPrefix(lines.Text(), "model name"); ok {
			return strings.TrimSpace(strings.TrimLeft(name, "\t :"))
		}
	}
	return "unknown CPU"
}

func loadAverage() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	load, _ := strconv.ParseFloat(first, 64)
	return load
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
