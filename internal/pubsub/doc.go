// Package pubsub hears of releases. It keeps the connections for messages, the ears, and tells the
// listeners of a channel what came in on it.
package pubsub
