package interop

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

// section is a folder with the work that only one may do at a time: to count a
// file up, which nothing but the lock protects.
type section string

func newSection(t testing.TB) section {
	t.Helper()
	s := section(t.TempDir())
	if err := os.WriteFile(s.counter(), []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s section) counter() string { return filepath.Join(string(s), "counter") }

// inside exists while somebody is in the section.
func (s section) inside() string { return filepath.Join(string(s), "inside") }

// journal has a line for each section, with the name of who did it.
func (s section) journal() string { return filepath.Join(string(s), "journal") }

// run does the work. It fails when somebody else is inside.
func (s section) run(who string) error {
	marker, err := os.OpenFile(s.inside(), os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := marker.Close(); err != nil {
		return err
	}
	n, err := s.read()
	if err != nil {
		return err
	}
	if err := s.note(who); err != nil {
		return err
	}
	if err := os.WriteFile(s.counter(), []byte(strconv.Itoa(n+1)), 0o600); err != nil {
		return err
	}
	return os.Remove(s.inside())
}

func (s section) note(who string) error {
	f, err := os.OpenFile(s.journal(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, who)
	return errors.Join(err, f.Close())
}

func (s section) read() (int, error) {
	text, err := os.ReadFile(s.counter())
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(text))
}

// check fails the test unless the section was run n times. It returns by whom, in
// their order.
func (s section) check(t testing.TB, n int) (journal []string) {
	t.Helper()
	switch counted, err := s.read(); {
	case err != nil:
		t.Error(err)
	case counted != n:
		t.Errorf("the unprotected counter is %d, want %d", counted, n)
	}
	text, err := os.ReadFile(s.journal())
	if err != nil && n > 0 {
		t.Error(err)
	}
	if journal = strings.Fields(string(text)); len(journal) != n {
		t.Errorf("%d sections were noted, want %d", len(journal), n)
	}
	return journal
}

// waitUntil polls until ok, or fails the test.
func waitUntil(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func do(t testing.TB, s *redistest.Server, args ...any) any {
	t.Helper()
	v, err := s.Do(args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return v
}

func exists(t testing.TB, s *redistest.Server, key string) bool {
	t.Helper()
	return do(t, s, "EXISTS", key) == int64(1)
}

// unchanged fails the test when the key is no longer what it was at the call.
func unchanged(t testing.TB, s *redistest.Server, key string) (check func(when string)) {
	t.Helper()
	before := do(t, s, "DUMP", key)
	return func(when string) {
		t.Helper()
		if v, err := s.Do("DUMP", key); err != nil || v != before {
			t.Errorf("%s: the key was changed, %v", when, err)
		}
	}
}
