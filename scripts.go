package watchlock

import (
	_ "embed"
	"time"
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

	acquireScript       = newScript(acquireSource)
	renewScript         = newScript(renewSource)
	releaseScript       = newScript(releaseSource)
	infoScript          = &script{source: infoSource, sha: newScript(infoSource).sha, mixed: true}
	acquireFencedScript = newScript(acquireFencedSource)
	acquireStringScript = newScript(acquireStringSource)
	renewStringScript   = newScript(renewStringSource)
	releaseStringScript = newScript(releaseStringSource)
	firstScript         = newFirstScript("hash", acquireSource)
	firstFencedScript   = newFirstScript("fenced", acquireFencedSource)
	firstStringScript   = newFirstScript("string", acquireStringSource)
	relayScript         = newRelayScript(acquireSource)
	relayFencedScript   = newRelayScript(acquireFencedSource)
)

// newRelayScript is relay.lua with the scripts that it calls.
func newRelayScript(acquire string) *script {
	return newScript(luaFunction("acquire", acquire) + luaFunction("release", releaseSource) +
		luaFunction("others", othersSource) + relaySource)
}

// newFirstScript is an acquire script that looks at the user's rights first.
func newFirstScript(form, acquire string) *script {
	return newScript(luaFunction("rights", rightsSource) +
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
func (k *ownedKey) script(acquire, first *script) *script {
	if k.first {
		return first
	}
	return acquire
}

// acquireHash takes a lock that is a hash with one field.
func acquireHash(k *ownedKey, before []owner) call {
	return acquireCall(k.script(acquireScript, firstScript), k, before)
}

// acquireString takes a lock that is a string.
func acquireString(k *ownedKey, before []owner) call {
	return acquireCall(k.script(acquireStringScript, firstStringScript), k, before)
}

// acquireFenced takes a lock that is a hash, with a token.
func acquireFenced(k *ownedKey, before []owner) call {
	c := call{script: k.script(acquireFencedScript, firstFencedScript), nkeys: 2}
	c.long = make([]any, 0, 6+len(before))
	c.long = append(c.long, k.keys.keyArg, k.keys.token, k.leaseArg, k.owner,
		k.tokenTTL.Milliseconds(), k.reserve)
	for _, b := range before {
		c.put(b)
	}
	return c
}

// acquireCall puts the owners of earlier attempts behind the lease and the owner.
func acquireCall(s *script, k *ownedKey, before []owner) call {
	c := call{script: s, nkeys: 1}
	c.put(k.keys.keyArg)
	c.put(k.leaseArg)
	c.put(k.owner)
	for _, b := range before {
		c.put(b)
	}
	return c
}

// renewAll renews locks by one run of a renewal script.
func renewAll(s *script, ks []ownedKey) call {
	c := keysCall(s, ks)
	for i := range ks {
		c.put(ks[i].owner)
		c.put(ks[i].lease.Milliseconds())
	}
	return c
}

// releaseAll releases locks of one client by one run of a release script.
func releaseAll(s *script, ks []ownedKey) call {
	c := keysCall(s, ks)
	for i := range ks {
		c.put(ks[i].owner)
		c.put(ks[i].keys.channelArg)
	}
	if tell := ks[0].keys.tell; tell != nil {
		c.put(tell)
	}
	return c
}

// relayHash relays a lock from leaving to the owner for whom acquire, a call, takes it.
// own is how many of the channel's subscriptions are the client's.
func relayHash(s *script, leaving *ownedKey, own int, acquire call) call {
	args := acquire.params()
	c := call{script: s, nkeys: acquire.nkeys, long: make([]any, 0, len(args)+4)}
	c.long = append(c.long, args[:acquire.nkeys]...)
	tell := leaving.keys.tell
	if tell == nil {
		tell = ""
	}
	c.long = append(c.long, leaving.owner, leaving.keys.channelArg, tell, own)
	c.long = append(c.long, args[acquire.nkeys:]...)
	return c
}

// keysCall is a call for the keys of many locks.
func keysCall(s *script, ks []ownedKey) call {
	c := call{script: s, nkeys: len(ks)}
	if len(ks) > 1 {
		c.long = make([]any, 0, 3*len(ks))
	}
	for i := range ks {
		c.put(ks[i].keys.keyArg)
	}
	return c
}

func infoHash(k *lockKeys) call {
	c := call{script: infoScript, nkeys: 1}
	c.put(k.keyArg)
	if k.token != "" {
		c.put(k.token)
		c.nkeys++
	}
	return c
}
