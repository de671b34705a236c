package mistakes

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/seed-8c25f305/watchlock"
)

const docs = "../../docs/mistakes.md"

// TestMain fails when a test leaves a goroutine behind.
func TestMain(m *testing.M) {
	logging.Disable() // go-redis's own reports of connections that fail
	goleak.VerifyTestMain(m)
}

// wantInDocs fails unless the page has the line under the name of the test.
func wantInDocs(t *testing.T, line string) {
	t.Helper()
	page, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "`"+t.Name()+"`")
	section, _, _ = strings.Cut(section, "\n## ")
	if !strings.Contains(section, "\n"+line+"\n") {
		t.Errorf("%s does not say under %s: %s", docs, t.Name(), line)
	}
}

// TestDocsNameTestsThatExistAndAsManyOutcomesAsThoseHave keeps the page from
// saying more than the tests show.
func TestDocsNameTestsThatExistAndAsManyOutcomesAsThoseHave(t *testing.T) {
	page, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("mistakes_test.go")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(string(page), -1)
	for _, name := range named {
		if !strings.Contains(string(source), "func "+name[1]+"(") {
			t.Errorf("%s names %s, which does not exist", docs, name[1])
		}
	}
	if tests := strings.Count(string(source), "\nfunc Test"); len(named) != tests {
		t.Errorf("%s names %d tests of %d", docs, len(named), tests)
	}
	shown := len(regexp.MustCompile(`(?m)^(naive:|here: )`).FindAllString(string(page), -1))
	if printed := len(regexp.MustCompile(`(?m)^\t(naive|here)\(`).FindAllString(string(source), -1)); shown != printed {
		t.Errorf("%s shows %d outcomes, the tests print %d", docs, shown, printed)
	}
}

// newLock is the lock of one more process.
func newLock(t *testing.T, rdb *redis.Client, name string, opts ...watchlock.Option) *watchlock.Mutex {
	t.Helper()
	client, err := watchlock.New(rdb, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client.NewMutex(name)
}

// scene ends its test when a step fails that is not what the test is about.
type scene struct{ t *testing.T }

// taken needs the naive lock to be taken.
func (s scene) taken(got bool, err error) {
	s.t.Helper()
	if !got || err != nil {
		s.t.Fatalf("the naive lock: %t, %v", got, err)
	}
}

// count is 1 when the naive lock was taken.
func (s scene) count(got bool, err error) int {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
	if got {
		return 1
	}
	return 0
}

func (s scene) did(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s scene) lease(l *watchlock.Lease, err error) *watchlock.Lease {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
	return l
}

// inGoroutine runs f on another goroutine.
func inGoroutine[T any](f func() (T, error)) (got T, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		got, err = f()
	}()
	<-done
	return got, err
}

// waitUntilGone waits until the key has expired.
func waitUntilGone(t *testing.T, rdb *redis.Client, key string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); <-time.After(5 * time.Millisecond) {
		if rdb.Exists(t.Context(), key).Val() == 0 {
			return
		}
	}
	t.Fatalf("%s does not expire", key)
}
