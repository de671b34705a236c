package watchlock

import "sync/atomic"

// rights says of which kinds a lock was granted after a look at what the user may do. Before
// that, the script that acquires asks after each command that the kind needs: so a user who
// may lock but not renew, say, is told so before anything is taken.
type rights [3]atomic.Bool

// of is the flag of a kind.
func (r *rights) of(k kind) *atomic.Bool {
	switch k.(type) {
	case *stringKind:
		return &r[2]
	case fencedKind:
		return &r[1]
	}
	return &r[0]
}

// know sets all flags to known.
func (r *rights) know(known bool) {
	for i := range r {
		r[i].Store(known)
	}
}
