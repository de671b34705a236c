//go:build !race

package watchlock

// raceEnabled reports whether the race detector, which allocates, is in the build.
const raceEnabled = false
