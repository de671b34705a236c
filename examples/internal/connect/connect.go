// Package connect opens the Redis that an example works on.
package connect

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Redis returns a client of the server at rawURL, such as redis://localhost:6379/0,
// or of an embedded one when rawURL is empty. about says which, without a
// password. stop closes the client, and the embedded server with it.
func Redis(ctx context.Context, rawURL string) (rdb *redis.Client, about string, stop func(), err error) {
	if rawURL == "" {
		return embedded()
	}
	opts, err := redis.ParseURL(rawURL)
	if err != nil {
		if bad := (*url.Error)(nil); errors.As(err, &bad) {
			err = bad.Err // the rest of it repeats the URL, and with it the password
		}
		return nil, "", nil, fmt.Errorf("the Redis URL is not usable: %w", err)
	}
	rdb = redis.NewClient(quiet(opts))
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := rdb.Ping(ctx).Err(); err != nil {
		_ = rdb.Close()
		return nil, "", nil, fmt.Errorf("no Redis answers at %s: %w", opts.Addr, err)
	}
	return rdb, fmt.Sprintf("Redis at %s, database %d", opts.Addr, opts.DB), func() { _ = rdb.Close() }, nil
}

// embedded starts a miniredis in this process, on a free port of the loopback
// interface.
func embedded() (*redis.Client, string, func(), error) {
	server := miniredis.NewMiniRedis()
	server.ClockTTL(true) // without it no key of a miniredis ever expires by itself
	if err := server.Start(); err != nil {
		return nil, "", nil, fmt.Errorf("start the embedded Redis: %w", err)
	}
	rdb := redis.NewClient(quiet(&redis.Options{Addr: server.Addr()}))
	stop := func() {
		_ = rdb.Close()
		server.Close()
	}
	return rdb, "an embedded Redis (miniredis) in this process", stop, nil
}

// quiet turns off what go-redis asks of Redis Enterprise and Redis Cloud only.
func quiet(opts *redis.Options) *redis.Options {
	opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return opts
}
