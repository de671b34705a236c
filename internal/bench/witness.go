package main

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// witness sees whether a lock excludes: each section reads a counter, and writes
// it back with one added. Two at once lose an increment or meet each other. It
// may lie in memory that processes share.
type witness struct {
	n      int64
	inside int64
	met    int64
}

// section is one critical section of about d. It works for so long: a sleep would
// take longer, the more so the less else runs.
func (w *witness) section(d time.Duration) {
	n := atomic.LoadInt64(&w.n)
	if atomic.SwapInt64(&w.inside, 1) != 0 {
		atomic.AddInt64(&w.met, 1)
	}
	for began := time.Now(); d > 0 && time.Since(began) < d; {
		continue
	}
	atomic.StoreInt64(&w.n, n+1) // not an addition: that would protect it
	atomic.StoreInt64(&w.inside, 0)
}

// check fails unless there were exactly want sections, each alone.
func (w *witness) check(want int64) error {
	n, met := atomic.LoadInt64(&w.n), atomic.LoadInt64(&w.met)
	if n != want || met != 0 {
		return &brokenError{fmt.Sprintf("%d of %d increments lost, %d sections met another", want-n, want, met)}
	}
	return nil
}

// brokenError says that two were inside at once.
type brokenError struct{ how string }

func (e *brokenError) Error() string { return "not exclusive: " + e.how }

// sharedWitness is the witness in a file, which it makes if it is not there. The
// mapping lasts until the process ends.
func sharedWitness(path string) (*witness, error) {
	const size = 4096
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		return nil, err
	}
	page, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return (*witness)(unsafe.Pointer(&page[0])), nil
}
