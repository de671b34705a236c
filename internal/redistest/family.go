package redistest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Family is a line of servers that the library is tested with.
type Family string

// The families, by what Start runs for them.
const (
	Redis70 Family = "redis70" // Redis 7.0
	Redis86 Family = "redis86" // Redis 8.6
	Valkey9 Family = "valkey9" // Valkey 9
)

// sentinelFamily is what watches over the servers of a Sentinel. It keeps no keys,
// so it is none of Families.
const sentinelFamily Family = "redis-sentinel"

// serversDir is the environment variable that names the directory with one
// program for each family.
const serversDir = "WATCHLOCK_SERVERS"

// familiesVariable is the environment variable that names the families to test with,
// with commas between; without it, all.
const familiesVariable = "WATCHLOCK_FAMILIES"

// Families returns the families to test with. It panics when the environment names
// one that there is not: less would be tested than somebody believes.
func Families() []Family {
	all := []Family{Redis70, Redis86, Valkey9}
	names := os.Getenv(familiesVariable)
	if names == "" {
		return all
	}
	var some []Family
	for name := range strings.SplitSeq(names, ",") {
		if !slices.Contains(all, Family(name)) {
			panic(fmt.Sprintf("redistest: %s names %q: want some of %v", familiesVariable, name, all))
		}
		some = append(some, Family(name))
	}
	return some
}

// OnEachFamily runs f as one subtest for each family, named after it, with a
// server of its own. A family that is absent is skipped, in CI a failure.
func OnEachFamily(t *testing.T, f func(t *testing.T, s *Server)) {
	for _, family := range Families() {
		t.Run(string(family), func(t *testing.T) {
			f(t, Start(t, On(family)))
		})
	}
}

// program returns the path of the family's server. Without one it skips the
// test, or fails it when the environment variable CI is set.
func (f Family) program(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv(serversDir); dir != "" {
		path, err := filepath.Abs(filepath.Join(dir, string(f)))
		if err == nil && executable(path) {
			return path
		}
	}
	if f == Redis70 {
		if path, err := exec.LookPath("redis-server"); err == nil {
			return path
		}
	}
	report := t.Skipf
	if os.Getenv("CI") != "" {
		report = t.Fatalf
	}
	report("redistest: no server of family %s: run `ci/servers.sh DIR` and set %s=DIR", f, serversDir)
	return ""
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}
