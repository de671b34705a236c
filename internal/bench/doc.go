// Command bench compares watchlock with other lock clients for Redis, side by
// side in one run:
//
//	go run -C internal/bench . [flags]
//
// It starts a Redis server of its own on a free loopback port and stops it at
// the end. In each scenario all clients take turns, round by round, so that what
// else the machine does falls on all of them; figures are medians over the
// rounds, and ratios are formed within each round. The order is drawn for each
// round, so that nobody always follows the same. Every section checks that it is
// alone. The table, the raw figures and the plots go to a folder.
//
// The file adapter.go tells how each client is set up. Raw go-redis, which runs
// two scripts and nothing else, counts as 1; its twin beside it, which differs
// only in how it waits, shows how exact that yardstick is where nobody waits.
package main
