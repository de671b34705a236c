package watchlock

import (
	"time"
)

// entry is a burst's place in the watchdog's heap.
type entry struct {
	at    time.Duration
	index int32 // in the heap plus 1; 0 when it is not in it
	known bool
}

// bursts is a heap by due time.
type bursts []*burst

func (h bursts) Len() int { return len(h) }

func (h bursts) Less(i, j int) bool { return h[i].entry.at < h[j].entry.at }

func (h bursts) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].entry.index, h[j].entry.index = int32(i)+1, int32(j)+1 //nolint:gosec // fewer than 2^31 locks fit into memory
}

// Push is heap.Interface's.
func (h *bursts) Push(x any) {
	b := x.(*burst)
	b.entry.index = int32(len(*h)) + 1 //nolint:gosec // as above
	*h = append(*h, b)
}

// Pop is heap.Interface's.
func (h *bursts) Pop() any {
	old := *h
	b := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	b.entry.index = 0
	return b
}
