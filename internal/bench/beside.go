package main

import (
	"errors"
	"time"
)

// besideSection is how long both stay inside.
const besideSection = time.Millisecond

// besideScenario is a client that wants a lock which a loop of another client
// never leaves alone.
func besideScenario() scenario {
	return scenario{
		id: "beside-bare-loop", title: "Beside a bare loop of another client", main: turnShare,
		about: "A client of watchlock locks, stays for 1 ms, unlocks and locks again at once; the other does the same in the same " +
			"lock. Waits and turns are the other's; per second are the sections of both.",
		columns: []figure{turnShare, p50, p99, longest, rate, timeInside, connections},
		only:    func(a adapter) bool { return a.name == plainName || a.jvm },
		measure: beside,
	}
}

// rival is a crowd, wherever it is.
type rival interface {
	begin() error
	end() (turns, error)
	close() error
}

// localRival is a crowd of goroutines.
type localRival struct {
	*gathering
	session session
}

func (r localRival) begin() error {
	r.phase.Store(measuring)
	return nil
}

func (r localRival) end() (turns, error) {
	asleep, err := r.finish()
	return turns{outcomeOf(r.gathering), r.entered(), asleep}, err
}

func (r localRival) close() error {
	r.session.close()
	return nil
}

// rival starts a crowd of the adapter, and says for how long it should work first.
func (t trial) rival(a adapter, c crowd, seen *witness, path string) (rival, time.Duration, error) {
	if a.jvm {
		j, err := theJVM()
		if err != nil {
			return nil, 0, err
		}
		r, err := c.gatherInJVM(j, t, path)
		return r, j.warmUp(t.plan, c), err
	}
	s, err := a.open(conditions{t.srv.addr, lockTTL})
	if err != nil {
		return nil, 0, err
	}
	return localRival{c.gather(a, s, t.name, seen), s}, t.plan.warmUp(), nil
}

func beside(t trial) (f figures, err error) {
	seen, path, err := t.freshWitness()
	if err != nil {
		return nil, err
	}
	c := crowd{goroutines: 1, section: besideSection}
	var rivals []rival // the loop, and the one beside it
	defer func() {
		for _, r := range rivals {
			err = errors.Join(err, r.close())
		}
	}()
	var warmUp time.Duration
	for _, a := range []adapter{watchlockAdapter(plainName, ""), t.adapter} {
		r, first, err := t.rival(a, c, seen, path)
		if err != nil {
			return nil, err
		}
		rivals, warmUp = append(rivals, r), max(warmUp, first)
	}
	pause(warmUp)
	f = figures{}
	err = t.connections(f)
	began := time.Now()
	for _, r := range rivals {
		err = errors.Join(err, r.begin())
	}
	pause(t.plan.span)
	span := time.Since(began)
	its := make([]turns, len(rivals))
	failures := make([]error, len(rivals))
	both := make(chan struct{})
	for i, r := range rivals { // at once, or the last would have turns to itself
		go func() {
			its[i], failures[i] = r.end()
			both <- struct{}{}
		}()
	}
	for range rivals {
		<-both
	}
	loop, other := its[0], its[1]
	if err := errors.Join(err, errors.Join(failures...), seen.check(loop.entered+other.entered)); err != nil {
		return nil, err
	}
	all := float64(max(loop.outcome.sum()+other.outcome.sum(), 1))
	f[turnShare] = float64(other.outcome.sum()) / all
	f[rate] = all / span.Seconds()
	f[timeInside] = (loop.outcome.Within + other.outcome.Within).Seconds() / span.Seconds()
	other.outcome.Waits.into(f)
	return f, asleepError(loop.asleep + other.asleep)
}
