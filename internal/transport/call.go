package transport

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1
	"encoding/hex"
)

// Script is a Lua program and the name Redis gives it.
type Script struct {
	Source string
	Sha    any  // a string, boxed once
	Mixed  bool // it answers more than integers
}

// NewScript makes a script of its source, which answers integers.
func NewScript(source string) *Script {
	sum := sha1.Sum([]byte(source)) //nolint:gosec // as above
	return &Script{Source: source, Sha: hex.EncodeToString(sum[:])}
}

// Call is what leaves at once: one run of a script, or a few plain commands in
// one pipeline.
type Call struct {
	Script *Script
	Nkeys  int
	short  [4]any // keys, then arguments, of a script that has few
	n      int    // of short
	Long   []any  // of one that has more

	Plain [][]any
}

// Put appends a key or an argument.
func (c *Call) Put(arg any) {
	if c.Long == nil && c.n < len(c.short) {
		c.short[c.n] = arg
		c.n++
		return
	}
	if c.Long == nil {
		c.Long = append(make([]any, 0, 4*len(c.short)), c.short[:c.n]...)
	}
	c.Long = append(c.Long, arg)
}

// Params are the keys and arguments.
func (c *Call) Params() []any {
	if c.Long != nil {
		return c.Long
	}
	return c.short[:c.n]
}

// key is c's first key.
func (c *Call) key() string {
	var key any
	if c.Script != nil {
		key = c.Params()[0]
	} else {
		key = c.Plain[0][1]
	}
	name, _ := key.(string)
	return name
}

// Then is c and d in one pipeline.
func (c Call) Then(d Call) Call { return Call{Plain: append(c.Plain, d.Plain...)} }
