// Package redistest gives tests a Redis to talk to and the means to make it
// misbehave.
//
// There are two kinds of server. [NewVirtual] is a miniredis on in-memory
// connections for use in a testing/synctest bubble: leases of seconds pass in
// microseconds and expire to the millisecond. [Start] runs a real server as a
// child process, for everything that miniredis does differently, [StartCluster] a
// cluster of them, and [StartSentinel] a primary and replicas that sentinels watch.
// [NewFakeSentinel] names any server the primary, at a word of the test.
//
// A [Wire] sits between a client and either of them, follows the conversation
// command by command, and loses, holds or repeats exactly the command that a
// test names.
package redistest
