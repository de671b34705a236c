package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/seed-8c25f305/watchlock"
)

// service dispatches orders, each under its own lock.
type service struct {
	client   *watchlock.Client
	wait     time.Duration // for a lock
	dispatch func(ctx context.Context, order string) error
}

func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/{id}/dispatch", s.dispatchOrder)
	return mux
}

// orderID keeps out of a lock's name what a client may write in a URL: braces,
// for one, choose the slot in a Redis cluster.
var orderID = regexp.MustCompile(`^[0-9]{1,18}$`)

func (s *service) dispatchOrder(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if !orderID.MatchString(id) {
		http.Error(w, "not an order number", http.StatusBadRequest)
		return
	}
	// Making a Mutex costs nothing: it is a name with options, and does no I/O.
	lock := s.client.NewMutex("lock:order:" + id)

	// The request's context ends the wait when the client hangs up.
	done := false
	err := lock.TryDo(r.Context(), s.wait, func(ctx context.Context) error {
		if err := s.dispatch(ctx, id); err != nil {
			return err
		}
		done = true
		return nil
	})
	switch {
	case err == nil:
	case r.Context().Err() != nil:
		return // nobody listens any more
	case done && !errors.Is(err, watchlock.ErrLost):
		// The order was dispatched under the lock. Only the release did not reach
		// Redis, or the client was closed meanwhile: at worst the lock expires.
		log.Print(err)
	default:
		answer(w, err)
		return
	}
	_, _ = fmt.Fprintf(w, "order %s is dispatched\n", id)
}

// answer tells the client what came of the lock, and the log what went wrong.
func answer(w http.ResponseWriter, err error) {
	code, retryAfter := status(err)
	if retryAfter > 0 {
		seconds := int(math.Ceil(retryAfter.Seconds()))
		w.Header().Set("Retry-After", strconv.Itoa(seconds))
	}
	if code >= http.StatusInternalServerError {
		log.Print(err)
	}
	// The error's own text is for the log: it names locks and servers.
	http.Error(w, http.StatusText(code), code)
}

// status is the HTTP status for an error of TryDo, and when to try again.
func status(err error) (code int, retryAfter time.Duration) {
	var busy *watchlock.LockError
	switch {
	case errors.Is(err, watchlock.ErrLost):
		// The work was begun: what came of it must be looked at, not tried again.
		return http.StatusInternalServerError, 0
	case watchlock.IsUnavailable(err), errors.Is(err, watchlock.ErrClosed):
		return http.StatusServiceUnavailable, time.Second
	case errors.Is(err, watchlock.ErrNotAcquired) && errors.As(err, &busy):
		// The holder may unlock sooner, or its lease may be renewed.
		return http.StatusConflict, max(busy.TTL, time.Second)
	}
	return http.StatusInternalServerError, 0
}

// slowDispatch stands for the real work, which takes longer than a client waits.
func slowDispatch(ctx context.Context, _ string) error {
	timer := time.NewTimer(5 * time.Second)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done(): // the client has hung up, or the lock is lost
		return context.Cause(ctx)
	}
}
