package redistest

import (
	"context"
	"net"
	"sync"
	"syscall"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// virtualAddr is what clients of a Virtual believe to dial. It is numeric,
// because looking a name up starts goroutines that outlive a bubble and break
// the next one.
const virtualAddr = "127.0.0.1:6379"

// Virtual is a miniredis for a testing/synctest bubble. Its TTLs run on the
// bubble's clock, and its connections are in memory, so that waiting for it is
// durably blocking. Safe for concurrent use within the bubble.
type Virtual struct {
	t    testing.TB
	mini *miniredis.Miniredis
	log  commandLog

	// serving is held while a connection is handed to the server, so that none
	// comes after Close. The server closes connections under a mutex of its own
	// that it takes there too: mu must not be held around a call of the server.
	serving sync.Mutex
	closed  bool // guarded by serving

	mu sync.Mutex
	// guarded by mu
	clients []*redis.Client
	ends    map[*virtualEnd]struct{} // the server's ends of open connections
	dialled int
	frozen  bool
}

// NewVirtual returns an empty server that runs until the test ends, or until
// Close. Call it inside the bubble, with the bubble's t.
func NewVirtual(t testing.TB) *Virtual {
	t.Helper()
	v := &Virtual{t: t, mini: miniredis.NewMiniRedis(), ends: map[*virtualEnd]struct{}{}}
	v.mini.ClockTTL(true)
	v.mini.Seed(1)
	// The first Dial is the one way to start a miniredis without a listener.
	// Its net.Pipe is not kept: with it a pipeline over 4 KB is a deadlock,
	// because neither side reads while it writes.
	conn, err := v.mini.Dial()
	if err != nil {
		t.Fatalf("redistest: start miniredis: %v", err)
	}
	_ = conn.Close() // a pipe's Close does not fail
	t.Cleanup(v.Close)
	return v
}

// Mini returns the server itself, for looking at keys and setting them.
func (v *Virtual) Mini() *miniredis.Miniredis { return v.mini }

// Client returns a new client of the server, which is closed with it. Options
// other than go-redis's defaults are RESP3, no maintenance notifications and no
// CLIENT SETINFO, so that HELLO is all that opens a connection; opts may change
// any of it. A PubSub whose Channel was asked for must be closed by the test:
// its goroutine outlives the client.
func (v *Virtual) Client(opts ...func(*redis.Options)) *redis.Client {
	v.t.Helper()
	opt := quietOptions()
	opt.Network, opt.Addr, opt.Dialer = "tcp", virtualAddr, v.Dial
	for _, apply := range opts {
		apply(opt)
	}
	client := redis.NewClient(opt)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.clients = append(v.clients, client)
	return client
}

func quietOptions() *redis.Options {
	return &redis.Options{
		Protocol:                 3,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// Dial connects to the server; network and addr do not matter. It fails after
// Close. A frozen server accepts connections and does not read them.
func (v *Virtual) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, &net.OpError{Op: "dial", Net: "memory", Addr: memAddr{}, Err: err}
	}
	v.serving.Lock()
	defer v.serving.Unlock()
	if v.closed {
		return nil, &net.OpError{Op: "dial", Net: "memory", Addr: memAddr{}, Err: syscall.ECONNREFUSED}
	}
	client, server := memPipe()
	v.mini.Server().ServeConn(v.newEnd(server))
	return client, nil
}

func (v *Virtual) newEnd(conn *memConn) *virtualEnd {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.dialled++
	end := &virtualEnd{memConn: conn, v: v, number: v.dialled}
	end.setFrozen(v.frozen)
	v.ends[end] = struct{}{}
	return end
}

// Freeze stops the server from reading, as SIGSTOP does: connections stay
// open, new ones are accepted, what clients send waits, and nothing is
// answered. TTLs go on. A command that the server has already read still runs.
func (v *Virtual) Freeze() { v.setFrozen(true) }

// Thaw lets a frozen server read again. What waited then runs: in order on
// each connection, in any order between them.
func (v *Virtual) Thaw() { v.setFrozen(false) }

func (v *Virtual) setFrozen(frozen bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.frozen = frozen
	for end := range v.ends {
		end.setFrozen(frozen)
	}
}

// Conns returns how many connections the server has open.
func (v *Virtual) Conns() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.ends)
}

// Commands returns what the server has read from its clients, in that order,
// with the bubble's time of each. Commands that a script calls are not in it.
func (v *Virtual) Commands() []Command { return v.log.all() }

// Count returns how many commands of this name, in any case, the server has
// read since the last Reset.
func (v *Virtual) Count(name string) int { return v.log.count(Is(name)) }

// CountIf returns how many commands that match the server has read since the
// last Reset; CountIf(Runs(script)) counts the runs of a script.
func (v *Virtual) CountIf(match Match) int { return v.log.count(match) }

// Reset empties the list of commands.
func (v *Virtual) Reset() { v.log.reset() }

// Close closes the clients and the server, frozen or not, and returns when the
// server's goroutines have ended. More calls do nothing. A call of a client
// that is still in flight must not be left to it: go-redis retries after a
// pause, and pauses do not end once the test's function has returned.
func (v *Virtual) Close() {
	v.serving.Lock()
	v.closed = true
	v.serving.Unlock()
	v.mu.Lock()
	clients := v.clients
	v.clients = nil
	v.mu.Unlock()
	for _, client := range clients {
		_ = client.Close() // fails when the test has closed it already
	}
	v.mini.Close()
}

// virtualEnd is the server's end of a connection. It logs what the server
// reads.
type virtualEnd struct {
	*memConn
	v      *Virtual
	number int

	split splitter // owned by the one goroutine that reads
}

func (e *virtualEnd) Read(p []byte) (int, error) {
	n, err := e.memConn.Read(p)
	e.split.feed(p[:n])
	for {
		frame, ok := e.split.next()
		if !ok {
			return n, err
		}
		e.v.log.add(newCommand(frame, e.number))
	}
}

func (e *virtualEnd) Close() error {
	e.v.mu.Lock()
	delete(e.v.ends, e)
	e.v.mu.Unlock()
	return e.memConn.Close()
}
