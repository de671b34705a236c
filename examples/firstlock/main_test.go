package main

import (
	"os"
	"testing"

	"github.com/alicebob/miniredis/v2"
)

func TestMain(m *testing.M) {
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		panic(err)
	}
	if err := os.Setenv("REDIS_ADDR", server.Addr()); err != nil {
		panic(err)
	}
	m.Run() // the exit code is kept, and used when TestMain returns
	server.Close()
}

func Example() {
	main()
	// Output: alone with order 1001
}
