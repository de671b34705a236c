package watchlock

import (
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/bootclock"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

func FuzzNames(f *testing.F) {
	for _, name := range []string{
		"", "a", "a:1", "{a}", "{}", "}{", "{{a}}", "a{b}c{d}", "a}b{c}", "{a", "a}", "\x00\r\n", "ключ", "\xff{\xfe}",
		"redisson_lock__channel:{a}", "redisson_lock__channel:a", strings.Repeat("n", wire.MaxNameBytes), strings.Repeat("n", wire.MaxNameBytes+1),
	} {
		f.Add(name, "a")
		f.Add(name, name)
		f.Add(name, "{"+name+"}")
	}
	f.Fuzz(func(t *testing.T, name, other string) {
		k, err := wire.NewKeys(wire.HashKind{}, name, nil)
		if err != nil {
			if len(err.Error()) > 500 {
				t.Errorf("a reason of %d bytes", len(err.Error()))
			}
			if name != "" && len(name) <= wire.MaxNameBytes && !strings.ContainsAny(name, "{}") {
				t.Errorf("%q is refused: %v", name, err)
			}
			return
		}
		if name == "" || len(name) > wire.MaxNameBytes {
			t.Fatalf("a name of %d bytes is accepted", len(name))
		}
		if k.Key != name || k.Name != name {
			t.Errorf("%q became %+v", name, k)
		}
		if lock, channel := transport.KeySlot(k.Key), transport.KeySlot(k.Channel); lock != channel || lock != k.Slot || lock < 0 || lock >= 16384 {
			t.Errorf("%q: lock in slot %d, channel in %d, kept as %d", name, lock, channel, k.Slot)
		}
		if o, err := wire.NewKeys(wire.HashKind{}, other, nil); err == nil && name != other {
			if k.Key == o.Key {
				t.Errorf("%q and %q share the key %q", name, other, k.Key)
			}
			// {a} and a publish on one channel, as in Redisson: a hint too many, no more.
			if k.Channel == o.Channel && "{"+name+"}" != other && "{"+other+"}" != name {
				t.Errorf("%q and %q share the channel %q", name, other, k.Channel)
			}
		}
	})
}

func FuzzDurations(f *testing.F) {
	for _, d := range []time.Duration{
		0, 1, 3, -1, time.Microsecond - 1, time.Microsecond, 500 * time.Microsecond, 9 * time.Millisecond, 10 * time.Millisecond,
		10*time.Millisecond + 1, 1500 * time.Microsecond, 299 * time.Millisecond, 300 * time.Millisecond, 30 * time.Second,
		5*time.Second - time.Millisecond, 5 * time.Second, wire.MaxDuration, wire.MaxDuration + 1, wire.MaxDuration + time.Millisecond,
		math.MaxInt64, math.MinInt64, math.MaxInt64 / 1e6 * 1e6,
	} {
		f.Add(int64(d), int64(30*time.Second))
		f.Add(int64(d), int64(d))
	}
	f.Fuzz(func(t *testing.T, a, b int64) {
		d, timeout := time.Duration(a), time.Duration(b)
		good := func(least time.Duration) bool {
			return d >= least && d <= wire.MaxDuration && d%time.Millisecond == 0
		}
		lock := func(opts ...LockOption) error {
			_, err := lockConfig{}.with(opts, 30*time.Second)
			return err
		}
		client := func(opts ...Option) error {
			_, err := newConfig(opts)
			return err
		}
		for what, c := range map[string]struct {
			err error
			ok  bool
		}{
			"lease time":        {lock(WithLeaseTime(d)), good(10 * time.Millisecond)},
			"max hold":          {lock(WithLeaseTime(10*time.Millisecond), WithMaxHold(d)), good(10 * time.Millisecond)},
			"watchdog timeout":  {client(WithWatchdogTimeout(d)), good(300 * time.Millisecond)},
			"unlock timeout":    {client(WithUnlockTimeout(d)), good(10 * time.Millisecond)},
			"max poll interval": {client(WithMaxPollInterval(d)), good(10 * time.Millisecond)},
			"wait":              {checkWait(d), d <= 0 || d >= time.Microsecond},
		} {
			if c.ok != (c.err == nil) {
				t.Errorf("%s %v: %v", what, d, c.err)
			}
			if c.err != nil && !strings.HasPrefix(c.err.Error(), what+" "+d.String()) {
				t.Errorf("%s %v: %q does not name it", what, d, c.err)
			}
		}
		if good(minLeaseTime) {
			checkTrustArithmetic(t, d, timeout)
		}
	})
}

// checkTrustArithmetic follows a lease that options accept through all that is
// computed from it.
func checkTrustArithmetic(t *testing.T, lease, timeout time.Duration) {
	m := bootclock.Margin(lease)
	if m <= 0 || m >= lease/2 || m < 2*time.Millisecond {
		t.Errorf("margin of %v is %v", lease, m)
	}
	for _, sentAt := range []time.Duration{0, time.Hour, wire.MaxDuration} {
		if trusted := sentAt + lease - m; trusted < sentAt || trusted >= sentAt+lease {
			t.Errorf("a lease of %v from %v is trusted until %v", lease, sentAt, trusted)
		}
	}
	o := ownedBy(wire.Keys{Key: "k"}, "me", lease)
	c := wire.AcquireHash(&o, nil)
	if ms := c.Params()[1].(int64); ms < 10 || time.Duration(ms)*time.Millisecond != lease {
		t.Errorf("a lease of %v is sent as %d", lease, ms)
	}
	if timeout < minWatchdogTimeout || timeout > wire.MaxDuration || timeout%time.Millisecond != 0 {
		return
	}
	// A max hold of lease, looked at as its end comes near.
	for _, left := range []time.Duration{lease, lease / 2, time.Millisecond, 1} {
		h := &hold{watchdog: true}
		h.end.Store(int64(wire.MaxDuration))
		b := &burst{holds: h}
		ttl := b.watchTTLLocked(wire.MaxDuration-left, timeout)
		if ttl <= 0 || ttl > timeout || ttl < min(timeout, left) || ttl%time.Millisecond != 0 {
			t.Errorf("%v before the end of a hold, with %v, the TTL is %v", left, timeout, ttl)
		}
	}
}

// fuzzedReply builds a reply of any shape from bytes, nested a little.
func fuzzedReply(data *[]byte, depth int) any {
	take := func(n int) []byte {
		n = min(n, len(*data))
		part := slices.Clone((*data)[:n])
		*data = (*data)[n:]
		return part
	}
	kind := take(1)
	if len(kind) == 0 {
		return nil
	}
	switch kind[0] % 12 {
	case 0:
		return nil
	case 1, 2, 3:
		return int64(int8(append(take(1), 0)[0]))
	case 4:
		return int64(binary.LittleEndian.Uint64(append(take(8), make([]byte, 8)...)))
	case 5:
		return string(take(int(kind[0])/12 + 1))
	case 6:
		return kind[0] > 128
	case 7:
		return math.NaN()
	case 8:
		return errors.New("ERR nested")
	case 9:
		return map[any]any{"k": int64(1)}
	}
	if depth > 3 {
		return []any{}
	}
	list := make([]any, kind[0]/12)
	for i := range list {
		list[i] = fuzzedReply(data, depth+1)
	}
	return list
}

func FuzzReplies(f *testing.F) {
	for _, seed := range [][]byte{
		nil,
		{1, 1},
		{22, 1, 1},                              // [1]
		{34, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 127}, // [0, much]
		{34, 1, 0, 1, 255},                      // [0, -1]
		{34, 1, 7, 1, 7},                        // [7, 7]
		{34, 1, 0, 5, 'x'},                      // [0, "x"]
		{34, 1, 0, 0},                           // [0, nil]
		{46, 1, 1, 1, 5, 1, 9},                  // [1, 5, 9]
		{46, 1, 1, 1, 9, 1, 5},                  // [1, 9, 5]
		{70, 1, 1, 1, 9, 29, 'm', 'e', ':', 5, '1', 5, '7'},
		{70, 1, 1, 1, 9, 5, 'm', 29, '1', '2', 'x', 5, 'y'},
		{22, 22, 22, 22, 1, 1},
		{22, 9},
		{22, 7},
		{22, 8},
		{22, 6},
	} {
		f.Add(seed, 1)
		f.Add(seed, 2)
	}
	f.Fuzz(func(t *testing.T, data []byte, n int) {
		n = min(max(n, 1), wire.BatchSize)
		checkReply(t, fuzzedReply(&data, 0), n)
	})
}

// checkReply reads a reply as that of each script: exactly what it says, or an
// error of bounded length.
func checkReply(t *testing.T, reply any, n int) {
	t.Helper()
	ints := integers(reply)
	got, err := wire.ReadAcquire(ints)
	if got != (wire.Grant{}) && err != nil {
		t.Errorf("acquire %v: %+v and the error %v", reply, got, err)
	}
	if err == nil {
		switch {
		case ints[0] == 1 != got.Taken || ints[0] != 0 != got.Taken:
			t.Errorf("acquire %v: %+v", reply, got)
		case !got.Taken && (ints[1] < 0) != (got.TTL < 0):
			t.Errorf("acquire %v: TTL %v", reply, got.TTL)
		case got.Taken && len(ints) > 1 && (got.Token != ints[1] || got.Last != ints[2] || got.Last < got.Token):
			t.Errorf("acquire %v: %+v", reply, got)
		case (!got.Taken || len(ints) == 1) && (got.Token != 0 || got.Last != 0):
			t.Errorf("acquire %v: %+v", reply, got)
		}
	}
	verdicts, err2 := wire.ReadRenew(ints, n)
	if err2 == nil && len(verdicts) != n {
		t.Errorf("renew %v: %v for %d locks", reply, verdicts, n)
	}
	for i, v := range verdicts {
		if v != wire.Kept && v != wire.NotMine && v != wire.Unseen || ints[i] != int64(v) {
			t.Errorf("renew %v: %v", reply, verdicts)
		}
	}
	released, err3 := wire.ReadRelease(ints, n)
	if err3 == nil && len(released) != 2*n {
		t.Errorf("release %v: %v for %d locks", reply, released, n)
	}
	for i := range len(released) / 2 {
		if released.Mine(i) != (ints[2*i] == 1) || released.Told(i) < 0 || ints[2*i+1] >= 0 && int64(released.Told(i)) != ints[2*i+1] {
			t.Errorf("release %v: %v", reply, released)
		}
	}
	info, err4 := wire.ReadInfo(reply)
	if err4 != nil && !reflect.DeepEqual(info, wire.Holder{}) || err4 == nil && !info.Held && info != (wire.Holder{Token: info.Token}) {
		t.Errorf("info %v: %+v, %v", reply, info, err4)
	}
	if err4 == nil && info.Held && (reply.([]any)[1].(int64) < 0) != (info.TTL < 0) {
		t.Errorf("info %v: TTL %v", reply, info.TTL)
	}
	for _, err := range []error{err, err2, err3, err4} {
		if err != nil && len(err.Error()) > 2000 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
	}
}

func TestRepliesOfTheScriptsAreRead(t *testing.T) {
	ints := func(r ...int64) []int64 { return r }
	list := func(r ...any) any { return r }
	if got, err := wire.ReadAcquire(ints(1)); got != (wire.Grant{Taken: true}) || err != nil {
		t.Errorf("acquire [1]: %+v, %v", got, err)
	}
	if got, err := wire.ReadAcquire(ints(1, 7, 9)); got != (wire.Grant{Taken: true, Token: 7, Last: 9}) || err != nil {
		t.Errorf("acquire [1 7 9]: %+v, %v", got, err)
	}
	for ms, want := range map[int64]time.Duration{1500: 1500 * time.Millisecond, 0: 0, -1: -time.Millisecond} {
		if got, err := wire.ReadAcquire(ints(0, ms)); got != (wire.Grant{TTL: want}) || err != nil {
			t.Errorf("acquire [0 %d]: %+v, %v", ms, got, err)
		}
	}
	if v, err := wire.ReadRenew(ints(1, 0, -1), 3); err != nil || !reflect.DeepEqual(v, []wire.Verdict{wire.Kept, wire.NotMine, wire.Unseen}) {
		t.Errorf("renew: %v, %v", v, err)
	}
	if got, err := wire.ReadRelease(ints(1, -1, 0, 0, 1, 3), 3); err != nil || !got.Mine(0) || got.Told(0) != 0 || got.Mine(1) || got.Told(1) != 0 || !got.Mine(2) || got.Told(2) != 3 {
		t.Errorf("release: %v, %v", got, err)
	}
	for _, c := range []struct {
		reply any
		want  wire.Holder
	}{
		{list(int64(0), int64(-2), "", "0", ""), wire.Holder{}},
		{list(int64(0), int64(-2), "", "0", "12"), wire.Holder{Token: 12}},
		{list(int64(1), int64(1500), "me:1", "3", "9"), wire.Holder{Held: true, Owner: "me:1", Holds: 3, TTL: 1500 * time.Millisecond, Token: 9}},
		{list(int64(1), int64(-1), "x", "text", "text"), wire.Holder{Held: true, Owner: "x", TTL: -time.Millisecond}},
		{list(int64(5), int64(10), "", "0", ""), wire.Holder{Held: true, TTL: 10 * time.Millisecond}},
	} {
		if info, err := wire.ReadInfo(c.reply); err != nil || info != c.want {
			t.Errorf("info %v: %+v, %v, want %+v", c.reply, info, err, c.want)
		}
	}
}

func TestRepliesThatNoScriptGivesAreErrors(t *testing.T) {
	long := make([]any, 1000)
	for i := range long {
		long[i] = strings.Repeat("x", 1000)
	}
	for _, reply := range []any{
		nil, int64(1), "1",
		[]any{},
		[]any{nil},
		[]any{"1"},
		[]any{"1", "0", "1", "0"},
		[]any{int64(0)},
		[]any{int64(2), int64(5)},
		[]any{int64(-7), int64(5)},
		map[any]any{},
		1.0, long,
	} {
		ints := integers(reply)
		if got, err := wire.ReadAcquire(ints); err == nil {
			t.Errorf("acquire %.40v: %+v", reply, got)
		}
		if v, err := wire.ReadRenew(ints, 2); err == nil {
			t.Errorf("renew %.40v: %v", reply, v)
		}
		if got, err := wire.ReadRelease(ints, 1); err == nil {
			t.Errorf("release %.40v: %v", reply, got)
		}
		info, err := wire.ReadInfo(reply)
		if err == nil {
			t.Errorf("info %.40v: %+v", reply, info)
		} else if len(err.Error()) > 2000 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
	}
}

func TestGrantsThatNoScriptGivesAreErrors(t *testing.T) {
	for what, reply := range map[string][]int64{
		"a token without the last":        {1, 5},
		"the last below the token":        {1, 5, 4},
		"a refusal with tokens":           {0, 5, 5},
		"a number too many":               {1, 5, 6, 7},
		"neither a grant nor a refusal":   {2},
		"nor one of two, with two tokens": {-1, 5, 6},
	} {
		if got, err := wire.ReadAcquire(reply); err == nil || got != (wire.Grant{}) {
			t.Errorf("%s, %v: %+v, %v", what, reply, got, err)
		}
	}
}

func TestTTLBeyondDurationIsCapped(t *testing.T) {
	const most = int64(wire.MaxDuration / time.Millisecond) // the longest that a lease of ours can have
	for _, ms := range []int64{
		most - 1, most, most + 1, math.MaxInt64 / 1_000_000, math.MaxInt64/1_000_000 + 1, 1 << 53, math.MaxInt64,
	} {
		least := time.Duration(min(ms, most)) * time.Millisecond
		got, err := wire.ReadAcquire([]int64{0, ms})
		if ttl := got.TTL; ttl < least || ms <= most && ttl != least || err != nil {
			t.Errorf("acquire, PTTL %d: %v, %v", ms, ttl, err)
		}
		if info, err := wire.ReadInfo([]any{int64(1), ms, "o", "1", ""}); info.TTL < least || ms <= most && info.TTL != least || err != nil {
			t.Errorf("info, PTTL %d: %v, %v", ms, info.TTL, err)
		}
	}
}
