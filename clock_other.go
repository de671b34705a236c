//go:build !linux

package watchlock

import "time"

// bootOffset is constant where no boot clock is read: a suspended machine is
// then noticed only by what Redis answers next.
func bootOffset() time.Duration { return 0 }
