package fenced_test

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// skew is a server's clock that can be stepped: a library that the server is
// made to load adds the offset in a file to the time of day.
type skew struct {
	t       testing.TB
	library string
	file    string
}

// newSkew builds the library. Without a C compiler the test is skipped, in CI it
// fails.
func newSkew(t testing.TB) *skew {
	t.Helper()
	dir := t.TempDir()
	s := &skew{t, filepath.Join(dir, "skew.so"), filepath.Join(dir, "offset")}
	if _, err := exec.LookPath("gcc"); err != nil && os.Getenv("CI") == "" {
		t.Skip("no gcc")
	}
	build := exec.Command("gcc", "-shared", "-fPIC", "-O2", "-Wall", "-o", s.library, "../../internal/redistest/testdata/skew.c")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, out)
	}
	s.step(0)
	return s
}

// env is the environment that a server needs.
func (s *skew) env() []string {
	return []string{"LD_PRELOAD=" + s.library, "SKEW_FILE=" + s.file}
}

// step makes the server's clock differ from this process's by d.
func (s *skew) step(d time.Duration) {
	s.t.Helper()
	f, err := os.OpenFile(s.file, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	// One write into the page that the server has mapped.
	if _, err := f.Write(binary.NativeEndian.AppendUint64(nil, uint64(d.Microseconds()))); err != nil {
		s.t.Fatal(err)
	}
}
