package watchlock

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1
	"encoding/hex"
)

// script is a Lua program and the name Redis gives it.
type script struct {
	source string
	sha    any  // a string, boxed once
	mixed  bool // it answers more than integers
}

func newScript(source string) *script {
	sum := sha1.Sum([]byte(source)) //nolint:gosec // as above
	return &script{source: source, sha: hex.EncodeToString(sum[:])}
}

// call is what leaves at once: one run of a script, or a few plain commands in
// one pipeline.
type call struct {
	script *script
	nkeys  int
	short  [4]any // keys, then arguments, of a script that has few
	n      int    // of short
	long   []any  // of one that has more

	plain [][]any
}

// put appends a key or an argument.
func (c *call) put(arg any) {
	if c.long == nil && c.n < len(c.short) {
		c.short[c.n] = arg
		c.n++
		return
	}
	if c.long == nil {
		c.long = append(make([]any, 0, 4*len(c.short)), c.short[:c.n]...)
	}
	c.long = append(c.long, arg)
}

// params are the keys and arguments.
func (c *call) params() []any {
	if c.long != nil {
		return c.long
	}
	return c.short[:c.n]
}

// key is c's first key.
func (c *call) key() string {
	var key any
	if c.script != nil {
		key = c.params()[0]
	} else {
		key = c.plain[0][1]
	}
	name, _ := key.(string)
	return name
}

// then is c and d in one pipeline.
func (c call) then(d call) call { return call{plain: append(c.plain, d.plain...)} }
