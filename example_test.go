package watchlock_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/seed-8c25f305/watchlock"
)

// The examples run on an embedded server. A service makes its redis.Client from
// its configuration, and keeps one watchlock.Client for the life of the process.

// exampleServer starts an embedded server.
func exampleServer() *miniredis.Miniredis {
	server := miniredis.NewMiniRedis()
	server.ClockTTL(true)
	if err := server.Start(); err != nil {
		panic(err)
	}
	return server
}

// exampleRedis connects to a server of its own.
func exampleRedis() (rdb *redis.Client, stop func()) {
	server := exampleServer()
	rdb = redis.NewClient(&redis.Options{Addr: server.Addr()})
	return rdb, func() {
		_ = rdb.Close()
		server.Close()
	}
}

// exampleClient makes a client on a server of its own.
func exampleClient(opts ...watchlock.Option) (client *watchlock.Client, stop func()) {
	rdb, stopRedis := exampleRedis()
	client, err := watchlock.New(rdb, opts...)
	if err != nil {
		panic(err)
	}
	return client, func() {
		if err := client.Close(); err != nil {
			fmt.Println(err)
		}
		stopRedis()
	}
}

// Do waits for the lock, runs the function and releases the lock, whatever
// happens in it.
func ExampleMutex_Do() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	balance := 0

	account := client.NewMutex("lock:account:7")
	err := account.Do(ctx, func(ctx context.Context) error {
		balance += 100
		return nil // or an error, which Do returns
	})
	fmt.Println(balance, err)
	// Output: 100 <nil>
}

// TryDo waits for as long as it is told, and runs nothing when the lock is busy.
func ExampleMutex_TryDo() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	order := client.NewMutex("lock:order:1001")
	holder, err := order.Lock(ctx)
	if err != nil {
		panic(err)
	}
	defer func() { _ = holder.Unlock(ctx) }()

	err = order.TryDo(ctx, 100*time.Millisecond, func(ctx context.Context) error {
		fmt.Println("never printed: somebody else holds the lock")
		return nil
	})
	fmt.Println(errors.Is(err, watchlock.ErrNotAcquired))
	// Output: true
}

// export holds a lock by hand: for when the hold is not one function.
func export(ctx context.Context, client *watchlock.Client) (err error) {
	m := client.NewMutex("lock:export")
	lease, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	// An Unlock that fails says that the lock was lost under the work.
	defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()
	return writeExport(lease.Context(ctx)) // a context that ends when the lease does
}

func writeExport(ctx context.Context) error {
	fmt.Println("exporting, error:", ctx.Err())
	return nil
}

// The release is part of the result, so that a lost lock is not overlooked.
func ExampleMutex_Lock() {
	client, stop := exampleClient()
	defer stop()

	err := export(context.Background(), client)
	fmt.Println("done, error:", err)
	// Output:
	// exporting, error: <nil>
	// done, error: <nil>
}

// With a wait of 0, TryLock makes one attempt. The error tells how long the
// holder's lease still runs.
func ExampleMutex_TryLock() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	report := client.NewMutex("lock:report")
	holder, err := report.Lock(ctx)
	if err != nil {
		panic(err)
	}
	defer func() { _ = holder.Unlock(ctx) }()

	_, err = report.TryLock(ctx, 0)
	var busy *watchlock.LockError
	if errors.Is(err, watchlock.ErrNotAcquired) && errors.As(err, &busy) {
		fmt.Printf("%s is busy for %v at most, unless it is renewed\n", busy.Name, busy.TTL.Round(time.Second))
	}
	// Output: lock:report is busy for 30s at most, unless it is renewed
}

// sendAll sends parcels for as long as the lease lasts.
func sendAll(lease *watchlock.Lease, parcels []string) error {
	for _, parcel := range parcels {
		pack(parcel) // may take longer than anybody thought
		// Ask last thing before what cannot be undone. It costs no round trip,
		// and is right at once even if the process was just stopped for a minute.
		if err := lease.Err(); err != nil {
			return fmt.Errorf("parcel %s is not sent: %w", parcel, err)
		}
		fmt.Println("parcel", parcel, "is sent")
	}
	return nil
}

func pack(parcel string) {
	if parcel == "B" {
		time.Sleep(150 * time.Millisecond)
	}
}

// A lease can end under its job. Here nothing renews it, and parcel B takes
// longer than the lease.
func ExampleLease_Err() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	lease, err := client.NewMutex("lock:parcels").Lock(ctx, watchlock.WithLeaseTime(100*time.Millisecond))
	if err != nil {
		panic(err)
	}

	fmt.Println(sendAll(lease, []string{"A", "B", "C"}))
	fmt.Println(errors.Is(lease.Unlock(ctx), watchlock.ErrLost))
	// Output:
	// parcel A is sent
	// parcel B is not sent: watchlock: lease "lock:parcels": lease lost
	// true
}

// Work that takes a context is broken off when the lease ends.
func ExampleLease_Context() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	lease, err := client.NewMutex("lock:query").Lock(ctx, watchlock.WithLeaseTime(100*time.Millisecond))
	if err != nil {
		panic(err)
	}
	defer func() { _ = lease.Unlock(ctx) }()

	ctx = lease.Context(ctx)
	select {
	case <-ctx.Done(): // as a query or an HTTP request under ctx would notice
		fmt.Println(ctx.Err(), "because of:", context.Cause(ctx))
	case <-time.After(10 * time.Second):
		fmt.Println("the slow query is done")
	}
	// Output: context canceled because of: watchlock: lease "lock:query": lease lost
}

// orders is a service whose methods lock for themselves.
type orders struct{ client *watchlock.Client }

func (o *orders) lock(id string) *watchlock.Mutex { return o.client.NewMutex("lock:order:" + id) }

// Cancel takes the order's lock, and calls a method that takes it too.
func (o *orders) Cancel(ctx context.Context, id string) error {
	return o.lock(id).Do(ctx, func(ctx context.Context) error {
		fmt.Println("cancelling", id)
		return o.Refund(ctx, id) // this ctx carries the lease: Refund re-enters
	})
}

// Refund can be called alone, or by somebody who holds the lock already.
func (o *orders) Refund(ctx context.Context, id string) (err error) {
	lease, err := o.lock(id).Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()
	fmt.Println("refunding", id)
	return nil
}

// Re-entry across calls: whoever gets the context of a lease may lock the same
// name again, at once and without a round trip.
func ExampleMutex_Lock_reentry() {
	client, stop := exampleClient()
	defer stop()
	o := &orders{client}
	fmt.Println(o.Cancel(context.Background(), "1001"))
	fmt.Println(o.Refund(context.Background(), "1002"))
	// Output:
	// cancelling 1001
	// refunding 1001
	// <nil>
	// refunding 1002
	// <nil>
}

// A goroutine that must not be inside together with its parent gets a context
// without the right to re-enter.
func ExampleWithoutReentry() {
	client, stop := exampleClient()
	defer stop()
	m := client.NewMutex("lock:a")
	err := m.Do(context.Background(), func(ctx context.Context) error {
		_, err := m.TryLock(watchlock.WithoutReentry(ctx), 0)
		fmt.Println(errors.Is(err, watchlock.ErrNotAcquired))
		return nil
	})
	fmt.Println(err)
	// Output:
	// true
	// <nil>
}

// All options of a client, with their defaults where they have one.
func ExampleNew() {
	rdb, stop := exampleRedis()
	defer stop()

	client, err := watchlock.New(rdb,
		watchlock.WithWatchdogTimeout(30*time.Second),  // TTL of a renewed lease; renewed every third of it
		watchlock.WithUnlockTimeout(2*time.Second),     // how long Unlock tries, and Close waits for holders
		watchlock.WithMaxPollInterval(5*time.Second),   // a waiter's longest sleep without a message
		watchlock.WithLocalHandoff(2*time.Millisecond), // how long a lock goes from hand to hand here; 0: never
		watchlock.WithLockDefaults(watchlock.WithWatchdog()),
		watchlock.WithLogger(zap.NewNop()),
		watchlock.WithKeyPrefix("shop:"), // default: none. Or WithNameMapper(f)
	)
	if err != nil {
		panic(err) // an option is wrong; nothing was sent
	}
	err = client.NewMutex("lock:order:1001").Do(context.Background(), func(ctx context.Context) error {
		fmt.Println(rdb.Keys(ctx, "*").Val())
		return nil
	})
	fmt.Println(err, client.Close())
	// Output:
	// [shop:lock:order:1001]
	// <nil> <nil>
}

// statusOf turns an error of TryDo into an HTTP status and a Retry-After.
func statusOf(err error) (code int, retryAfter time.Duration) {
	var lock *watchlock.LockError
	switch {
	case err == nil:
		return http.StatusOK, 0
	case errors.Is(err, watchlock.ErrLost), errors.As(err, &lock) && lock.Op == "unlock":
		return http.StatusInternalServerError, 0 // the work was begun, or is done: do not try again blindly
	case watchlock.IsUnavailable(err), errors.Is(err, watchlock.ErrClosed):
		return http.StatusServiceUnavailable, time.Second
	case errors.Is(err, watchlock.ErrNotAcquired):
		return http.StatusConflict, time.Second // lock.TTL tells when a holder that died is out, not when a live one unlocks
	}
	return http.StatusInternalServerError, 0
}

// A busy lock is a 409. A Redis that cannot be asked is a 503: it says nothing
// about the lock.
func ExampleIsUnavailable() {
	server := exampleServer()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	client := must(watchlock.New(rdb))
	defer client.Close()
	ctx := context.Background()
	order := client.NewMutex("lock:order:1001")
	work := func(context.Context) error { return nil }
	fmt.Println(statusOf(order.TryDo(ctx, time.Second, work)))

	holder := must(order.Lock(ctx, watchlock.WithLeaseTime(10*time.Second)))
	code, retryAfter := statusOf(order.TryDo(ctx, 50*time.Millisecond, work))
	fmt.Println(code, retryAfter.Round(time.Second))
	_ = holder.Unlock(ctx)

	server.Close() // Redis goes away
	code, _ = statusOf(order.TryDo(ctx, 0, work))
	fmt.Println(code)
	// Output:
	// 200 0s
	// 409 1s
	// 503
}

// A lease with a time of its own is not renewed. It ends by itself, whether or
// not the work is done.
func ExampleWithLeaseTime() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()

	coupon := client.NewMutex("lock:coupon", watchlock.WithLeaseTime(10*time.Second))
	err := coupon.Do(ctx, func(ctx context.Context) error {
		info, err := coupon.Info(ctx)
		fmt.Println("Redis keeps it for", info.TTL.Round(time.Second))
		return err
	})
	fmt.Println(err)
	// Output:
	// Redis keeps it for 10s
	// <nil>
}

// A job that hangs would keep a renewed lock for ever. WithMaxHold bounds that.
func ExampleWithMaxHold() {
	client, stop := exampleClient(watchlock.WithWatchdogTimeout(300 * time.Millisecond))
	defer stop()

	nightly := client.NewMutex("lock:nightly", watchlock.WithMaxHold(500*time.Millisecond)) // say, 2*time.Hour
	err := nightly.Do(context.Background(), func(ctx context.Context) error {
		<-ctx.Done() // a job that hangs, in something that heeds its context
		return context.Cause(ctx)
	})
	fmt.Println(errors.Is(err, watchlock.ErrLost))
	// Output: true
}

// markSent writes a row that refuses whoever lost the lock on the way here.
func markSent(ctx context.Context, client *watchlock.Client, db execer, order string) error {
	return client.NewFencedMutex("lock:order:"+order).Do(ctx, func(ctx context.Context, token int64) error {
		result, err := db.ExecContext(ctx,
			`UPDATE shipments SET status = 'SENT', lock_token = $1 WHERE order_id = $2 AND lock_token < $1`, token, order)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n == 1 {
			return err
		}
		return errors.New("not sent: the row has seen a newer token, or there is no such row")
	})
}

// execer is what *sql.DB and *sql.Tx have in common.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// shipment plays a table with the row of one order.
type shipment struct {
	order     string
	lockToken int64
}

func (s *shipment) ExecContext(_ context.Context, _ string, args ...any) (sql.Result, error) {
	token := args[0].(int64)
	if args[1] != s.order || s.lockToken >= token {
		return driver.RowsAffected(0), nil
	}
	s.lockToken = token
	return driver.RowsAffected(1), nil
}

// Do of a fenced lock hands the function a token, which is larger for each new
// hold. The row keeps the newest and takes no older one.
func ExampleFencedMutex_Do() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	db := &shipment{order: "1001"}

	fmt.Println(markSent(ctx, client, db, "1001"))
	db.lockToken += 10_000_000_000 // somebody with a newer token was there
	fmt.Println(markSent(ctx, client, db, "1001"))
	// Output:
	// <nil>
	// not sent: the row has seen a newer token, or there is no such row
}

// The plain recipe, for names that others lock by it too.
func ExampleClient_NewSetNXMutex() {
	rdb, stop := exampleRedis()
	defer stop()
	ctx := context.Background()
	client := must(watchlock.New(rdb))
	defer client.Close()
	rdb.Set(ctx, "lock:import", "a script's token", time.Minute) // SET NX PX, somewhere else

	_, err := client.NewSetNXMutex("lock:import").TryLock(ctx, 0)
	fmt.Println(errors.Is(err, watchlock.ErrNotAcquired))
	// Output: true
}

// An operator takes the lock away. A holder in this process learns of it at once.
func ExampleMutex_ForceUnlock() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	m := client.NewMutex("lock:nightly")
	lease := must(m.Lock(ctx))
	fmt.Println(m.ForceUnlock(ctx), errors.Is(lease.Err(), watchlock.ErrLost))
	// Output: <nil> true
}

// A lease with a time of its own can ask for more while it lasts.
func ExampleLease_Extend() {
	client, stop := exampleClient()
	defer stop()
	ctx := context.Background()
	lease := must(client.NewMutex("lock:upload").Lock(ctx, watchlock.WithLeaseTime(10*time.Second)))
	fmt.Println(lease.Extend(ctx, time.Minute), time.Until(lease.ExpiresAt()) > 50*time.Second, lease.Unlock(ctx))
	// Output: <nil> true <nil>
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// Every line of the README's porting table.
func Example_porting() {
	rdb, stop := exampleRedis()
	defer stop()
	ctx := context.Background()
	f := func(context.Context) error { return nil }

	client := must(watchlock.New(rdb, watchlock.WithWatchdogTimeout(30*time.Second)))
	m := client.NewMutex("k")
	fmt.Println(m.Do(ctx, f), m.TryDo(ctx, 3*time.Second, f))

	lease := must(m.Lock(ctx))
	inner := must(m.Lock(lease.Context(ctx)))
	info := must(m.Info(ctx))
	fmt.Println("held:", info.Held, "mine:", info.Mine, "holds:", info.Holds, "live:", lease.Err() == nil)
	fmt.Println(inner.Unlock(ctx), lease.Unlock(ctx))

	lease = must(m.Lock(ctx, watchlock.WithLeaseTime(10*time.Second)))
	fmt.Println(lease.Unlock(ctx))
	lease = must(m.TryLock(ctx, 0))
	fmt.Println(lease.Unlock(ctx))
	lease = must(m.TryLock(ctx, 3*time.Second))
	fmt.Println(lease.Unlock(ctx))
	lease = must(m.TryLock(ctx, 3*time.Second, watchlock.WithLeaseTime(10*time.Second)))
	fmt.Println(lease.Extend(ctx, 10*time.Second), m.ForceUnlock(ctx))
	fenced := must(client.NewFencedMutex("k").Lock(ctx))
	fmt.Println(fenced.Token() > 0, fenced.Unlock(ctx), client.NewSetNXMutex("k").Do(ctx, f), client.Close())
	// Output:
	// <nil> <nil>
	// held: true mine: true holds: 2 live: true
	// <nil> <nil>
	// <nil>
	// <nil>
	// <nil>
	// <nil> <nil>
	// true <nil> <nil> <nil>
}
