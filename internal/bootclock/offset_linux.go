package bootclock

import (
	"syscall"
	"time"
	"unsafe"
)

const (
	clockMonotonic = 1
	clockBoottime  = 7
)

// Offset is CLOCK_BOOTTIME - CLOCK_MONOTONIC. The goroutine may be stopped
// between the readings, so it reads the monotonic clock on both sides and takes
// the tightest of a few tries: it is too small by at most the time between them.
func Offset() time.Duration {
	best, width := time.Duration(0), time.Duration(-1)
	for range 5 {
		before := readClock(clockMonotonic)
		boot := readClock(clockBoottime)
		after := readClock(clockMonotonic)
		if w := after - before; width < 0 || w < width {
			best, width = boot-after, w
		}
		if width < 50*time.Microsecond {
			break
		}
	}
	return best
}

func readClock(id uintptr) time.Duration {
	var ts syscall.Timespec
	_, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, id, uintptr(unsafe.Pointer(&ts)), 0) //nolint:gosec // the kernel writes one Timespec
	if errno != 0 {
		return 0
	}
	return time.Duration(ts.Nano())
}
