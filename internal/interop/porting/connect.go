// Package porting is the Go side of docs/porting-from-redisson.md. The guide
// shows the regions between "guide:" and "end" word for word, and the tests of
// the module above run them beside the Kotlin side, peers/porting.
package porting

import (
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
)

// Connect returns a client of the locks on host. The caller closes it, and rdb after it.
// guide: connect
func Connect(host string) (rdb *redis.Client, client *watchlock.Client, err error) {
	rdb = redis.NewClient(&redis.Options{Addr: host})
	client, err = watchlock.New(rdb)
	return rdb, client, err
}

// end

// ConnectAsShop returns a client of the shop's locks.
// guide: configure
func ConnectAsShop(rdb redis.UniversalClient) (*watchlock.Client, error) {
	return watchlock.New(rdb,
		watchlock.WithWatchdogTimeout(20*time.Second),
		watchlock.WithKeyPrefix("shop:"),               // or WithNameMapper(func(name string) string)
		watchlock.WithChannels(watchlock.ChannelsAuto), // the default; when it is wrong: see Clusters
	)
}

// end
