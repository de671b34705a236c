package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/examples/internal/timeline"
)

// Acts 1 and 2: the duplicate shipment. Three workers take payment events from a
// broker that delivers at least once, so now and then twice, and to different
// workers at the same moment. A worker looks whether the order was dispatched,
// calls the logistics API, and notes that it was. Between the look and the note
// lies the whole HTTP call: time enough for the other worker to look as well.

// deliveries are the events as the broker hands them out.
var deliveries = []struct{ worker, order string }{
	{"worker A", "1001"},
	{"worker B", "1001"}, // the same event again
	{"worker C", "1002"},
	{"worker C", "1003"},
}

// withoutLock shows the fault. It claims nothing: how often it strikes is luck.
func (s *story) withoutLock(ctx context.Context) error {
	s.Act("Without a lock",
		"A broker delivers the payment of order 1001 twice, to two workers at once.",
		"Each looks whether the order was dispatched, then calls the logistics API.")
	api, err := s.ship(ctx, func(*watchlock.Client, string) section { return noLock{} })
	if err != nil {
		return err
	}
	s.Say("customer", "gets %d parcels for one order", api.sent("1001"))
	return nil
}

// withLock is the same with one lock for each order.
func (s *story) withLock(ctx context.Context) error {
	s.Act("With one lock per order",
		"The same events. Each worker holds lock:order:<id> while it looks and calls.")
	api, err := s.ship(ctx, s.orderLock)
	if err != nil {
		return err
	}
	s.Claim(api.sent("1001") == 1, "order 1001 was delivered twice by the broker and dispatched once")
	s.Claim(api.sent("1002") == 1 && api.sent("1003") == 1, "orders 1002 and 1003 were dispatched once each")
	return nil
}

// ship lets three workers take the deliveries and returns the API they called.
func (s *story) ship(ctx context.Context, lock func(*watchlock.Client, string) section) (*logistics, error) {
	api := newLogistics(s.Timeline, s.apiTime)
	defer api.close()
	orders := &orderTable{dispatched: make(map[string]bool)}

	var wg sync.WaitGroup
	results := make(chan error, len(deliveries))
	queues := make(map[string]chan string)
	for _, name := range []string{"worker A", "worker B", "worker C"} {
		client, err := s.client()
		if err != nil {
			return nil, err
		}
		defer client.Close()
		w := worker{name, s.Timeline, client, lock, orders, api}
		queue := make(chan string, len(deliveries))
		queues[name] = queue
		wg.Go(func() {
			for order := range queue {
				results <- w.paid(ctx, order)
			}
		})
	}
	for _, d := range deliveries {
		s.Say("broker", "order %s is paid, to %s", d.order, d.worker)
		queues[d.worker] <- d.order
	}
	for _, queue := range queues {
		close(queue)
	}
	wg.Wait()
	close(results)
	var err error
	for result := range results {
		err = errors.Join(err, result)
	}
	return api, err
}

// worker is one server that takes payment events.
type worker struct {
	name   string
	t      *timeline.Timeline
	client *watchlock.Client
	lock   func(client *watchlock.Client, name string) section
	orders *orderTable
	api    *logistics
}

// paid handles one event. All of it is under the order's lock: the look, the
// call and the note. Who comes second finds the note.
func (w worker) paid(ctx context.Context, order string) error {
	asked := time.Now()
	return w.lock(w.client, "lock:order:"+order).Do(ctx, func(ctx context.Context) error {
		if w.orders.isDispatched(order) {
			w.t.Say(w.name, "waited %s: order %s is dispatched already, nothing to do", timeline.MS(time.Since(asked)), order)
			return nil
		}
		w.t.Say(w.name, "order %s is not dispatched yet: calls the API", order)
		// ctx ends when the lock is lost, and the call with it.
		if err := w.api.dispatch(ctx, order); err != nil {
			return err
		}
		w.orders.setDispatched(order)
		w.t.Say(w.name, "order %s: notes that it is dispatched", order)
		return nil
	})
}

// orderTable stands for the shop's database. Each of its methods is safe alone.
// What is not safe is to act between two of them.
type orderTable struct {
	mu         sync.Mutex
	dispatched map[string]bool
}

func (o *orderTable) isDispatched(order string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.dispatched[order]
}

func (o *orderTable) setDispatched(order string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dispatched[order] = true
}

// noLock has Mutex's Do, and excludes nobody.
type noLock struct{}

// Do runs f at once.
func (noLock) Do(ctx context.Context, f func(context.Context) error) error { return f(ctx) }
