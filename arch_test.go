package watchlock_test

import (
	"bufio"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	modulePath   = "github.com/seed-8c25f305/watchlock"
	redisPath    = "github.com/redis/go-redis/v9"
	maxFileLines = 350
)

// parts are the packages of the library, and what each may import of the others and of
// go-redis. Nothing runs up.
var parts = map[string][]string{
	".":                  {"internal/bootclock", "internal/transport", "internal/wire", "internal/pubsub", "internal/orphans"},
	"internal/bootclock": {},
	"internal/transport": {"internal/bootclock", redisPath},
	"internal/wire":      {"internal/transport", "internal/bootclock"},
	"internal/pubsub":    {"internal/transport", "internal/wire", "internal/bootclock", redisPath},
	"internal/orphans":   {"internal/transport", "internal/wire", "internal/bootclock"},
}

// redisElsewhere are single files that know go-redis: New takes its client, and an error
// reply stands as one.
var redisElsewhere = []string{"client.go", "internal/wire/plain.go"}

// goSource is one parsed file of the library.
type goSource struct {
	name string // with the folder of its package
	fset *token.FileSet
	file *ast.File
}

// roomRule is one thing that only some files of the package may do.
type roomRule struct {
	name  string
	only  []string // the files that may; none: no file may
	finds func(s goSource) []token.Pos
	bad   string // breaks the rule once, on the line that ends in "// here"
}

var roomRules = []roomRule{
	{
		name:  "one file talks to the caller's logger",
		only:  []string{"teller.go", "options.go"},
		finds: importsOfZap,
		bad: `package p
import "go.uber.org/zap/zapcore" // here
`,
	},
	{
		name:  "and none reaches it without an import",
		only:  []string{"teller.go"},
		finds: nodesThat(callsLogOfConfig),
		bad: `package p
func f() {
	newTeller(cfg.log)
	c.cfg.log.Warn("") // here
}
`,
	},
	{
		name:  "goroutines start where their owner waits for them",
		only:  []string{"client.go", "close.go"},
		finds: nodesThat(isGoStatement),
		bad: `package p
func f() {
	go f() // here
}
`,
	},
	{
		name:  "AfterFunc starts them too",
		only:  []string{"tie.go", "internal/transport/flight.go", "internal/transport/lane.go", "internal/transport/link.go", "internal/transport/primary.go"},
		finds: nodesThat(selectorOf("", "AfterFunc")),
		bad: `package p
func f() {
	time.AfterFunc(1, f) // here
}
`,
	},
	{
		name:  "a WaitGroup starts goroutines too",
		finds: nodesThat(startsByWaitGroup),
		bad: `package p
func f(wg *sync.WaitGroup) {
	wg.Go(func() {}) // here
}
`,
	},
	{
		name:  "nothing sleeps",
		finds: nodesThat(selectorOf("time", "Sleep")),
		bad: `package p
func f() {
	time.Sleep(1) // here
}
`,
	},
	{
		name:  "no func init",
		finds: initFuncs,
		bad: `package p
func (t) init() {}
func init() {} // here
`,
	},
	{
		name:  "package variables are errors, assertions or, where they belong, scripts and traits",
		only:  []string{"internal/wire/scripts.go", "internal/wire/kind.go", "internal/wire/kind_fenced.go", "internal/wire/kind_string.go"},
		finds: packageVars,
		bad: `package p
var _ I = (*T)(nil)
var ErrX, errY = 1, 2
func f() { var inner int; _ = inner }
var cache = map[string]int{} // here
`,
	},
	{
		name:  "contexts begin at the client",
		only:  []string{"client.go"},
		finds: nodesThat(selectorOf("context", "Background", "TODO")),
		bad: `package p
func f() {
	g(context.TODO()) // here
}
`,
	},
	{
		name:  fmt.Sprintf("a file of more than %d lines is split", maxFileLines),
		finds: tooLong,
		bad:   "package p\n" + strings.Repeat("\n", maxFileLines-1) + "const c = 1 // here\n",
	},
}

// TestRoomsOfTheHouseAreKept checks what no linter knows: which file may do what.
func TestRoomsOfTheHouseAreKept(t *testing.T) {
	for _, path := range goFiles(t) {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		s := parseGo(t, path, nil)
		for _, r := range roomRules {
			if slices.Contains(r.only, s.name) {
				continue
			}
			for _, pos := range r.finds(s) {
				t.Errorf("%s: %s; allowed in: %s", s.at(pos), r.name, allowedIn(r.only))
			}
		}
	}
}

// TestPackagesImportOnlyWhatLiesBelowThem keeps the edges between the parts of the library.
func TestPackagesImportOnlyWhatLiesBelowThem(t *testing.T) {
	for _, path := range goFiles(t) {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		s := parseGo(t, path, nil)
		for _, pos := range strayImports(s, filepath.ToSlash(filepath.Dir(path))) {
			t.Errorf("%s: it may import of this module and of go-redis: %q", s.at(pos), parts[filepath.ToSlash(filepath.Dir(path))])
		}
	}
	for from, bad := range map[string]string{
		"internal/wire": "internal/pubsub", "internal/bootclock": "internal/transport", "internal/transport": "internal/wire",
		"internal/pubsub": "internal/orphans", "internal/orphans": "internal/pubsub", ".": "internal/redistest",
	} {
		s := parseGo(t, from+"/bad.go", "package p\nimport \""+modulePath+"/"+bad+"\"\n")
		if len(strayImports(s, from)) != 1 {
			t.Errorf("an import of %s by %s is not found", bad, from)
		}
	}
}

// strayImports are the imports of a file that its package must not have.
func strayImports(s goSource, part string) []token.Pos {
	var found []token.Pos
	for _, spec := range s.file.Imports {
		path, _ := strconv.Unquote(spec.Path.Value)
		inside, ours := strings.CutPrefix(path, modulePath+"/")
		redis := path == redisPath || strings.HasPrefix(path, redisPath+"/")
		switch {
		case ours && slices.Contains(parts[part], inside), redis && slices.Contains(parts[part], redisPath):
		case redis && slices.Contains(redisElsewhere, s.name):
		case ours, redis, path == modulePath:
			found = append(found, spec.Pos())
		}
	}
	return found
}

// TestEveryRuleCatchesItsViolation keeps a rule from passing because it finds nothing at all.
func TestEveryRuleCatchesItsViolation(t *testing.T) {
	for _, r := range roomRules {
		s := parseGo(t, "bad.go", r.bad)
		want := 1 + strings.Count(r.bad[:strings.Index(r.bad, "// here")], "\n")
		found := r.finds(s)
		if len(found) != 1 || s.fset.Position(found[0]).Line != want {
			t.Errorf("rule %q finds %d faults in its bad example, want one on line %d:\n%s", r.name, len(found), want, r.bad)
		}
	}
}

// TestNoNestedModuleIsImported keeps the needs of examples and tools out of the library, tests included.
func TestNoNestedModuleIsImported(t *testing.T) {
	nested := nestedModules(t)
	for _, path := range goFiles(t) {
		s := parseGo(t, path, nil)
		for _, pos := range importsOf(s, nested) {
			t.Errorf("%s: imports a nested module", s.at(pos))
		}
	}

	bad := parseGo(t, "bad.go", "package p\nimport \""+modulePath+"/examples/quickstart\"\n")
	if len(importsOf(bad, []string{modulePath + "/examples"})) != 1 {
		t.Error("an import of a nested module is not found")
	}
	if !slices.Contains(nested, modulePath+"/tools") {
		t.Errorf("tools is not among the nested modules %q", nested)
	}
}

// TestLibraryHasFewRequirements holds go.mod to what the library and its tests need.
func TestLibraryHasFewRequirements(t *testing.T) {
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range foreignRequirements(string(mod)) {
		t.Errorf("go.mod: requires %s directly", path)
	}

	bad := "require example.com/a v1\nrequire (\n\texample.com/b v1 // indirect\n\texample.com/c v1\n\t" + redisPath + " v9\n)\n"
	if got := foreignRequirements(bad); !slices.Equal(got, []string{"example.com/a", "example.com/c"}) {
		t.Errorf("of a bad go.mod, %q is found", got)
	}
}

// directRequirements are the modules that go.mod may name without "// indirect".
var directRequirements = []string{
	redisPath, "github.com/google/uuid", "go.uber.org/zap", "github.com/alicebob/miniredis/v2",
	// Tests only.
	"go.uber.org/goleak", "pgregory.net/rapid", "github.com/anishathalye/porcupine",
}

func foreignRequirements(mod string) []string {
	var found []string
	inBlock := false
	lines := bufio.NewScanner(strings.NewReader(mod))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		rest, single := strings.CutPrefix(line, "require ")
		switch {
		case line == "require (":
			inBlock = true
		case line == ")":
			inBlock = false
		case (inBlock || single) && !strings.HasSuffix(line, "// indirect"):
			if f := strings.Fields(rest); len(f) >= 2 && !slices.Contains(directRequirements, f[0]) {
				found = append(found, f[0])
			}
		}
	}
	return found
}

// nestedModules returns the paths of the modules in folders below this one.
func nestedModules(t *testing.T) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case d.Name() == "go.mod" && path != "go.mod":
			found = append(found, modulePath+"/"+filepath.ToSlash(filepath.Dir(path)))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func goFiles(t *testing.T) []string {
	t.Helper()
	var all []string
	for part := range parts {
		files, err := filepath.Glob(filepath.Join(part, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no Go files in %s: %v", part, err)
		}
		all = append(all, files...)
	}
	return all
}

// parseGo reads the file at path, or src when it is a string.
func parseGo(t *testing.T, path string, src any) goSource {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return goSource{name: filepath.ToSlash(filepath.Clean(path)), fset: fset, file: file}
}

func (s goSource) at(pos token.Pos) string {
	p := s.fset.Position(pos)
	return fmt.Sprintf("%s:%d", s.name, p.Line)
}

func allowedIn(only []string) string {
	if len(only) == 0 {
		return "no file"
	}
	return strings.Join(only, ", ")
}

// importsOf returns the imports of the given modules and of packages in them.
func importsOf(s goSource, modules []string) []token.Pos {
	var found []token.Pos
	for _, spec := range s.file.Imports {
		path, _ := strconv.Unquote(spec.Path.Value)
		if slices.ContainsFunc(modules, func(m string) bool { return path == m || strings.HasPrefix(path, m+"/") }) {
			found = append(found, spec.Pos())
		}
	}
	return found
}

func importsOfZap(s goSource) []token.Pos { return importsOf(s, []string{"go.uber.org/zap"}) }

// nodesThat makes a finder of every node that match accepts.
func nodesThat(match func(ast.Node) bool) func(goSource) []token.Pos {
	return func(s goSource) []token.Pos {
		var found []token.Pos
		ast.Inspect(s.file, func(n ast.Node) bool {
			if n != nil && match(n) {
				found = append(found, n.Pos())
			}
			return true
		})
		return found
	}
}

func isGoStatement(n ast.Node) bool {
	_, is := n.(*ast.GoStmt)
	return is
}

func startsByWaitGroup(n ast.Node) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "Go"
}

// callsLogOfConfig finds a method of what the field log of a config keeps.
func callsLogOfConfig(n ast.Node) bool {
	sel, ok := n.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	log, ok := sel.X.(*ast.SelectorExpr)
	return ok && log.Sel.Name == "log"
}

// selectorOf finds the names of a package; of any when pkg is empty.
func selectorOf(pkg string, names ...string) func(ast.Node) bool {
	return func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok || !slices.Contains(names, sel.Sel.Name) {
			return false
		}
		x, ok := sel.X.(*ast.Ident)
		return ok && (pkg == "" || x.Name == pkg)
	}
}

func initFuncs(s goSource) []token.Pos {
	var found []token.Pos
	for _, d := range s.file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
			found = append(found, f.Pos())
		}
	}
	return found
}

func packageVars(s goSource) []token.Pos {
	var found []token.Pos
	for _, d := range s.file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.VAR {
			continue
		}
		for _, spec := range g.Specs {
			for _, id := range spec.(*ast.ValueSpec).Names {
				if id.Name != "_" && !strings.HasPrefix(id.Name, "Err") && !strings.HasPrefix(id.Name, "err") {
					found = append(found, id.Pos())
				}
			}
		}
	}
	return found
}

func tooLong(s goSource) []token.Pos {
	f := s.fset.File(s.file.FileStart)
	last := f.Line(s.file.FileEnd - 1)
	if last <= maxFileLines {
		return nil
	}
	return []token.Pos{f.LineStart(last)}
}
