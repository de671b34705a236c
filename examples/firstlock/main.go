// Command firstlock is the short program of the README. It needs a Redis at
// localhost:6379, or where REDIS_ADDR says.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
)

func main() {
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS_ADDR")}) // by default localhost:6379
	defer rdb.Close()
	client, err := watchlock.New(rdb) // one for the process, shared by all goroutines
	if err != nil {
		log.Panic(err)
	}
	defer client.Close()

	lock := client.NewMutex("lock:order:1001")
	err = lock.TryDo(context.Background(), 3*time.Second, func(ctx context.Context) error {
		fmt.Println("alone with order 1001") // ctx ends if the lock is lost
		return nil
	})
	switch {
	case errors.Is(err, watchlock.ErrNotAcquired):
		fmt.Println("busy for 3 s:", err)
	case err != nil:
		log.Panic(err)
	}
}
