package main

import (
	"fmt"
	"strings"
	"time"
)

// scenario is one kind of work that all contenders do in turn.
type scenario struct {
	id, title, about string
	main             figure // what contenders are compared by
	base             string // the contender that counts as 1; none if empty
	columns          []figure
	most             int                    // rounds; 0 is as many as asked for
	times            int                    // how often as many rounds as asked for, where differences are small; 0 is once
	only             func(a adapter) bool   // those it is about; all if nil
	skip             func(a adapter) string // why one of them is left out
	measure          func(t trial) (figures, error)
	extra            []contender
}

// contender is an adapter, or something else to compare with, in a scenario.
type contender struct {
	name    string
	adapter adapter
	measure func(t trial) (figures, error)
}

const (
	rawName     = "raw go-redis"
	pausingName = "raw go-redis, pausing"
	floorName   = "floor: the message"
	noPassing   = "watchlock, no passing"
)

var costs = []figure{sent, ran, allocs, allocated, clientCPU, serverCPU, connections}

// scenarios are in the order of the report.
func scenarios(p plan) []scenario {
	list := []scenario{
		pairs("uncontended-1", "Uncontended, 1 goroutine", "Lock and Unlock in a loop.",
			crowd{goroutines: 1, own: true}),
		pairs("uncontended-1-cancellable", "Uncontended, 1 goroutine, a context that can end",
			"The same with a context from context.WithCancel, as a request has.",
			crowd{goroutines: 1, own: true, cancellable: true}),
		pairs("uncontended-64", "Uncontended, 64 goroutines", "Each has a lock of its own; all share one client.",
			crowd{goroutines: 64, own: true}),
	}
	for i := range list {
		list[i].times = 3
	}
	for _, n := range []int{2, 16, 128, min(1000, p.crowdLimit)} {
		s := pairs(fmt.Sprintf("contended-1x%d", n), fmt.Sprintf("Contended, 1 process x %d", n),
			"All want one lock, and do next to nothing under it.", crowd{goroutines: n})
		s.columns = append([]figure{rate, p50, p99, longest, served}, costs...)
		list = append(list, s)
	}
	return append(list,
		scenario{
			id: "contended-4x32", title: "Contended, 4 processes x 32", base: rawName, main: rate,
			about:   "The same from four processes. The spread is that of sections per process, as a share of their mean.",
			columns: append([]figure{rate, p50, p99, longest, served, shares}, costs...),
			measure: processes{4, 32}.measure,
		},
		scenario{
			id: "sections-5ms", title: "Sections of 5 ms, 1 process x 16", base: rawName, main: rate,
			about:   "Time inside is the share of the time in which somebody was: what is missing to 100 % is the lock's.",
			columns: append([]figure{rate, timeInside, p50, p99, longest, served}, costs...),
			measure: crowd{goroutines: 16, section: 5 * time.Millisecond}.measure,
		},
		handoffScenario(),
		besideScenario(),
		restScenario(min(500, p.crowdLimit), false),
		restScenario(min(10_000, p.crowdLimit), true),
		heldScenario(min(10_000, p.crowdLimit)),
		scenario{
			id: "reentry", title: "Re-entry", main: timeEach,
			about:   "Lock and Unlock by a holder. The others have no re-entry.",
			columns: []figure{timeEach, allocs, allocated, clientCPU, sent},
			skip: func(a adapter) string {
				if why := notAtRest(a); why != "" || strings.HasPrefix(a.name, "watchlock") {
					return why
				}
				return "does not re-enter"
			},
			measure: reentry,
		},
	)
}

func pairs(id, title, about string, c crowd) scenario {
	return scenario{
		id: id, title: title, about: about, main: rate, base: rawName,
		columns: append([]figure{rate, p50, p99, longest}, costs...),
		measure: c.measure,
	}
}

func handoffScenario() scenario {
	return scenario{
		id: "handoff", title: "Handoff to the only waiter of another client", main: p50, base: floorName,
		about: "From before Unlock until the other client's Lock has returned, the lock held for 3 to 4.5 ms. " +
			"The floor is the time from before a release script is sent until its message has reached a subscriber; " +
			"the second floor adds one acquire script.",
		columns: append([]figure{p50, p99, longest}, costs...),
		extra: []contender{
			{name: floorName, measure: floor{}.measure},
			{name: "floor: the message and an acquire", measure: floor{acquire: true}.measure},
		},
		measure: handoff,
	}
}

func restScenario(n int, many bool) scenario {
	s := scenario{
		id: fmt.Sprintf("waiting-%d", n), title: fmt.Sprintf("%s waiters at rest", formatCount(float64(n))), main: sentSecond,
		about: "All wait for one lock that another client holds. Memory is heap and stacks. " +
			"Commands are of both clients, the holder's and the waiters'.",
		columns: []figure{sentSecond, subscribers, connections, memoryEach, goroutines, clientShare, serverShare},
		most:    3,
		measure: rest{n}.measure,
	}
	s.skip = func(a adapter) string {
		if a.name == rawName {
			return "does not wait: it asks without end"
		}
		if many && a.polls {
			return "polls"
		}
		return notAtRest(a)
	}
	return s
}

// notAtRest leaves out what differs only in how a lock goes from hand to hand, and
// what lies where this program cannot look.
func notAtRest(a adapter) string {
	switch {
	case a.name == noPassing:
		return "does here what watchlock does"
	case a.jvm:
		return "is measured only where locks change hands"
	}
	return ""
}

func heldScenario(n int) scenario {
	return scenario{
		id: fmt.Sprintf("held-%d", n), title: fmt.Sprintf("%s locks held", formatCount(float64(n))), main: sentRound,
		about: "By one client, with a TTL of 30 s, renewed each 10 s where it is. Memory is what holding adds to mutexes that were there. Waits are of an uncontended Lock of that client, " +
			"again and again during a round.",
		columns: []figure{memoryEach, goroutines, sentRound, clientShare, serverShare, p50, p99, longest, connections},
		most:    2,
		skip:    notAtRest,
		measure: held{n}.measure,
	}
}

// contenders are those of the adapters that take part, and the extra ones.
func (s scenario) contenders(with []adapter) (list []contender, left map[string]string) {
	left = map[string]string{}
	list = append(list, s.extra...)
	for _, a := range with {
		if s.only != nil && !s.only(a) {
			continue
		}
		if s.skip != nil && s.skip(a) != "" {
			left[a.name] = s.skip(a)
			continue
		}
		list = append(list, contender{a.name, a, s.measure})
	}
	return list, left
}
