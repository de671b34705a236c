package wire

import "sync"

// Rights says of which kinds a lock was granted after a look at what the user may do. Before
// that, the script that acquires asks after each command that the kind needs: so a user who
// may lock but not renew, say, is told so before anything is taken.
type Rights struct{ Granted sync.Map } // traits of the kinds

// Known reports whether a lock of kind k was granted.
func (r *Rights) Known(k Kind) bool {
	_, known := r.Granted.Load(k.Traits())
	return known
}

// Learn notes that it was.
func (r *Rights) Learn(k Kind) { r.Granted.Store(k.Traits(), nil) }
