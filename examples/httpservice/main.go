// Command httpservice answers requests that need a lock:
//
//	go run -C examples ./httpservice -addr localhost:8080
//	curl -i -X POST localhost:8080/orders/1001/dispatch
//
// Send the request twice at once. The first is answered after some seconds, and
// the second waits for 3 s and is told "409 Conflict" with Retry-After. With
// -redis URL, stop that Redis: the answer is 503 Service Unavailable. Interrupt
// the service: requests in flight are answered before it ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/examples/internal/connect"
)

func main() {
	addr := flag.String("addr", "localhost:8080", "`address` to listen on")
	redisURL := flag.String("redis", "", "`URL` of a Redis; without it the service has an embedded one for itself")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *addr, *redisURL)
	cancel()
	if err != nil {
		log.Fatal("httpservice: ", err)
	}
}

func run(ctx context.Context, addr, redisURL string) error {
	rdb, about, stop, err := connect.Redis(ctx, redisURL)
	if err != nil {
		return err
	}
	defer stop()
	client, err := watchlock.New(rdb)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return errors.Join(err, client.Close())
	}
	log.Printf("listening on %s, with %s", listener.Addr(), about)
	s := &service{client: client, wait: 3 * time.Second, dispatch: slowDispatch}
	return serve(ctx, listener, s.handler(), client)
}

// shutdownTimeout is what requests in flight have to come to their end.
const shutdownTimeout = 20 * time.Second

// serve answers requests until ctx ends. The order of the end matters:
//
//  1. The server takes no more requests and waits for those in flight, so that
//     handlers give their locks back themselves.
//  2. The client is closed. Whatever lock is still held then is reported, and
//     left to expire.
//  3. The caller closes the Redis client, which the first two needed.
func serve(ctx context.Context, listener net.Listener, handler http.Handler, client *watchlock.Client) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return errors.Join(err, client.Close())
	case <-ctx.Done():
	}
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	err := server.Shutdown(patience)
	if serveErr := <-served; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	if closeErr := client.Close(); closeErr != nil {
		err = errors.Join(err, fmt.Errorf("locks: %w", closeErr))
	}
	return err
}
