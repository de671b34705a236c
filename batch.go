package watchlock

import (
	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// batchSize is how many keys there are in one script at most.
const batchSize = 100

// batchKey says what can share a script. Slot is -1 where all keys can.
type batchKey struct {
	kind kind
	slot int
	key  string // of one that goes alone
}

// batchOf says with what a lock can share a script.
func batchOf(r *transport.Runner, k kind, keys *lockKeys, alone bool) batchKey {
	b := batchKey{kind: k, slot: -1}
	if r.BySlot() {
		b.slot = keys.slot
	}
	if alone {
		b.key = keys.key
	}
	return b
}

// inBatches splits items into groups of one batchKey and at most batchSize.
func inBatches[T any](items []T, key func(T) batchKey) [][]T {
	var batches [][]T
	open := make(map[batchKey]int)
	for _, it := range items {
		k := key(it)
		i, ok := open[k]
		if !ok || len(batches[i]) == batchSize {
			i = len(batches)
			open[k] = i
			batches = append(batches, nil)
		}
		batches[i] = append(batches[i], it)
	}
	return batches
}
