package watchlock_test

import (
	"crypto/sha1"
	"fmt"
	"go/ast"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

const maxReadmeLines = 250

// TestReadmeSnippetsAreCompiled looks for each Go snippet of the README in a
// file that is compiled and tested, ignoring how far lines are indented.
func TestReadmeSnippetsAreCompiled(t *testing.T) {
	sources := readmeSources(t)
	snippets := readmeSnippets(readReadme(t))
	if len(snippets) == 0 {
		t.Error("the README has no Go snippet")
	}
	for _, snippet := range snippets {
		if !occursIn(snippet, sources) {
			t.Errorf("no example has this snippet:\n%s", snippet)
		}
	}

	bad := readmeSnippets("text\n```go\nm.Do(ctx, f)\nnotCompiled()\n```\n")
	if len(bad) != 1 || occursIn(bad[0], sources) {
		t.Errorf("snippets %q of a bad README pass for compiled", bad)
	}
}

// TestReadmePortingTableIsCompiled looks for each piece of code in the table's
// right column in the examples.
func TestReadmePortingTableIsCompiled(t *testing.T) {
	examples := readText(t, "example_test.go")
	cells := portingCells(readReadme(t))
	if len(cells) < 10 {
		t.Errorf("only %d pieces of code in the porting table", len(cells))
	}
	for _, code := range cells {
		if !strings.Contains(examples, code) {
			t.Errorf("no example has %s", code)
		}
	}

	bad := "| Redisson | watchlock |\n|---|---|\n| `a` | `m.Never(ctx)`; b |\n\n| `x` | `y` |\n"
	if got := portingCells(bad); !slices.Equal(got, []string{"m.Never(ctx)"}) {
		t.Errorf("in a bad table, %q is found", got)
	}
}

// TestReadmeNamesWhatThePackageHas compares the README with the options, errors
// and functions of the package, in both directions.
func TestReadmeNamesWhatThePackageHas(t *testing.T) {
	exported := exportedNames(t)
	readme := readReadme(t)
	named := namesIn(readme)
	for _, name := range named {
		if !slices.Contains(exported, name) {
			t.Errorf("the README names %s, which the package does not have", name)
		}
	}
	for _, name := range exported {
		if regexp.MustCompile(`^(With|Err|Is)`).MatchString(name) && !slices.Contains(named, name) {
			t.Errorf("the README does not name %s", name)
		}
	}
	if got := namesIn("`WithoutWings(d)` or watchlock.Fly. Without, With, Is it"); !slices.Equal(got, []string{"WithoutWings", "Fly"}) {
		t.Errorf("in a bad text, the names %q are found", got)
	}
}

// TestReadmeIsShortAndItsLinksLeadSomewhere keeps it under 250 lines.
func TestReadmeIsShortAndItsLinksLeadSomewhere(t *testing.T) {
	readme := readReadme(t)
	if n := strings.Count(readme, "\n"); n >= maxReadmeLines {
		t.Errorf("the README has %d lines, %d are too many", n, maxReadmeLines)
	}
	anchors := make(map[string]bool)
	for _, title := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(readme, -1) {
		anchor := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(title[1]), "")
		anchors["#"+strings.ReplaceAll(anchor, " ", "-")] = true
	}
	for _, link := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(readme, -1) {
		switch target := link[1]; {
		case strings.HasPrefix(target, "#"):
			if !anchors[target] {
				t.Errorf("no heading for the link %s", target)
			}
		case strings.Contains(target, "://"):
		default:
			if _, err := os.Stat(filepath.FromSlash(target)); err != nil {
				t.Errorf("a link leads nowhere: %v", err)
			}
		}
	}
}

// TestReadmeCostsAreWhatIsSent counts the commands of each row of the table that
// does not last a minute; virtual_costs_test.go counts those of that one.
func TestReadmeCostsAreWhatIsSent(t *testing.T) {
	readme := readReadme(t)
	synctest.Test(t, func(t *testing.T) {
		v := redistest.NewVirtual(t)
		here, elsewhere := costClient(t, v), costClient(t, v)
		ctx := t.Context()
		queue := func(m *watchlock.Mutex, opts ...watchlock.LockOption) <-chan *watchlock.Lease {
			entered := make(chan *watchlock.Lease, 1)
			go func() { entered <- must(m.Lock(ctx, opts...)) }()
			synctest.Wait()
			return entered
		}
		unlock := func(l *watchlock.Lease) {
			if err := l.Unlock(ctx); err != nil {
				t.Error(err)
			}
		}

		both := func() { unlock(must(here.NewMutex("pair").Lock(ctx))) }
		both() // opens the connection for renewals
		pair := sentFor(v, both)
		m := here.NewMutex("order")
		lease := must(m.Lock(ctx))
		reentry := sentFor(v, func() { unlock(must(m.Lock(lease.Context(ctx)))) })
		next := queue(m)
		pass := sentFor(v, func() {
			unlock(lease)
			lease = <-next
		})
		wait := sentFor(v, func() {
			// With a lease time: the connection for renewals is not part of a wait.
			next = queue(elsewhere.NewMutex("order"), watchlock.WithLeaseTime(time.Minute))
			unlock(lease)
			lease = <-next
		}) - 1 // that release
		unlock(lease)
		for row, n := range map[string]int{
			"| `Lock` and `Unlock` when nobody else is there | %d |\n":                       pair,
			"| re-entry, and its `Unlock`; a section that is passed on in memory | %d |\n":   max(reentry, pass),
			"| a first wait, until the lock is got | %d: a try, SUBSCRIBE, a try, a try |\n": wait,
		} {
			if row = fmt.Sprintf(row, n); !strings.Contains(readme, row) {
				t.Errorf("the README does not have the row as it is counted: %s", row)
			}
		}
	})
}

func costClient(t *testing.T, v *redistest.Virtual) *watchlock.Client {
	client := must(watchlock.New(v.Client()))
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// sentFor is how many commands f causes, besides those that open a connection. The
// first run of a script, EVALSHA and then EVAL, counts once.
func sentFor(v *redistest.Virtual, f func()) int {
	synctest.Wait()
	v.Reset()
	f()
	synctest.Wait()
	n, asked := 0, ""
	for _, c := range v.Commands() {
		if c.Name == "EVAL" && fmt.Sprintf("%x", sha1.Sum([]byte(c.Args[0]))) == asked {
			continue
		}
		if c.Name != "HELLO" {
			n++
		}
		if asked = ""; c.Name == "EVALSHA" {
			asked = c.Args[0]
		}
	}
	return n
}

func readReadme(t *testing.T) string { return readText(t, "README.md") }

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// readmeSources are the files that snippets are copied from.
func readmeSources(t *testing.T) []string {
	t.Helper()
	sources := []string{readText(t, "example_test.go")}
	err := filepath.WalkDir("examples", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(path) == ".go" {
			sources = append(sources, readText(t, path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return sources
}

// readmeSnippets returns the contents of the blocks that are marked as Go.
func readmeSnippets(readme string) []string {
	var snippets []string
	for _, m := range regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(readme, -1) {
		snippets = append(snippets, m[1])
	}
	return snippets
}

// occursIn reports whether one of the sources has all lines of the snippet, one
// after the other.
func occursIn(snippet string, sources []string) bool {
	want := "\n" + unindented(snippet)
	return slices.ContainsFunc(sources, func(source string) bool {
		return strings.Contains("\n"+unindented(source), want)
	})
}

func unindented(text string) string {
	return regexp.MustCompile(`(?m)^[ \t]+`).ReplaceAllString(text, "")
}

// portingCells returns the code in the second column of the porting table.
func portingCells(readme string) []string {
	_, table, _ := strings.Cut(readme, "\n| Redisson | watchlock |\n")
	if strings.HasPrefix(readme, "| Redisson | watchlock |\n") {
		_, table, _ = strings.Cut(readme, "\n")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	var found []string
	for row := range strings.Lines(table) {
		cells := strings.SplitN(row, " | ", 2)
		if len(cells) < 2 {
			continue
		}
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
			found = append(found, m[1])
		}
	}
	return found
}

// namesIn returns the names of this package that a text speaks of.
func namesIn(text string) []string {
	var found []string
	for _, m := range regexp.MustCompile(`\bwatchlock\.([A-Z]\w*)|\b((?:With|Without|Err|Is)[A-Z]\w*)`).FindAllStringSubmatch(text, -1) {
		if name := m[1] + m[2]; !slices.Contains(found, name) {
			found = append(found, name)
		}
	}
	return found
}

// exportedNames returns the package's exported functions, types, variables and
// constants.
func exportedNames(t *testing.T) []string {
	t.Helper()
	var names []string
	add := func(id *ast.Ident) {
		if id.IsExported() {
			names = append(names, id.Name)
		}
	}
	for _, path := range goFiles(t) {
		if strings.HasSuffix(path, "_test.go") || filepath.Dir(path) != "." {
			continue
		}
		for _, decl := range parseGo(t, path, nil).file.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					add(d.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch s := spec.(type) {
					case *ast.TypeSpec:
						add(s.Name)
					case *ast.ValueSpec:
						for _, id := range s.Names {
							add(id)
						}
					}
				}
			}
		}
	}
	return names
}
