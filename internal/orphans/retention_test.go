package orphans

import (
	"testing"
	"time"
)

func TestAnOrphanIsReleasedForItsLeaseAndAtMostTwoMinutesMore(t *testing.T) {
	const longest = 100 * 365 * 24 * time.Hour
	for lease := 10 * time.Millisecond; lease < longest; lease += lease/7 + time.Microsecond {
		if kept := retention(lease); kept < lease || kept > lease+orphanMost {
			t.Errorf("an orphan of %v is kept for %v", lease, kept)
		}
	}
}
