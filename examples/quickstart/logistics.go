package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/seed-8c25f305/watchlock/examples/internal/timeline"
)

// logistics plays the API of the company that fetches the parcels. Each request
// sends one more parcel on its way: it does not ask whether there was one before.
type logistics struct {
	server *httptest.Server

	mu      sync.Mutex
	parcels map[string]int // by order; guarded by mu
}

func newLogistics(t *timeline.Timeline, takes time.Duration) *logistics {
	api := &logistics{parcels: make(map[string]int)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /parcels/{order}", func(w http.ResponseWriter, r *http.Request) {
		if pass(r.Context(), takes) != nil {
			return // the caller has gone
		}
		order := r.PathValue("order")
		api.mu.Lock()
		api.parcels[order]++
		n := api.parcels[order]
		api.mu.Unlock()
		t.Say("logistics", "sends parcel %d of order %s", n, order)
		w.WriteHeader(http.StatusCreated)
	})
	api.server = httptest.NewServer(mux)
	return api
}

// dispatch asks for a parcel. It is what cannot be taken back.
func (l *logistics) dispatch(ctx context.Context, order string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.server.URL+"/parcels/"+order, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := l.server.Client().Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		return fmt.Errorf("logistics: order %s: %s", order, resp.Status)
	}
	return nil
}

// sent is how many parcels of an order are on their way.
func (l *logistics) sent(order string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.parcels[order]
}

func (l *logistics) close() { l.server.Close() }
