package main

import (
	"path/filepath"
	"runtime"
	"time"
)

// trial is one measurement of one adapter.
type trial struct {
	srv     *server
	adapter adapter
	plan    plan
	name    string // of its locks, which no other trial has
	jvms    *jvms
}

func (t trial) open() (session, error) { return t.adapter.open(conditions{t.srv.addr, lockTTL}) }

// warmUp is how long a crowd works before it is measured. By then the compiler of
// a JVM has seen the code.
func (t trial) warmUp() time.Duration {
	if t.adapter.jvm && !t.plan.smoke {
		return 3 * time.Second
	}
	return t.plan.span / 5
}

// witness is a shared one that nobody has used, and its file.
func (t trial) witness() (*witness, string, error) {
	path := filepath.Join(t.srv.dir, filepath.Base(t.name))
	seen, err := sharedWitness(path)
	return seen, path, err
}

// books is how things stood at an instant.
type books struct {
	at              time.Time
	calls           map[string]int64 // by command, those of scripts too
	server, clients time.Duration    // on the CPU
	mallocs, bytes  uint64           // of this process
}

// look opens or closes the books of a span. pids are the clients'.
func (t trial) look(pids ...int) (b books, err error) {
	if b.calls, err = t.srv.calls(); err != nil {
		return b, err
	}
	b.at = time.Now()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.mallocs, b.bytes = m.Mallocs, m.TotalAlloc
	for _, pid := range pids {
		cpu, err := processCPU(pid)
		if err != nil {
			return b, err
		}
		b.clients += cpu
	}
	b.server, err = processCPU(t.srv.cmd.Process.Pid)
	return b, err
}

// costs writes what each of n operations, seconds or the like between two looks took.
func (t trial) costs(f figures, before, after books, n float64) {
	each := max(n, 1)
	out, all := t.adapter.commands(before, after)
	f[sent], f[ran] = float64(out)/each, float64(all)/each
	f[clientCPU] = (after.clients - before.clients).Seconds() / each
	f[serverCPU] = (after.server - before.server).Seconds() / each
	if t.adapter.jvm {
		// The release script deletes the lock, and Redisson sends a DEL of its own
		// after it: of those, the books have the sum.
		f[sent]--
		return // it does not tell what it allocates
	}
	f[allocs], f[allocated] = float64(after.mallocs-before.mallocs)/each, float64(after.bytes-before.bytes)/each
}

// connections writes how many there are.
func (t trial) connections(f figures) error {
	all, subscribed, err := t.srv.clients()
	f[connections], f[subscribers] = float64(all), float64(subscribed)
	return err
}

// memory is what this process has in use, heap and stacks, after a collection.
func memory() float64 {
	runtime.GC()
	runtime.GC() // what pools kept until the first goes with the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse)
}
