package watchlock

import "sync"

// rights says of which kinds a lock was granted after a look at what the user may do. Before
// that, the script that acquires asks after each command that the kind needs: so a user who
// may lock but not renew, say, is told so before anything is taken.
type rights struct{ granted sync.Map } // traits of the kinds

// known reports whether a lock of kind k was granted.
func (r *rights) known(k kind) bool {
	_, known := r.granted.Load(k.traits())
	return known
}

// learn notes that it was.
func (r *rights) learn(k kind) { r.granted.Store(k.traits(), nil) }
