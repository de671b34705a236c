package watchlock

// ending is a hold that was ended under the gate's mutex and whose contexts are
// to be cancelled after it.
type ending struct {
	ties map[<-chan struct{}]*tie
	done chan struct{}
	err  error
	hold *hold  // to log about; nil for none
	note string // what to log
}

// tell closes what hangs on an ended hold.
func (e ending) tell() {
	for _, t := range e.ties {
		t.untie(e.err)
	}
	if e.done != nil {
		close(e.done)
	}
}

// tellAll tells all holders, and only then the log.
func tellAll(endings []ending) {
	for _, e := range endings {
		e.tell()
	}
	noteAll(endings)
}

// noteAll has what ended logged.
func noteAll(endings []ending) {
	for _, e := range endings {
		if e.hold != nil {
			e.hold.warn(e.note)
		}
	}
}
