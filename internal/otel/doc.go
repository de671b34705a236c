// Package otel proves that tracing sees a lock: each command of a lock on a client
// with redisotel's hook has a span. It is a module of its own, so that the library
// requires no tracing.
package otel
