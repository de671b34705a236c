package wire_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/locktest"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
	"github.com/seed-8c25f305/watchlock/internal/transport"
	"github.com/seed-8c25f305/watchlock/internal/wire"
)

func TestChannelIsNamedAsRedissonNamesIt(t *testing.T) {
	for name, channel := range map[string]string{
		"a":             "redisson_lock__channel:{a}",
		"order:1":       "redisson_lock__channel:{order:1}",
		"{user}:order":  "redisson_lock__channel:{user}:order",
		"a{b}c{d}":      "redisson_lock__channel:a{b}c{d}",
		"ключ \x00\r\n": "redisson_lock__channel:{ключ \x00\r\n}",
	} {
		k, err := wire.NewKeys(wire.HashKind{}, name, nil)
		if err != nil || k.Name != name || k.Key != name || k.Channel != channel {
			t.Errorf("%q: %+v, %v, want channel %q", name, k, err, channel)
		}
	}
}

func TestBracesAreAcceptedOnlyWhereTheyKeepOneSlot(t *testing.T) {
	const (
		partner = "brace without its partner"
		before  = `"}" before its first "{"`
		empty   = "empty hash tag"
	)
	for name, reason := range map[string]string{
		"plain":     "",
		"{a}":       "",
		"a{b}":      "",
		"{a}b":      "",
		"{a}{b}":    "",
		"{a}{}":     "",
		"{a}}":      "",
		"{a}{":      "",
		"{{a}":      "",
		"{{}}":      "",
		"a{{b}c}d":  "",
		"{":         partner,
		"}":         partner,
		"a{b":       partner,
		"a}b":       partner,
		"{{":        partner,
		"a}}":       partner,
		"}{":        before,
		"a}b{c":     before,
		"}{a}":      before,
		"a}b{c}d":   before,
		"{}":        empty,
		"{}a":       empty,
		"a{}b":      empty,
		"a{}{b}":    empty,
		"{}}":       empty,
		"a{}b{c}}d": empty,
	} {
		k, err := wire.NewKeys(wire.HashKind{}, name, nil)
		switch {
		case reason == "" && err != nil:
			t.Errorf("%q is refused: %v", name, err)
		case reason != "" && (err == nil || !strings.Contains(err.Error(), reason)):
			t.Errorf("%q: %v, want %q", name, err, reason)
		case reason == "" && (transport.KeySlot(k.Key) != transport.KeySlot(k.Channel) || k.Slot != transport.KeySlot(k.Key)):
			t.Errorf("%q: slot %d, key in %d, channel in %d", name, k.Slot, transport.KeySlot(k.Key), transport.KeySlot(k.Channel))
		}
	}
}

func TestNamesHaveOneByteTo32KiB(t *testing.T) {
	long := strings.Repeat("n", 32<<10)
	for _, name := range []string{"n", long} {
		if _, err := wire.NewKeys(wire.HashKind{}, name, nil); err != nil {
			t.Errorf("%d bytes: %v", len(name), err)
		}
	}
	if _, err := wire.NewKeys(wire.HashKind{}, "", nil); err == nil || err.Error() != "name is empty" {
		t.Errorf("no name: %v", err)
	}
	_, err := wire.NewKeys(wire.HashKind{}, long+"n", nil)
	if err == nil || err.Error() != "name has 32769 bytes, more than 32768" {
		t.Errorf("a byte too many: %v", err)
	}
}

func TestMappedNameIsCheckedAsTheNameIs(t *testing.T) {
	to := func(mapped string) func(string) string { return func(string) string { return mapped } }
	for mapped, reason := range map[string]string{
		"app:n":                       "",
		"{app}:n":                     "",
		"":                            "mapped name is empty",
		strings.Repeat("m", 32<<10+1): "mapped name has 32769 bytes, more than 32768",
		"{}n":                         "empty hash tag",
		"n}":                          "brace without its partner",
	} {
		k, err := wire.NewKeys(wire.HashKind{}, "n", to(mapped))
		if reason == "" && (err != nil || k.Name != "n" || k.Key != mapped || k.Slot != transport.KeySlot(k.Channel)) {
			t.Errorf("mapped to %q: %+v, %v", mapped, k, err)
		}
		if reason != "" && (err == nil || !strings.Contains(err.Error(), reason) || len(err.Error()) > 500) {
			t.Errorf("mapped to %.20q: %v, want %q", mapped, err, reason)
		}
	}
	// The map may make a name of one that is none by itself: what counts is the key.
	if k, err := wire.NewKeys(wire.HashKind{}, "a}b", strings.NewReplacer("}", "-").Replace); err != nil || k.Key != "a-b" {
		t.Errorf("mapped to a good key: %+v, %v", k, err)
	}
	if _, err := wire.NewKeys(wire.HashKind{}, "", to("n")); err == nil {
		t.Error("an empty name was mapped to a good one and accepted")
	}
}

func TestPrefixAndMapperChangeTheKeyAndNotTheName(t *testing.T) {
	for what, opt := range map[string]watchlock.Option{
		"prefix": watchlock.WithKeyPrefix("app:"),
		"mapper": watchlock.WithNameMapper(func(n string) string { return "app:" + n }),
	} {
		t.Run(what, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, v *redistest.Virtual) {
				c := locktest.NewTestClient(t, v.Client(), opt)
				m := c.NewMutex("n")
				l := locktest.MustLock(t, m)
				if keys := v.Mini().Keys(); len(keys) != 1 || keys[0] != "app:n" {
					t.Errorf("keys are %q", keys)
				}
				if m.Name() != "n" || l.Name() != "n" || c.Held()[0].Name != "n" {
					t.Errorf("names are %q, %q, %q, want n", m.Name(), l.Name(), c.Held()[0].Name)
				}
				sub := v.Client().Subscribe(t.Context(), "redisson_lock__channel:{app:n}")
				if _, err := sub.Receive(t.Context()); err != nil {
					t.Fatal(err)
				}
				locktest.MustUnlock(t, l)
				if msg, err := sub.ReceiveMessage(t.Context()); err != nil || msg.Payload != "00" {
					t.Errorf("message %v, %v", msg, err)
				}
				_ = sub.Close()
			})
		})
	}
}

func TestSlotIsTheSpecifiedOne(t *testing.T) {
	for key, slot := range map[string]int{
		"":                       0,
		"123456789":              0x31C3,
		"foo":                    12182,
		"{user1000}.following":   transport.KeySlot("user1000"),
		"foo{}{bar}":             keySlotOfAll("foo{}{bar}"),
		"foo{{bar}}zap":          transport.KeySlot("{bar"),
		"foo{bar}{zap}":          transport.KeySlot("bar"),
		"foo{bar":                keySlotOfAll("foo{bar"),
		"}foo{bar}":              transport.KeySlot("bar"),
		"\xff\x00 binary \x80 {": keySlotOfAll("\xff\x00 binary \x80 {"),
	} {
		if got := transport.KeySlot(key); got != slot {
			t.Errorf("%q is in slot %d, want %d", key, got, slot)
		}
	}
}

// keySlotOfAll is the slot of a key whose braces are no hash tag, computed
// bitwise from the polynomial x^16 + x^12 + x^5 + 1.
func keySlotOfAll(key string) int {
	crc := 0
	for _, b := range []byte(key) {
		for bit := 7; bit >= 0; bit-- {
			top := crc>>15 ^ int(b>>bit)&1
			crc = crc << 1 & 0xffff
			if top == 1 {
				crc ^= 0x1021
			}
		}
	}
	return crc & 16383
}

// randomKey is a name in which braces are frequent.
func randomKey(r *rand.Rand) string {
	b := make([]byte, 1+r.IntN(24))
	for i := range b {
		switch r.IntN(8) {
		case 0:
			b[i] = '{'
		case 1:
			b[i] = '}'
		case 2:
			b[i] = byte(r.IntN(256))
		default:
			b[i] = byte('a' + r.IntN(26))
		}
	}
	return string(b)
}

func TestSlotIsTheOneThatServersCompute(t *testing.T) {
	s := redistest.Start(t, redistest.WithTCP(), redistest.WithArgs("--cluster-enabled", "yes"))
	r := rand.New(rand.NewPCG(1, 2))
	rdb := s.Client()
	for range 10 {
		var keys []string
		var slots []*redis.IntCmd
		_, err := rdb.Pipelined(context.Background(), func(p redis.Pipeliner) error {
			for range 100 {
				key := randomKey(r)
				keys = append(keys, key)
				slots = append(slots, p.ClusterKeySlot(context.Background(), key))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for i, key := range keys {
			if got, want := transport.KeySlot(key), int(slots[i].Val()); got != want {
				t.Errorf("%q is in slot %d, the server says %d", key, got, want)
			}
		}
	}
}

func TestLockAndChannelShareASlotOverManyNames(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	accepted, tagged, refused := 0, 0, 0
	for range 100_000 {
		name := randomKey(r)
		k, err := wire.NewKeys(wire.HashKind{}, name, nil)
		if err != nil {
			refused++
			continue
		}
		accepted++
		if strings.Contains(name, "{") {
			tagged++
		}
		if lock, channel := transport.KeySlot(k.Key), transport.KeySlot(k.Channel); lock != channel || lock != k.Slot {
			t.Fatalf("%q: lock in slot %d, channel in %d, kept as %d", name, lock, channel, k.Slot)
		}
	}
	if accepted < 20_000 || tagged < 5_000 || refused < 20_000 {
		t.Errorf("%d accepted, %d of them with a tag, %d refused: not all kinds were tried", accepted, tagged, refused)
	}
}
