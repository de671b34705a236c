package locktest

import (
	"fmt"
	"os"
	"reflect"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/orphans"
	"github.com/seed-8c25f305/watchlock/internal/pubsub"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// This file is all that tests of what users see look at behind the API. The fields are
// those of the types in the root package, by name: a field that is not there is a panic.

// field is where a field of what p points to lies, as a *T.
func field[T any](p any, names ...string) *T {
	v := reflect.ValueOf(p).Elem()
	for _, name := range names {
		for v.Kind() == reflect.Pointer {
			v = v.Elem()
		}
		v = v.FieldByName(name)
	}
	if want := reflect.TypeFor[T](); v.Type() != want {
		panic(fmt.Sprintf("locktest: %v of a %T is a %v, no %v", names, p, v.Type(), want))
	}
	return (*T)(unsafe.Pointer(v.UnsafeAddr()))
}

// OwnerOf is the owner that a lease stands on.
func OwnerOf(l *watchlock.Lease) string {
	return fmt.Sprint(*field[wire.Owner](l, "hold", "burst", "owner"))
}

// BurstOf is the burst that a lease stands on, to be compared.
func BurstOf(l *watchlock.Lease) any {
	return reflect.ValueOf(l).Elem().FieldByName("hold").Elem().FieldByName("burst").Pointer()
}

// TokenOf is the token of a lease of a fenced lock.
func TokenOf(l *watchlock.Lease) int64 { return *field[int64](l, "hold", "token") }

// LeaseOf is the lease without its token; nil of nil.
func LeaseOf(l *watchlock.FencedLease) *watchlock.Lease {
	if l == nil {
		return nil
	}
	return *field[*watchlock.Lease](l, "lease")
}

// KeysOf are the places of a lock in Redis.
func KeysOf(m *watchlock.Mutex) *wire.Keys { return field[wire.Keys](m, "keys") }

// OrphansOf are the owners that a client releases in the background.
func OrphansOf(c *watchlock.Client) *orphans.Orphanage {
	return *field[*orphans.Orphanage](c, "orphans")
}

// SubscriberOf is what hears messages for a client.
func SubscriberOf(c *watchlock.Client) *pubsub.Subscriber {
	return *field[*pubsub.Subscriber](c, "subs")
}

// RunnerOf is what carries commands for a client.
func RunnerOf(c *watchlock.Client) *transport.Runner { return *field[*transport.Runner](c, "runner") }

// ofGate reads a field of the gate of a lock, under its mutex; false when there is no gate yet.
func ofGate[T any](m *watchlock.Mutex, names ...string) (value T, there bool) {
	keys := KeysOf(m)
	c := reflect.ValueOf(m).Elem().FieldByName("c")
	clients := (*sync.Mutex)(unsafe.Pointer(c.Elem().FieldByName("mu").UnsafeAddr()))
	clients.Lock()
	var gate reflect.Value
	for i, gates := 0, c.Elem().FieldByName("gates"); i < gates.Len(); i++ {
		for of := gates.Index(i).MapRange(); of.Next(); {
			at := (*wire.Keys)(unsafe.Pointer(of.Value().Elem().FieldByName("keys").Pointer()))
			if at.Key == keys.Key && at.Channel == keys.Channel {
				gate = of.Value()
			}
		}
	}
	clients.Unlock()
	if !gate.IsValid() {
		return value, false
	}
	mu := (*sync.Mutex)(unsafe.Pointer(gate.Elem().FieldByName("mu").UnsafeAddr()))
	mu.Lock()
	defer mu.Unlock()
	v := gate
	for _, name := range names {
		for v.Kind() == reflect.Pointer {
			v = v.Elem()
		}
		v = v.FieldByName(name)
	}
	return *(*T)(unsafe.Pointer(v.UnsafeAddr())), true
}

// QueuedOn is how many calls wait in this client for the lock.
func QueuedOn(m *watchlock.Mutex) int {
	n, _ := ofGate[int](m, "queue", "n")
	return n
}

// AttemptsOn is how often this client has tried to take the lock since it began
// to wait for it.
func AttemptsOn(m *watchlock.Mutex) int {
	n, _ := ofGate[int](m, "attempts")
	return n
}

// HintsOf is how many hints the gate of m has had.
func HintsOf(t testing.TB, m *watchlock.Mutex) uint64 {
	t.Helper()
	n, _ := ofGate[uint64](m, "hints")
	return n
}

func stringsOf(c *watchlock.Client) *wire.StringKind { return *field[*wire.StringKind](c, "strings") }

// knowRights has a client take the rights of its user for granted.
func knowRights(c *watchlock.Client) {
	for _, k := range []wire.Kind{wire.HashKind{}, wire.FencedKind{}, stringsOf(c)} {
		field[wire.Rights](c, "rights").Learn(k)
	}
}

// ForgetRights has a client ask again what its user may do.
func ForgetRights(c *watchlock.Client) { field[wire.Rights](c, "rights").Granted.Clear() }

// KnowServer makes c know whether its one server needs scripts for the string
// form, which it would find out with its first locks.
func KnowServer(c *watchlock.Client, scripts bool) *watchlock.Client {
	mode := wire.ModePlain
	if scripts {
		mode = wire.ModeScript
	}
	stringsOf(c).Ways.Learn(&wire.Keys{}, mode)
	return c
}

// NewTestMutex is a lock of the kind that the tests are run for: WATCHLOCK_KIND is fenced,
// setnx or, the default, mutex.
func NewTestMutex(c *watchlock.Client, name string, opts ...watchlock.LockOption) *watchlock.Mutex {
	switch k := os.Getenv("WATCHLOCK_KIND"); k {
	case "", "mutex":
		return c.NewMutex(name, opts...)
	case "fenced":
		return PlainMutexOf(c.NewFencedMutex(name, opts...))
	case "setnx":
		return c.NewSetNXMutex(name, opts...)
	default:
		panic("WATCHLOCK_KIND is " + k)
	}
}

// MutexOf is a lock of a kind that is named as the tests do.
func MutexOf(c *watchlock.Client, kind, name string) *watchlock.Mutex {
	switch kind {
	case "fenced":
		return PlainMutexOf(c.NewFencedMutex(name))
	case "string", "setnx":
		return c.NewSetNXMutex(name)
	}
	return c.NewMutex(name)
}

// PlainMutexOf is a fenced lock without its tokens.
func PlainMutexOf(m *watchlock.FencedMutex) *watchlock.Mutex {
	return *field[*watchlock.Mutex](m, "m")
}

// UnlockTimeoutOf is a client's.
func UnlockTimeoutOf(c *watchlock.Client) time.Duration {
	return *field[time.Duration](c, "cfg", "unlockTimeout")
}

// ChannelsOf are those that a client uses.
func ChannelsOf(c *watchlock.Client) watchlock.Channels {
	return *field[watchlock.Channels](c, "channels")
}
