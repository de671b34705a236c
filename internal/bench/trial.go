package main

import "time"

// trial is one measurement of one adapter.
type trial struct {
	srv     *server
	adapter adapter
	plan    plan
	name    string // of its locks, which no other trial has
}

// open makes a session for locks of the usual TTL.
func (t trial) open() (session, error) { return t.openFor(lockTTL) }

func (t trial) openFor(ttl time.Duration) (session, error) {
	return t.adapter.open(conditions{t.srv.addr, ttl})
}

// lockTTL is that of all locks: watchlock's and Redisson's default.
const lockTTL = 30 * time.Second

// books is how things stood at an instant.
type books struct {
	at     time.Time
	ledger ledger
	usage  usage
}

// begin opens the books of a span. The looking itself comes before it.
func (t trial) begin() (b books, err error) {
	b.ledger, err = t.srv.ledger()
	b.usage, b.at = readUsage(), time.Now()
	return b, err
}

// end closes the books of a span. The looking itself comes after it.
func (t trial) end() (b books, err error) {
	b.at, b.usage = time.Now(), readUsage()
	b.ledger, err = t.srv.ledger()
	return b, err
}

// perOperation writes what each of n operations between two looks took. used is
// what their processes did.
func (t trial) perOperation(f figures, before, after books, used usage, n int64) {
	each := float64(max(n, 1))
	out, all := after.ledger.since(before.ledger, t.adapter.inside)
	f[rate] = float64(n) / after.at.Sub(before.at).Seconds()
	f[sent], f[ran] = float64(out)/each, float64(all)/each
	f[allocs], f[allocated] = float64(used.Mallocs)/each, float64(used.Bytes)/each
	f[clientCPU] = used.CPU.Seconds() / each
	f[serverCPU] = (after.ledger.cpu - before.ledger.cpu).Seconds() / each
}

// perSecond writes what a client at rest between two looks took.
func (t trial) perSecond(f figures, before, after books) {
	seconds := after.at.Sub(before.at).Seconds()
	out, _ := after.ledger.since(before.ledger, t.adapter.inside)
	f[sentSecond] = float64(out) / seconds
	f[clientShare] = after.usage.since(before.usage).CPU.Seconds() / seconds
	f[serverShare] = (after.ledger.cpu - before.ledger.cpu).Seconds() / seconds
}

// connections writes how many there are.
func (t trial) connections(f figures) error {
	all, subscribed, err := t.srv.clients()
	f[connections], f[subscribers] = float64(all), float64(subscribed)
	return err
}
