// Package bootclock is the clock of trust: it goes on while the machine is suspended.
package bootclock
