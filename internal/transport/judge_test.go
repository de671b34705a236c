package transport_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// serverReply is an error reply of a server.
type serverReply string

func (e serverReply) Error() string { return string(e) }

func (serverReply) RedisError() {}

func TestRepliesAndFailuresAreJudged(t *testing.T) {
	refusedDial := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	for _, c := range []struct {
		err         error
		fate        transport.Fate
		unavailable bool
	}{
		{nil, transport.Replied, false},
		{serverReply("LOADING Redis is loading the dataset in memory"), transport.Later, true},
		{serverReply("BUSY Redis is busy running a script."), transport.Later, true},
		{serverReply("CLUSTERDOWN The cluster is down"), transport.Later, true},
		{serverReply("TRYAGAIN Multiple keys request during rehashing of slot"), transport.Later, true},
		{serverReply("READONLY You can't write against a read only replica."), transport.Later, true},
		{serverReply("MASTERDOWN Link with MASTER is down"), transport.Later, true},
		{serverReply("MISCONF Redis is configured to save RDB snapshots"), transport.Later, true},
		{serverReply("OOM command not allowed when used memory > 'maxmemory'."), transport.Later, true},
		{serverReply("NOREPLICAS Not enough good replicas to write."), transport.Later, true},
		{serverReply("ERR max number of clients reached"), transport.Later, true},
		{serverReply("NOPERM User u has no permissions to run the 'evalsha' command"), transport.Refused, false},
		{serverReply("WRONGPASS invalid username-password pair or user is disabled."), transport.Refused, false},
		{serverReply("NOAUTH Authentication required."), transport.Refused, false},
		{serverReply("WRONGTYPE Operation against a key holding the wrong kind of value"), transport.Refused, false},
		{serverReply("ERR unknown command 'evalsha'"), transport.Refused, false},
		{serverReply("REDIRECT 127.0.0.1:6380"), transport.Later, true},
		{serverReply("CROSSSLOT Keys in request don't hash to the same slot"), transport.Refused, false},
		{serverReply("EXECABORT Transaction discarded because of previous errors."), transport.Refused, false},
		{serverReply("NOPROTO unsupported protocol version"), transport.Refused, false},
		{serverReply("DENIED Redis is running in protected mode"), transport.Refused, false},
		{serverReply("ERR unknown subcommand 'FOO'. Try PUBSUB HELP."), transport.Refused, false},
		{serverReply("ERR syntax error"), transport.Refused, false},
		{serverReply("ERR wrong number of arguments for 'publish' command"), transport.Refused, false},
		{serverReply("ERR Unknown Redis command called from script script: 970a5c6e, on @user_script:1."), transport.Refused, false},
		{serverReply("ERR Wrong number of args calling command from script script: on @user_script:1."), transport.Refused, false},
		{serverReply("ERR ACL failure in script: User u has no permissions to run the 'hdel' command"), transport.Refused, false},
		{serverReply("ERR The user executing the script can't run this command or subcommand"), transport.Refused, false},
		{serverReply("ERR user_script:1: attempt to index local 'x' (a nil value) script: on @user_script:1."), transport.Refused, false},
		{serverReply("ERR Error compiling script (new function): user_script:1: '=' expected near 'bad'"), transport.Refused, false},
		{serverReply("ERR Number of keys can't be greater than number of args"), transport.Refused, false},
		{serverReply("ERR value is not an integer or out of range"), transport.Refused, false},
		{serverReply("ERR invalid expire time in 'set' command"), transport.Refused, false},
		{serverReply("ERR Key should be of string type if conditions are specified"), transport.Refused, false},
		{serverReply("ERR DB index is out of range"), transport.Refused, false},
		{serverReply("ERR lease out of range"), transport.Refused, false},
		{serverReply("ERR token TTL out of range"), transport.Refused, false},
		{serverReply("ERR reserve out of range"), transport.Refused, false},
		{serverReply("OOMPH"), transport.Dubious, false},
		{serverReply("ERR LOADING"), transport.Dubious, false},
		{serverReply(""), transport.Dubious, false},
		{serverReply("ERR"), transport.Dubious, false},
		{serverReply("upstream failure"), transport.Dubious, false},
		{serverReply("no upstream host"), transport.Dubious, false},
		{serverReply("ERR Connection timed out"), transport.Dubious, false},
		{serverReply("ERR server closed connection"), transport.Dubious, false},
		{redis.Nil, transport.Dubious, false},
		{refusedDial, transport.Unsent, true},
		{fmt.Errorf("wrapped: %w", refusedDial), transport.Unsent, true},
		{&net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}, transport.Unknown, true},
		{&net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}, transport.Unknown, true},
		{redis.ErrPoolTimeout, transport.Unsent, true},
		{context.DeadlineExceeded, transport.Unknown, true},
		{errors.New("anything else"), transport.Unknown, true},
		{redis.ErrClosed, transport.Refused, false},
	} {
		fate, err := transport.Judge(c.err)
		if fate != c.fate || watchlock.IsUnavailable(err) != c.unavailable || watchlock.IsUnavailable(fmt.Errorf("w: %w", err)) != c.unavailable {
			t.Errorf("%v: fate %d, want %d; unavailable %v", c.err, fate, c.fate, watchlock.IsUnavailable(err))
		}
		if c.err != nil && (!errors.Is(err, c.err) || !strings.Contains(err.Error(), c.err.Error())) {
			t.Errorf("%v became %v", c.err, err)
		}
		if wrong := strings.HasPrefix(fmt.Sprint(c.err), "WRONGTYPE"); errors.Is(err, watchlock.ErrWrongType) != wrong {
			t.Errorf("%v matches ErrWrongType: %v", c.err, !wrong)
		}
	}
}
