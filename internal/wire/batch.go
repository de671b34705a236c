package wire

import (
	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// BatchSize is how many keys there are in one script at most.
const BatchSize = 100

// BatchKey says what can share a script. Slot is -1 where all keys can.
type BatchKey struct {
	kind Kind
	slot int
	key  string // of one that goes alone
}

// BatchOf says with what a lock can share a script.
func BatchOf(r *transport.Runner, k Kind, keys *Keys, alone bool) BatchKey {
	b := BatchKey{kind: k, slot: -1}
	if r.BySlot() {
		b.slot = keys.Slot
	}
	if alone {
		b.key = keys.Key
	}
	return b
}

// InBatches splits items into groups of one batchKey and at most batchSize.
func InBatches[T any](items []T, key func(T) BatchKey) [][]T {
	var batches [][]T
	open := make(map[BatchKey]int)
	for _, it := range items {
		k := key(it)
		i, ok := open[k]
		if !ok || len(batches[i]) == BatchSize {
			i = len(batches)
			open[k] = i
			batches = append(batches, nil)
		}
		batches[i] = append(batches[i], it)
	}
	return batches
}
