// Package wire is what locks look like in Redis: keys, owners, the kinds with their scripts, and
// how replies are read. Milliseconds, KEYS and ARGV exist here alone.
package wire
