package redistest

import (
	"crypto/sha1"
	"encoding/hex"
	"strings"
	"sync"
	"time"
)

// Command is one command as it passed from a client to a server.
type Command struct {
	Name string   // in upper case
	Args []string // what followed the name
	Time time.Time
	Conn int // number of the connection, from 1 in the order of dials
}

func newCommand(frame []byte, conn int) Command {
	words := frameStrings(frame)
	if len(words) == 0 {
		return Command{Time: time.Now(), Conn: conn}
	}
	return Command{Name: strings.ToUpper(words[0]), Args: words[1:], Time: time.Now(), Conn: conn}
}

// Arg returns the i-th argument after the name, or "" when there is none.
func (c Command) Arg(i int) string {
	if i < 0 || i >= len(c.Args) {
		return ""
	}
	return c.Args[i]
}

// String returns the command as text, its arguments parted by spaces.
func (c Command) String() string {
	return strings.Join(append([]string{c.Name}, c.Args...), " ")
}

// Match chooses commands. It is called for each command in turn, on the
// goroutine of the connection, and must not block.
type Match func(c Command) bool

// Any matches every command.
func Any(Command) bool { return true }

// Is matches commands by name, in any case.
func Is(name string) Match {
	return func(c Command) bool { return strings.EqualFold(c.Name, name) }
}

// Runs matches EVAL of exactly this script and EVALSHA of its hash, and their
// read-only forms.
func Runs(script string) Match {
	sum := sha1.Sum([]byte(script))
	hash := hex.EncodeToString(sum[:])
	return func(c Command) bool {
		switch c.Name {
		case "EVAL", "EVAL_RO":
			return c.Arg(0) == script
		case "EVALSHA", "EVALSHA_RO":
			return strings.EqualFold(c.Arg(0), hash)
		}
		return false
	}
}

// Mentions matches what m matches when one of the arguments is exactly arg,
// such as a key, a channel or an owner.
func (m Match) Mentions(arg string) Match {
	return func(c Command) bool {
		for _, a := range c.Args {
			if a == arg {
				return m(c)
			}
		}
		return false
	}
}

// commandLog collects commands. Safe for concurrent use.
type commandLog struct {
	mu   sync.Mutex
	list []Command
}

func (l *commandLog) add(c Command) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, c)
}

func (l *commandLog) all() []Command {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Command(nil), l.list...)
}

func (l *commandLog) count(match Match) int {
	n := 0
	for _, c := range l.all() {
		if match(c) {
			n++
		}
	}
	return n
}

func (l *commandLog) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = nil
}
