//go:build !race

package locktest

// RaceEnabled reports whether the race detector, which allocates, is in the build.
const RaceEnabled = false
