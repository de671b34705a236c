package locktest

import (
	"math"
	"time"
)

// What the documentation promises, as tests of it go by.
const (
	WatchdogTimeoutByDefault = 30 * time.Second
	UnlockTimeoutByDefault   = 2 * time.Second
	PollIntervalByDefault    = 5 * time.Second
	WindowByDefault          = 2 * time.Millisecond
	shortestPoll             = 250 * time.Millisecond
	ShortestPause            = 5 * time.Millisecond // after a try that got no reply
	LongestPause             = 500 * time.Millisecond
	AfterTheTTL              = 2 * time.Millisecond // a waiter tries then
	JitterAtTheTTL           = 10 * time.Millisecond
	BetweenVerifications     = 50 * time.Millisecond // that messages cause
	LongestRelaying          = 100 * time.Millisecond
	TokensForEach            = 64 // waiters
	Unbounded                = time.Duration(math.MaxInt64)
)
