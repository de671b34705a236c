package main

import (
	"math/bits"
	"time"
)

const (
	histogramFine = 5  // bits: buckets are 3 % wide
	histogramMost = 42 // bits: more than an hour
)

// histogram counts durations without allocating.
type histogram struct {
	counts [(histogramMost - histogramFine + 1) << histogramFine]uint32
	n      int64
	max    time.Duration
}

// bucket is where d is counted: as it is below 2^histogramFine ns, and by its
// leading bits above.
func bucket(d time.Duration) int {
	v := uint64(max(d, 0))
	shift := max(bits.Len64(v)-1-histogramFine, 0)
	if shift+histogramFine >= histogramMost {
		return len(histogram{}.counts) - 1
	}
	return shift<<histogramFine + int(v>>shift)
}

// middle is the duration that bucket i stands for.
func middle(i int) time.Duration {
	shift := max(i>>histogramFine-1, 0)
	v := int64(i - shift<<histogramFine)
	return time.Duration(v<<shift + (1<<shift)/2)
}

func (h *histogram) add(d time.Duration) { h.addMany(d, 1) }

func (h *histogram) addMany(d time.Duration, n int64) {
	h.counts[bucket(d)] += uint32(n)
	h.n += n
	h.max = max(h.max, d)
}

// pairs are durations, and how often there was one like it.
func (h *histogram) pairs() (list [][2]int64) {
	for i, n := range h.counts {
		if n > 0 {
			list = append(list, [2]int64{int64(middle(i)), int64(n)})
		}
	}
	return list
}

// quantile is the duration that a share q of all is not above.
func (h *histogram) quantile(q float64) time.Duration {
	rank := int64(q * float64(h.n))
	for i, n := range h.counts {
		if rank -= int64(n); rank < 0 {
			return min(middle(i), h.max)
		}
	}
	return h.max
}

// into writes the quantiles in seconds.
func (h *histogram) into(f figures) {
	if h.n == 0 {
		return
	}
	f[p50], f[p99], f[longest] = h.quantile(0.5).Seconds(), h.quantile(0.99).Seconds(), h.max.Seconds()
}
