package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
)

// childVariable is set for children.
const childVariable = "WATCHLOCK_BENCH_CHILD"

// serveIfAsked reports whether this process was a child, which has a crowd and
// does what Redisson's process does, by the same orders.
func serveIfAsked() bool {
	if os.Getenv(childVariable) == "" {
		return false
	}
	orders, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for c := new(child); ; {
		var o order
		if err := orders.Decode(&o); err != nil {
			if !errors.Is(err, io.EOF) {
				fmt.Fprintln(os.Stderr, err)
			}
			return true
		}
		a := answer{ID: o.ID, OK: true}
		value, err := c.do(o)
		if err == nil {
			a.Value, err = json.Marshal(value)
		}
		if err != nil {
			a.OK, a.Message = false, err.Error()
		}
		if answers.Encode(a) != nil {
			return true // the parent is gone
		}
	}
}

type child struct {
	crowd         *gathering
	before, after runtime.MemStats
}

func (c *child) do(o order) (any, error) {
	switch o.Op {
	case "gather":
		return nil, c.gather(o)
	case "measure":
		runtime.ReadMemStats(&c.before)
		c.crowd.phase.Store(measuring)
		return nil, nil
	case "measured":
		c.crowd.phase.Store(measured)
		runtime.ReadMemStats(&c.after)
		return nil, nil
	case "finish":
		t, err := c.crowd.finish(o.Nanos)
		t.Mallocs, t.Bytes = c.after.Mallocs-c.before.Mallocs, c.after.TotalAlloc-c.before.TotalAlloc
		return t, err
	}
	return nil, fmt.Errorf("no order %q", o.Op)
}

func (c *child) gather(o order) error {
	i := slices.IndexFunc(adapters(), func(a adapter) bool { return a.name == o.Adapter })
	if i < 0 {
		return fmt.Errorf("no adapter %q", o.Adapter)
	}
	s, err := adapters()[i].open(conditions{strings.TrimPrefix(o.Address, "redis://"), lockTTL})
	if err != nil {
		return err
	}
	seen, err := sharedWitness(o.Witness)
	if err != nil {
		return err
	}
	c.crowd = gather(crowd{goroutines: o.Threads, own: o.Own != 0, section: o.Section, cancellable: o.Interruptibly != 0}, s, o.Name, seen)
	return nil
}
