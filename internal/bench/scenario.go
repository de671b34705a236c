package main

import (
	"fmt"
	"time"
)

// scenario is one kind of work that all do in turn.
type scenario struct {
	id, title, about string
	main             figure               // what they are compared by
	base             string               // the one that counts as 1; none if empty
	times            int                  // how often as many rounds as asked for, where differences are small; 0 is once
	only             func(a adapter) bool // those it is about; all if nil
	measure          func(t trial) (figures, error)
}

// scenarios are in the order of the report.
func scenarios(p plan) []scenario {
	list := []scenario{
		{
			id: "uncontended-1", title: "Uncontended, 1 goroutine", main: rate, base: rawName, times: 3,
			about:   "Lock and Unlock in a loop.",
			measure: crowd{goroutines: 1, own: true}.measure,
		},
		{
			id: "uncontended-1-cancellable", title: "Uncontended, 1 goroutine, a context that can end", main: rate, base: rawName, times: 3,
			about:   "The same with a context from context.WithCancel, as a request has.",
			measure: crowd{goroutines: 1, own: true, cancellable: true}.measure,
		},
		{
			id: "uncontended-64", title: "Uncontended, 64 goroutines", main: rate, base: rawName, times: 3,
			about:   "Each has a lock of its own; all share one client.",
			measure: crowd{goroutines: 64, own: true}.measure,
		},
	}
	for _, n := range []int{2, 16, 128, min(1000, p.many)} {
		list = append(list, scenario{
			id: fmt.Sprintf("contended-1x%d", n), title: fmt.Sprintf("Contended, 1 process x %d", n), main: rate, base: rawName,
			about:   "All want one lock, and do next to nothing under it.",
			measure: crowd{goroutines: n}.measure,
		})
	}
	list = append(list, scenario{
		id: "contended-4x32", title: "Contended, 4 processes x 32", main: rate, base: rawName,
		about:   "The same from four processes. The spread is that of sections per process, as a share of their mean.",
		measure: crowd{processes: 4, goroutines: 32}.measure,
	})
	for _, d := range []time.Duration{time.Millisecond, 5 * time.Millisecond} {
		list = append(list, scenario{
			id: fmt.Sprintf("sections-%v", d), title: fmt.Sprintf("Sections of %v, 1 process x 16", d), main: rate, base: rawName,
			about: fmt.Sprintf("Who is inside works for %v: without a lock there would be %v a second. Redisson's threads sleep inside, "+
				"so that it is left out.", d, number(float64(time.Second/d))),
			only:    here,
			measure: crowd{goroutines: 16, section: d}.measure,
		})
	}
	return append(list, scenario{
		id: "handoff", title: "Handoff to the only waiter of another client", main: p50, base: rawName,
		about: "From before Unlock until the other client's Lock has returned, the lock held for 3 to 4.5 ms. " +
			"Raw go-redis asks without end in that time, which spares it the way of a message.",
		measure: handoff,
	}, scenario{
		id: "beside-bare-loop", title: "Beside a bare loop of another client", main: turnShare,
		about: "A client of watchlock locks, works for 1 ms (Redisson's sleeps), unlocks and locks again at once; the other does " +
			"the same in the same lock. Waits and turns are the other's; per second are the sections of both.",
		only:    func(a adapter) bool { return a.name == plainName || a.jvm },
		measure: bareLoop{time.Millisecond}.measure,
	},
		restScenario(min(500, p.many), func(a adapter) bool { return a.name != rawName }, "Raw go-redis does not wait: it asks without end."),
		restScenario(p.many, func(a adapter) bool { return !a.polls }, "Those who poll are left out."),
		scenario{
			id: fmt.Sprintf("held-%d", p.many), title: fmt.Sprintf("%d locks held", p.many), main: sent,
			about: "By one client, with a TTL of 30 s, renewed each 10 s where it is. Memory is what holding adds to mutexes that " +
				"were there. Costs are for each 10 s.",
			only:    hereAndOnce,
			measure: held{p.many}.measure,
		})
}

func restScenario(n int, waits func(adapter) bool, who string) scenario {
	return scenario{
		id: fmt.Sprintf("waiting-%d", n), title: fmt.Sprintf("%d waiters at rest", n), main: sent,
		about: "All wait for one lock that another client holds. Memory is heap and stacks. " +
			"Costs are for each second, of both clients, the holder's and the waiters'. " + who,
		only:    func(a adapter) bool { return hereAndOnce(a) && waits(a) },
		measure: rest{n}.measure,
	}
}

// here leaves out what lies where this program cannot look.
func here(a adapter) bool { return !a.jvm }

// hereAndOnce also leaves out what differs only in how a lock goes from hand to hand.
func hereAndOnce(a adapter) bool { return here(a) && a.name != noPassingName }

// contenders are those of the plan that take part.
func (s scenario) contenders(p plan) (list []adapter) {
	for _, a := range adapters() {
		if p.with.MatchString(a.name) && (s.only == nil || s.only(a)) {
			list = append(list, a)
		}
	}
	return list
}
