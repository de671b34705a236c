package watchlock

import (
	_ "embed"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/transport"
)

var (
	//go:embed lua/acquire.lua
	acquireSource string
	//go:embed lua/renew.lua
	renewSource string
	//go:embed lua/release.lua
	releaseSource string
	//go:embed lua/info.lua
	infoSource string
	//go:embed lua/acquire_fenced.lua
	acquireFencedSource string
	//go:embed lua/acquire_string.lua
	acquireStringSource string
	//go:embed lua/renew_string.lua
	renewStringSource string
	//go:embed lua/release_string.lua
	releaseStringSource string
	//go:embed lua/relay.lua
	relaySource string
	//go:embed lua/others.lua
	othersSource string
	//go:embed lua/rights.lua
	rightsSource string

	acquireScript       = transport.NewScript(acquireSource)
	renewScript         = transport.NewScript(renewSource)
	releaseScript       = transport.NewScript(releaseSource)
	infoScript          = &transport.Script{Source: infoSource, Sha: transport.NewScript(infoSource).Sha, Mixed: true}
	acquireFencedScript = transport.NewScript(acquireFencedSource)
	acquireStringScript = transport.NewScript(acquireStringSource)
	renewStringScript   = transport.NewScript(renewStringSource)
	releaseStringScript = transport.NewScript(releaseStringSource)
	firstScript         = newFirstScript("hash", acquireSource)
	firstFencedScript   = newFirstScript("fenced", acquireFencedSource)
	firstStringScript   = newFirstScript("string", acquireStringSource)
	relayScript         = newRelayScript(acquireSource)
	relayFencedScript   = newRelayScript(acquireFencedSource)
)

// newRelayScript is relay.lua with the scripts that it calls.
func newRelayScript(acquire string) *transport.Script {
	return transport.NewScript(luaFunction("acquire", acquire) + luaFunction("release", releaseSource) +
		luaFunction("others", othersSource) + relaySource)
}

// newFirstScript is an acquire script that looks at the user's rights first.
func newFirstScript(form, acquire string) *transport.Script {
	return transport.NewScript(luaFunction("rights", rightsSource) +
		"local denied = rights(KEYS, {'" + form + "', ARGV[2]})\nif denied then\n  return denied\nend\n" + acquire)
}

// luaFunction is a script as a function of another.
func luaFunction(name, source string) string {
	return "local function " + name + "(KEYS, ARGV)\n" + source + "end\n"
}

// ownedKey is a lock and the owner that a script may act for.
type ownedKey struct {
	keys     *lockKeys
	owner    owner
	lease    time.Duration // acquire, renew: the TTL to have; a renewal with 0 only looks
	leaseArg any           // acquire: lease, boxed once
	tokenTTL time.Duration // acquire: of the fencing counter; 0 has none
	reserve  int           // acquire: how many tokens to take beyond the first
	first    bool          // acquire: the client does not know yet whether its user has the rights
	unsure   bool          // release: it may never have held, so only a release that frees is told
	longer   bool          // renew: this is an extension, not the watchdog's own renewal
}

// owner is a string, boxed once for the commands that name it.
type owner any

// leaseArg is a lease as acquire's argument.
func leaseArg(lease time.Duration) any { return lease.Milliseconds() }

// script is the acquire script for k.
func (k *ownedKey) script(acquire, first *transport.Script) *transport.Script {
	if k.first {
		return first
	}
	return acquire
}

// acquireHash takes a lock that is a hash with one field.
func acquireHash(k *ownedKey, before []owner) transport.Call {
	return acquireCall(k.script(acquireScript, firstScript), k, before)
}

// acquireString takes a lock that is a string.
func acquireString(k *ownedKey, before []owner) transport.Call {
	return acquireCall(k.script(acquireStringScript, firstStringScript), k, before)
}

// acquireFenced takes a lock that is a hash, with a token.
func acquireFenced(k *ownedKey, before []owner) transport.Call {
	c := transport.Call{Script: k.script(acquireFencedScript, firstFencedScript), Nkeys: 2}
	c.Long = make([]any, 0, 6+len(before))
	c.Long = append(c.Long, k.keys.keyArg, k.keys.token, k.leaseArg, k.owner,
		k.tokenTTL.Milliseconds(), k.reserve)
	for _, b := range before {
		c.Put(b)
	}
	return c
}

// acquireCall puts the owners of earlier attempts behind the lease and the owner.
func acquireCall(s *transport.Script, k *ownedKey, before []owner) transport.Call {
	c := transport.Call{Script: s, Nkeys: 1}
	c.Put(k.keys.keyArg)
	c.Put(k.leaseArg)
	c.Put(k.owner)
	for _, b := range before {
		c.Put(b)
	}
	return c
}

// renewAll renews locks by one run of a renewal script.
func renewAll(s *transport.Script, ks []ownedKey) transport.Call {
	c := keysCall(s, ks)
	for i := range ks {
		c.Put(ks[i].owner)
		c.Put(ks[i].lease.Milliseconds())
	}
	return c
}

// releaseAll releases locks of one client by one run of a release script.
func releaseAll(s *transport.Script, ks []ownedKey) transport.Call {
	c := keysCall(s, ks)
	for i := range ks {
		c.Put(ks[i].owner)
		c.Put(ks[i].keys.channelArg)
	}
	if tell := ks[0].keys.tell; tell != nil {
		c.Put(tell)
	}
	return c
}

// relayHash relays a lock from leaving to the owner for whom acquire, a call, takes it.
// own is how many of the channel's subscriptions are the client's.
func relayHash(s *transport.Script, leaving *ownedKey, own int, acquire transport.Call) transport.Call {
	args := acquire.Params()
	c := transport.Call{Script: s, Nkeys: acquire.Nkeys, Long: make([]any, 0, len(args)+4)}
	c.Long = append(c.Long, args[:acquire.Nkeys]...)
	tell := leaving.keys.tell
	if tell == nil {
		tell = ""
	}
	c.Long = append(c.Long, leaving.owner, leaving.keys.channelArg, tell, own)
	c.Long = append(c.Long, args[acquire.Nkeys:]...)
	return c
}

// keysCall is a call for the keys of many locks.
func keysCall(s *transport.Script, ks []ownedKey) transport.Call {
	c := transport.Call{Script: s, Nkeys: len(ks)}
	if len(ks) > 1 {
		c.Long = make([]any, 0, 3*len(ks))
	}
	for i := range ks {
		c.Put(ks[i].keys.keyArg)
	}
	return c
}

func infoHash(k *lockKeys) transport.Call {
	c := transport.Call{Script: infoScript, Nkeys: 1}
	c.Put(k.keyArg)
	if k.token != "" {
		c.Put(k.token)
		c.Nkeys++
	}
	return c
}
