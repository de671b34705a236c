package interop

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	portingGuide    = "../../docs/porting-from-redisson.md"
	maxPortingLines = 520
)

// portingRegion is a part of a source file that the guide shows.
type portingRegion struct{ name, text string }

func portingText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.FromSlash(path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func portingGoRegions(t *testing.T) []portingRegion { return portingRegions(t, "porting/*.go") }
func portingKotlinRegions(t *testing.T) []portingRegion {
	return portingRegions(t, "peers/porting/src/main/kotlin/*.kt")
}

func portingRegions(t *testing.T, pattern string) (found []portingRegion) {
	t.Helper()
	paths, err := filepath.Glob(filepath.FromSlash(pattern))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no %s: %v", pattern, err)
	}
	for _, path := range paths {
		regions, ok := portingCut(portingText(t, path))
		if !ok {
			t.Errorf("a region in %s has no end, or an end no region", path)
		}
		found = append(found, regions...)
	}
	return found
}

// portingCut finds the regions in a source, and reports whether each has an end.
func portingCut(source string) (found []portingRegion, ok bool) {
	pattern := regexp.MustCompile(`(?ms)^// guide: (\S+)\n(.*?)^// end$`)
	for _, m := range pattern.FindAllStringSubmatch(source, -1) {
		found = append(found, portingRegion{m[1], strings.Trim(m[2], "\n") + "\n"})
	}
	starts := strings.Count(source, "// guide: ")
	ends := len(regexp.MustCompile(`(?m)^// end$`).FindAllString(source, -1))
	return found, starts == len(found) && ends == len(found)
}

// portingFence is a snippet of the guide, and the heading it is under.
type portingFence struct{ section, language, text string }

func portingFences(guide string) (found []portingFence) {
	for _, section := range regexp.MustCompile(`(?m)^#`).Split(guide, -1) {
		title, _, _ := strings.Cut(section, "\n")
		for _, m := range regexp.MustCompile("(?ms)^```(\\S*)[^\n]*\n(.*?)^```$").FindAllStringSubmatch(section, -1) {
			found = append(found, portingFence{title, m[1], m[2]})
		}
	}
	return found
}

// portingFaults compares the guide with the sources.
func portingFaults(guide string, regions map[string][]portingRegion) (faults []string) {
	shown := make(map[string]int)
	sections := make(map[string]map[string]bool) // of each, the idioms by language
	for _, fence := range portingFences(guide) {
		if regions[fence.language] == nil {
			continue // a command for the shell
		}
		i := slices.IndexFunc(regions[fence.language], func(r portingRegion) bool { return r.text == fence.text })
		if i < 0 {
			faults = append(faults, "no region is this snippet:\n"+fence.text)
			continue
		}
		name := regions[fence.language][i].name
		shown[fence.language+" "+name]++
		idiom, _, _ := strings.Cut(name, "-")
		if sections[fence.section] == nil {
			sections[fence.section] = make(map[string]bool)
		}
		sections[fence.section][fence.language+" "+idiom] = true
	}
	for language, list := range regions {
		for _, region := range list {
			if n := shown[language+" "+region.name]; n != 1 {
				faults = append(faults, fmt.Sprintf("the %s region %s is shown %d times", language, region.name, n))
			}
		}
	}
	for section, idioms := range sections {
		for idiom := range idioms {
			language, name, _ := strings.Cut(idiom, " ")
			other := map[string]string{"go": "kotlin", "kotlin": "go"}[language]
			if !idioms[other+" "+name] {
				faults = append(faults, "under"+section+", "+name+" is shown in "+language+" only")
			}
		}
	}
	return faults
}

func TestTheGuideShowsItsSourcesWordForWord(t *testing.T) {
	regions := map[string][]portingRegion{"go": portingGoRegions(t), "kotlin": portingKotlinRegions(t)}
	guide := portingText(t, portingGuide)
	for _, fault := range portingFaults(guide, regions) {
		t.Error(fault)
	}
	if n := strings.Count(guide, "\n"); n > maxPortingLines {
		t.Errorf("the guide has %d lines", n)
	}
	snippet := portingFences(guide)[0].text
	for what, bad := range map[string]string{
		"a changed snippet":          strings.Replace(guide, snippet, strings.Replace(snippet, "(", "( ", 1), 1),
		"a missing snippet":          strings.Replace(guide, snippet, "", 1),
		"a snippet without its pair": strings.Replace(guide, "```go", "# Elsewhere\n\n```go", 1),
	} {
		if len(portingFaults(bad, regions)) == 0 {
			t.Errorf("%s is not noticed", what)
		}
	}
	if _, ok := portingCut("// guide: a\ntext\n"); ok {
		t.Error("a region without its end is not noticed")
	}
}

func TestTheGuidesLinksAndTestsExist(t *testing.T) {
	guide := portingText(t, portingGuide)
	for _, link := range regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`).FindAllStringSubmatch(guide, -1) {
		if _, err := os.Stat(filepath.Join("../../docs", filepath.FromSlash(link[1]))); err != nil {
			t.Errorf("a link leads nowhere: %v", err)
		}
	}
	tests := portingText(t, "porting_test.go") + portingText(t, "porting_meanings_test.go")
	names := regexp.MustCompile("→ `(\\w+)`").FindAllStringSubmatch(guide, -1)
	if len(names) == 0 {
		t.Error("the guide names no test")
	}
	for _, name := range names {
		if !strings.Contains(tests, "\nfunc porting"+name[1]+"(") {
			t.Errorf("the guide names the test %s, which does not exist", name[1])
		}
	}
}
