package locktest

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

// ReleasesOfAnyKind matches what releases a lock of any kind.
func ReleasesOfAnyKind(c redistest.Command) bool {
	return redistest.Runs(wire.ReleaseSource)(c) || redistest.Runs(wire.ReleaseStringSource)(c) || redistest.Is("DELEX")(c)
}

// ChannelKeys is the channel of the lock of a kind.
func ChannelKeys(kind string) string {
	if kind == "setnx" {
		return "watchlock_setnx__channel:{setnx}"
	}
	return "redisson_lock__channel:{" + kind + "}"
}

// Scriptless makes a user with every right but those to run scripts, and returns
// an option of clients that log in as that user.
func Scriptless(t testing.TB, s *redistest.Server) func(*redis.Options) {
	t.Helper()
	rules := []any{"ACL", "SETUSER", "u", "reset", "on", ">p", "~*", "&*", "+@all", "-@scripting"}
	MustDo(t, s, rules...)
	return func(o *redis.Options) { o.Username, o.Password = "u", "p" }
}

// TourTTL is long enough for renewals on a busy machine.
const TourTTL = 2 * time.Second

// AcquiresString matches what acquires a lock of the string form.
func AcquiresString(c redistest.Command) bool {
	return redistest.Runs(wire.AcquireStringSource)(c) || c.Name == "SET" && c.Arg(2) == "NX"
}

// Sent is how many commands the server has read, besides those that open a
// connection. The first run of a script, EVALSHA and then EVAL, counts once.
func Sent(v *redistest.Virtual) int {
	n := 0
	for _, c := range v.Commands() {
		if c.Name != "HELLO" && c.Name != "EVAL" {
			n++
		}
	}
	return n
}
