package wire

import "sync"

// stringMode is how to talk to a server in the string form.
type stringMode int

// The ways that there are.
const (
	modeUnknown stringMode = iota // ask, before anything is taken
	ModePlain                     // it knows DELEX, and the user may send it
	ModeScript
)

// stringWays is what is known of the servers that have locks of the string form.
type stringWays struct {
	// place names the server that has a lock, as far as is known. What is learned of one
	// place says little of another: a cluster may have servers of two versions for a while.
	place func(k *Keys) int
	many  bool // places

	mu sync.Mutex
	// guarded by mu
	modes  map[int]stringMode
	noEval map[int]bool // the user may not run scripts
	newest stringMode   // of the place that was asked last
	runs   bool         // scripts ran somewhere
	denied bool         // or the user may not run them
}

func newStringWays(bySlot bool) *stringWays {
	w := &stringWays{many: bySlot, place: func(*Keys) int { return -1 }}
	if bySlot {
		w.place = func(k *Keys) int { return k.Slot }
	}
	w.Forget()
	return w
}

// Forget is for when servers may have been replaced.
func (w *stringWays) Forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.modes, w.noEval = make(map[int]stringMode), make(map[int]bool)
	w.newest, w.runs, w.denied = modeUnknown, false, false
}

// mode is how to talk to the server that has k. On a cluster the others are taken to be like
// the one that was asked last, where that is safe:
//
//  1. Scripts: whoever may not run them takes nothing by one either, and asks then.
//  2. Plain commands: only when scripts are known to run as well. They give back what a
//     server without DELEX has let us take.
func (w *stringWays) mode(k *Keys) stringMode {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.modes[w.place(k)]
	if m == modeUnknown && w.many && (w.newest == ModeScript || w.newest == ModePlain && w.runs && !w.denied) {
		return w.newest
	}
	return m
}

// askScripts reports whether to ask first if scripts run: that spares asking each place.
func (w *stringWays) askScripts() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.many && w.newest == ModePlain && !w.runs && !w.denied
}

func (w *stringWays) Learn(k *Keys, m stringMode) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.modes[w.place(k)], w.newest = m, m
}

// learnScripts notes whether the user may run scripts on the server of k.
func (w *stringWays) learnScripts(k *Keys, run bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if run {
		w.runs = true
		return
	}
	w.noEval[w.place(k)], w.denied = true, true
}

// scriptless reports whether the user may not run scripts on the server of k.
func (w *stringWays) scriptless(k *Keys) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.noEval[w.place(k)]
}
