// Package redistest gives tests a Redis to talk to and the means to make it
// misbehave.
//
// There are two kinds of server. [NewVirtual] is a miniredis on in-memory
// connections for use in a testing/synctest bubble: leases of seconds pass in
// microseconds and expire to the millisecond. [Start] runs a real server as a
// child process, for everything that miniredis does differently.
//
// A [Wire] sits between a client and either of them, follows the conversation
// command by command, and loses, holds or repeats exactly the command that a
// test names.
package redistest
