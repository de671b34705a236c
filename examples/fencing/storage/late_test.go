package storage

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

const (
	shops     = 9 // of rows: each with a lock, and two workers who want it
	leaseTime = 150 * time.Millisecond
)

// journal keeps the token of each write that the database took, in the order in
// which it took them. It does not ask the statements under test.
var journal = map[string][]string{
	"sqlite": {
		`CREATE TABLE journal (seq INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, token BIGINT NOT NULL)`,
		`CREATE TRIGGER a AFTER UPDATE OF lock_token ON shipments BEGIN INSERT INTO journal (name, token) VALUES (NEW.order_id, NEW.lock_token); END`,
		`CREATE TRIGGER b AFTER UPDATE ON fences BEGIN INSERT INTO journal (name, token) VALUES (NEW.name, NEW.lock_token); END`,
		`CREATE TRIGGER c AFTER INSERT ON fences BEGIN INSERT INTO journal (name, token) VALUES (NEW.name, NEW.lock_token); END`,
	},
	"postgres": {
		`CREATE TABLE journal (seq BIGSERIAL PRIMARY KEY, name TEXT NOT NULL, token BIGINT NOT NULL)`,
		`CREATE FUNCTION row_written() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN INSERT INTO journal (name, token) VALUES (NEW.order_id, NEW.lock_token); RETURN NULL; END $$`,
		`CREATE FUNCTION fence_claimed() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN INSERT INTO journal (name, token) VALUES (NEW.name, NEW.lock_token); RETURN NULL; END $$`,
		`CREATE TRIGGER a AFTER UPDATE OF lock_token ON shipments FOR EACH ROW EXECUTE FUNCTION row_written()`,
		`CREATE TRIGGER b AFTER INSERT OR UPDATE ON fences FOR EACH ROW EXECUTE FUNCTION fence_claimed()`,
	},
}

func TestManyWritesNoStaleOneIsTakenAndNoLiveOneRefusedSQLite(t *testing.T) {
	writeMuch(t, sqliteDatabase(t), fullCount(100_000))
}

func TestManyWritesNoStaleOneIsTakenAndNoLiveOneRefusedPostgres(t *testing.T) {
	writeMuch(t, postgresDatabase(t), fullCount(10_000))
}

// writeMuch lets holders write until there have been enough writes. Many of them
// are stopped until their lease has ended, and go on to write.
func writeMuch(t *testing.T, db database, enough int) {
	t.Helper()
	server := redistest.Start(t)
	hammer := &hammer{t: t, enough: int64(enough)}
	hammer.ctx, hammer.stop = context.WithCancel(t.Context())
	defer hammer.stop()
	var wg sync.WaitGroup
	for process := range 2 {
		store := db.open(t)
		if process == 0 {
			for _, statement := range journal[db.name] {
				_, err := store.DB().ExecContext(t.Context(), statement)
				must(t, err)
			}
			for shop := range shops {
				must(t, store.Add(t.Context(), orderOf(shop), "PAID"))
			}
		}
		client, err := watchlock.New(server.Client())
		must(t, err)
		defer client.Close()
		for shop := range shops {
			w := &worker{
				hammer, store, client.NewFencedMutex(orderOf(shop), watchlock.WithLeaseTime(leaseTime)), shop,
				rand.New(rand.NewPCG(uint64(process), uint64(shop))),
			}
			wg.Go(w.work)
		}
	}
	wg.Wait()
	taken := checkJournal(t, db.open(t))
	live, late, refused := hammer.live.Load(), hammer.late.Load(), hammer.refused.Load()
	t.Logf("%d writes: %d of live holders, %d of holders past their lease, of which %d came too late and were refused", live+late, live, late, refused)
	if want := live + late - refused; int64(taken) != want {
		t.Errorf("the database took %d writes, and its callers were told of %d", taken, want)
	}
	if live == 0 || refused == 0 {
		t.Error("what this test is about did not happen")
	}
}

func orderOf(shop int) string { return fmt.Sprintf("order:%d", shop) }

// checkJournal fails when a write was taken with an older token than one before
// it. It returns how many were taken.
func checkJournal(t *testing.T, s *Store) (taken int) {
	t.Helper()
	rows, err := s.DB().QueryContext(t.Context(), `SELECT name, token FROM journal ORDER BY seq`)
	must(t, err)
	defer rows.Close()
	newest := make(map[string]int64)
	for ; rows.Next(); taken++ {
		var name string
		var token int64
		must(t, rows.Scan(&name, &token))
		if token < newest[name] {
			t.Errorf("%s: a write with token %d was taken after one with %d", name, token, newest[name])
		}
		newest[name] = max(newest[name], token)
	}
	must(t, rows.Err())
	return taken
}

type hammer struct {
	t      *testing.T
	ctx    context.Context
	stop   func()
	enough int64

	live, late, refused atomic.Int64        // writes
	shown               [shops]atomic.Int64 // the newest token with a write that was taken
}

// worker is one of the two who write the row of a shop.
type worker struct {
	*hammer
	store *Store
	lock  *watchlock.FencedMutex
	shop  int
	rand  *rand.Rand
}

func (w *worker) work() {
	for w.live.Load()+w.late.Load() < w.enough {
		lease, err := w.lock.Lock(w.ctx)
		if err != nil {
			if w.ctx.Err() == nil {
				w.t.Error(err)
			}
			break
		}
		w.writeLive(lease)
		switch w.rand.IntN(4) {
		case 0, 1:
			_ = lease.Unlock(w.ctx) // a write may have outlived it
		case 2: // stopped until the next holder may be anywhere
			<-lease.Done()
			w.writeLate(lease.Token(), false)
		case 3: // stopped until the next holder has written
			if w.waitForNext(lease.Token()) {
				w.writeLate(lease.Token(), true)
			}
		}
	}
	w.stop() // the other worker may wait for this one's next write
}

// write writes the shop's row in the way of this shop.
func (w *worker) write(token int64) error {
	// Not under w.ctx: whether a write that is broken off was taken nobody knows.
	ctx, order, status := context.WithoutCancel(w.ctx), orderOf(w.shop), fmt.Sprintf("written with %d", token)
	var err error
	switch w.shop % 3 {
	case 0:
		err = w.store.Write(ctx, order, status, token)
	case 1:
		err = w.store.WriteOnce(ctx, order, status, token)
	case 2:
		err = w.store.InFence(ctx, order, token, func(tx *sql.Tx) error {
			return setAll(ctx, status, order)(tx)
		})
	}
	if err == nil {
		for seen := w.shown[w.shop].Load(); seen < token && !w.shown[w.shop].CompareAndSwap(seen, token); {
			seen = w.shown[w.shop].Load()
		}
	}
	return err
}

// writeLive writes while the lease lasts: once where a token may write once.
func (w *worker) writeLive(lease *watchlock.FencedLease) {
	n := 1 + w.rand.IntN(12)
	if w.shop%3 == 1 {
		n = 1
	}
	for range n {
		err := w.write(lease.Token())
		stale := (*StaleError)(nil)
		switch lost := lease.Err() != nil; {
		case err != nil && !errors.As(err, &stale):
			w.t.Error(err)
		case lost: // under the write: it may be taken or not
			w.count(&w.late, err)
			return
		case err != nil:
			w.t.Errorf("the write of a live holder is refused: %v", err)
			fallthrough
		default:
			w.count(&w.live, err)
		}
	}
}

// writeLate writes after the lease's end. Where the next holder has written, the
// write must be refused. Where a token writes once, it has.
func (w *worker) writeLate(token int64, mustFail bool) {
	err := w.write(token)
	stale := (*StaleError)(nil)
	if err != nil && !errors.As(err, &stale) || err == nil && mustFail {
		w.t.Errorf("the late write with token %d: %v", token, err)
	}
	w.count(&w.late, err)
}

func (w *worker) count(kind *atomic.Int64, err error) {
	kind.Add(1)
	if err != nil {
		w.refused.Add(1)
	}
}

// waitForNext waits until a newer token has written the row.
func (w *worker) waitForNext(token int64) bool {
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for w.shown[w.shop].Load() <= token {
		select {
		case <-ticker.C:
		case <-w.ctx.Done():
			return false
		}
	}
	return true
}
