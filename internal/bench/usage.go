package main

import (
	"runtime"
	"syscall"
	"time"
)

// usage is what this process has used up to an instant.
type usage struct {
	Mallocs uint64
	Bytes   uint64
	CPU     time.Duration
}

func readUsage() usage {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r) // it has no other errors than a bad argument
	return usage{m.Mallocs, m.TotalAlloc, time.Duration(r.Utime.Nano() + r.Stime.Nano())}
}

// since is what was used between two looks.
func (u usage) since(before usage) usage {
	return usage{u.Mallocs - before.Mallocs, u.Bytes - before.Bytes, u.CPU - before.CPU}
}

func (u usage) plus(v usage) usage {
	return usage{u.Mallocs + v.Mallocs, u.Bytes + v.Bytes, u.CPU + v.CPU}
}

// memory is what this process has in use, heap and stacks, after a collection.
func memory() float64 {
	runtime.GC()
	runtime.GC() // what pools kept until the first goes with the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse)
}
