package interop

import (
	"slices"
	"strconv"
	"strings"
	"testing"
)

// stringHistory is what became of one string key, as the server told it.
type stringHistory struct {
	grants, releases int
	holder           string
	holders          []string // in their order
}

// replay runs the commands of MONITOR's lines on a model of the key, which must
// not expire meanwhile. It fails the test, and ends, when the key of a holder is set
// anew, or deleted by anything that did not name the holder.
func replay(t testing.TB, key string, lines []string) *stringHistory {
	t.Helper()
	h := &stringHistory{}
	var script []string // the arguments of the script that runs
	for _, line := range lines {
		args, inScript := monitored(t, line)
		name := strings.ToUpper(args[0])
		if !inScript && (name == "EVAL" || name == "EVALSHA") {
			script = args
		}
		if !slices.Contains(args[1:], key) || slices.Contains([]string{"EVAL", "EVALSHA", "GET", "MGET", "GETRANGE", "PTTL", "EXISTS", "PEXPIRE"}, name) {
			continue
		}
		by := args
		if inScript {
			by = script
		}
		if fault := h.write(name, args, by); fault != "" {
			t.Errorf("%s: %s, held by %q, by %q", fault, line, h.holder, by)
			break
		}
	}
	return h
}

// write runs a command that may change the key. The holder must be named among
// by, the arguments of the command or of its script, if it is to lose the key.
func (h *stringHistory) write(name string, args, by []string) (fault string) {
	free := h.holder == ""
	switch {
	case name == "SET" && contains(args, "NX"), name == "MSETNX":
		if free {
			h.grant(args[2])
		}
	case name == "SET" && free: // by a script that has looked
		h.grant(args[2])
	case name == "DELEX" && !contains(args, "IFEQ"):
		return "deleted without a comparison"
	case name == "DELEX" && args[3] != h.holder: // not done
	case name == "DEL", name == "DELEX":
		if !free && !contains(by, h.holder) {
			return "deleted for somebody else"
		}
		if free {
			return "deleted a free key"
		}
		h.releases++
		h.holder = ""
	default:
		return "unexpected"
	}
	return ""
}

func (h *stringHistory) grant(holder string) {
	h.grants++
	h.holder = holder
	h.holders = append(h.holders, holder)
}

// contains looks for an argument in any case.
func contains(args []string, arg string) bool {
	return slices.ContainsFunc(args, func(a string) bool { return strings.EqualFold(a, arg) })
}

// monitored takes a line of MONITOR apart, and tells whether a script ran it.
func monitored(t testing.TB, line string) (args []string, inScript bool) {
	t.Helper()
	where, rest, ok := strings.Cut(line, "] ")
	for rest != "" && ok {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			break
		}
		arg, err := strconv.Unquote(quoted)
		if err != nil {
			break
		}
		args = append(args, arg)
		rest = strings.TrimPrefix(rest[len(quoted):], " ")
	}
	if !ok || rest != "" || len(args) == 0 {
		t.Fatalf("MONITOR said %q", line)
	}
	return args, strings.HasSuffix(where, " lua")
}
