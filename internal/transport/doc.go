// Package transport carries commands to Redis and back: the runner and its lanes, the connections
// of our own, the passage through the caller's hooks, which server is the primary, and what an
// error says of the call that got it. It knows nothing of locks.
package transport
