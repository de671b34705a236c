package watchlock

import (
	"math"
	"time"
)

// What the documentation promises, as tests of it go by.
const (
	watchdogTimeoutByDefault = 30 * time.Second
	unlockTimeoutByDefault   = 2 * time.Second
	pollIntervalByDefault    = 5 * time.Second
	windowByDefault          = 2 * time.Millisecond
	shortestPoll             = 250 * time.Millisecond
	shortestPause            = 5 * time.Millisecond // after a try that got no reply
	longestPause             = 500 * time.Millisecond
	afterTheTTL              = 2 * time.Millisecond // a waiter tries then
	jitterAtTheTTL           = 10 * time.Millisecond
	betweenVerifications     = 50 * time.Millisecond // that messages cause
	longestRelaying          = 100 * time.Millisecond
	tokensForEach            = 64 // waiters
	unbounded                = time.Duration(math.MaxInt64)
)
