package watchlock

// NewSetNXMutex returns the lock called name in the string form: a key set by
// SET NX PX and deleted when its value is still the owner's. It excludes everybody
// who uses that recipe on the key, in any language, and works like a Mutex in all
// else. Holders that are not this package's publish nothing, so a waiter polls
// each 500 ms, or the maximum poll interval if that is less. On Redis 8.4 and
// later acquire and release run no script, and a user without the right to EVAL
// can lock: then renewals run none either, are refused when Redis is full, and a
// lease cannot be extended (errors.ErrUnsupported). Elsewhere Lua compares. A user
// who can do neither is told so before anything is taken.
func (c *Client) NewSetNXMutex(name string, opts ...LockOption) *Mutex {
	return c.newMutex(c.strings, name, opts)
}
