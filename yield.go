package watchlock

import "time"

const (
	yieldPause  = 3 * time.Millisecond // for each turn of somebody else: a burst of the default window, and its start
	slowPause   = 5 * time.Millisecond // the same when a JVM may be among them, whose hand-over takes that long at times
	yieldJitter = yieldPause / 6
	yieldMost   = 10 * time.Millisecond // for all of them
	yieldHints  = time.Second           // for how long an absence is remembered
	foreignFor  = 50 * time.Millisecond // after a release of a client of another kind, for how long it is taken to take part
	absentTries = 3                     // in which somebody did not come, to take it for absent
	mostTurns   = 1000
	mostSharers = 4 // among whom a window is divided
)

// yielding is how a gate lets other clients go first after a release of ours that
// they heard: a loop of Lock and Unlock here would keep them out, since it is always
// the first to know. Each of them gets one turn, which its own release ends, so that
// clients that do the same go round. What tells how many they are is a hint: a
// subscriber may be dead, or linger after its last wait, and foreign clients give
// way to nobody. So a turn that nobody takes ends after yieldPause, all of them
// after yieldMost, and of several those that let some pass are not counted for a
// while. The last gets one always: it may be another by now. The pauses differ by
// chance: of two who wait for the same absent one only the first finds that nobody is
// inside, and so only the first learns.
//
// Guarded by gate.mu.
type yielding struct {
	to        time.Duration // no attempt before this
	end       time.Duration // nor a later to
	absentTo  time.Duration // until when absent counts
	foreignTo time.Duration // until when a client of another kind is taken to take part
	others    int16         // that heard our newest release, less the absent
	turns     int16         // releases to hear before to
	had       int16         // turns that were had since ours was sent: releases heard
	missed    int16         // turns that had passed in silence, when the attempt began
	absent    int16         // how many of those told do not come
	suspected int16         // the least missed in the last tries
	tries     int8          // that missed some, since all came
	listened  bool          // somebody here waited for the turns to be had
}

// until is the instant before which no attempt is made; 0 when others need not go first.
func (y *yielding) until() time.Duration {
	if y == nil {
		return 0
	}
	return y.to
}

// share is for how long a burst may be passed, of a window: with more than one other to
// go round to, less, so that nobody waits long for its turn.
func (y *yielding) share(window time.Duration) time.Duration {
	if y == nil || y.others < 2 {
		return window
	}
	return window / time.Duration(min(1+y.others, mostSharers))
}

// sent says that a release of ours leaves.
func (y *yielding) sent() {
	if y != nil {
		y.had = 0
	}
}

// begin gives others told a turn each at the instant now. The answer that tells of
// them may come late: some may have had theirs by then.
func (y *yielding) begin(others int16, now time.Duration) {
	if now < y.absentTo {
		others = max(1, others-y.absent)
	}
	y.listened, y.others = false, others
	if others -= y.had; others <= 0 {
		y.stop()
		return
	}
	y.turns, y.to, y.end = others, now+y.pause(now), now+yieldMost
}

// heard is somebody's release at the instant now: one turn has been had. foreign
// says that it was of a client of another kind.
func (y *yielding) heard(now time.Duration, foreign bool) {
	if foreign {
		y.foreignTo = now + foreignFor
	}
	y.had = min(y.had+1, mostTurns)
	if y.to <= now {
		return
	}
	if y.turns--; y.turns <= 0 {
		y.tries = 0 // all have come
		y.stop()
		return
	}
	y.to = min(now+y.pause(now), y.end)
}

// pause is for how long a turn may be left untaken.
func (y *yielding) pause(now time.Duration) time.Duration {
	if y.foreign(now) {
		return slowPause + jitter(yieldJitter)
	}
	return yieldPause + jitter(yieldJitter)
}

// stop is for those who cannot wait, and when everybody had a turn.
func (y *yielding) stop() {
	if y != nil {
		y.to, y.turns = 0, 0
	}
}

// try says that an attempt begins: turns that are left were taken by nobody, or by
// somebody who is still inside. If nobody here listened, they may have been had.
func (y *yielding) try() {
	if y == nil {
		return
	}
	y.missed, y.turns = y.turns, 0
	if !y.listened {
		y.missed = 0
	}
}

// foreign reports whether a client of another kind takes part.
func (y *yielding) foreign(now time.Duration) bool {
	return y != nil && now < y.foreignTo
}

// granted says that the attempt was granted: nobody was inside. Whoever did not come
// once may be slow; several times since all came, it is not there.
func (y *yielding) granted(now time.Duration) {
	if y == nil || y.missed == 0 {
		return
	}
	if y.tries == 0 || y.missed < y.suspected {
		y.suspected = y.missed
	}
	if y.tries++; y.tries < absentTries {
		return
	}
	y.tries = 0
	if now < y.absentTo {
		y.absent = min(y.absent+y.suspected, mostTurns) // too few were suspected
		return
	}
	y.absent, y.absentTo = y.suspected, now+yieldHints
}
