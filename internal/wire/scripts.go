package wire

import (
	_ "embed"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// The scripts, and their sources.
var (
	//go:embed lua/acquire.lua
	AcquireSource string
	//go:embed lua/renew.lua
	RenewSource string
	//go:embed lua/release.lua
	ReleaseSource string
	//go:embed lua/info.lua
	InfoSource string
	//go:embed lua/acquire_fenced.lua
	AcquireFencedSource string
	//go:embed lua/acquire_string.lua
	AcquireStringSource string
	//go:embed lua/renew_string.lua
	RenewStringSource string
	//go:embed lua/release_string.lua
	ReleaseStringSource string
	//go:embed lua/relay.lua
	relaySource string
	//go:embed lua/others.lua
	othersSource string
	//go:embed lua/rights.lua
	rightsSource string

	AcquireScript       = transport.NewScript(AcquireSource)
	RenewScript         = transport.NewScript(RenewSource)
	ReleaseScript       = transport.NewScript(ReleaseSource)
	infoScript          = &transport.Script{Source: InfoSource, Sha: transport.NewScript(InfoSource).Sha, Mixed: true}
	acquireFencedScript = transport.NewScript(AcquireFencedSource)
	acquireStringScript = transport.NewScript(AcquireStringSource)
	RenewStringScript   = transport.NewScript(RenewStringSource)
	ReleaseStringScript = transport.NewScript(ReleaseStringSource)
	FirstScript         = newFirstScript("hash", AcquireSource)
	FirstFencedScript   = newFirstScript("fenced", AcquireFencedSource)
	FirstStringScript   = newFirstScript("string", AcquireStringSource)
	RelayScript         = newRelayScript(AcquireSource)
	RelayFencedScript   = newRelayScript(AcquireFencedSource)
)

// newRelayScript is relay.lua with the scripts that it calls.
func newRelayScript(acquire string) *transport.Script {
	return transport.NewScript(luaFunction("acquire", acquire) + luaFunction("release", ReleaseSource) +
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

// Owned is a lock and the owner that a script may act for.
type Owned struct {
	Keys     *Keys
	Owner    Owner
	Lease    time.Duration // acquire, renew: the TTL to have; a renewal with 0 only looks
	LeaseArg any           // acquire: lease, boxed once
	TokenTTL time.Duration // acquire: of the fencing counter; 0 has none
	Reserve  int           // acquire: how many tokens to take beyond the first
	First    bool          // acquire: the client does not know yet whether its user has the rights
	Unsure   bool          // release: it may never have held, so only a release that frees is told
	Longer   bool          // renew: this is an extension, not the watchdog's own renewal
}

// Owner is a string, boxed once for the commands that name it.
type Owner any

// LeaseArg is a lease as acquire's argument.
func LeaseArg(lease time.Duration) any { return lease.Milliseconds() }

// script is the acquire script for k.
func (k *Owned) script(acquire, first *transport.Script) *transport.Script {
	if k.First {
		return first
	}
	return acquire
}

// AcquireHash takes a lock that is a hash with one field.
func AcquireHash(k *Owned, before []Owner) transport.Call {
	return acquireCall(k.script(AcquireScript, FirstScript), k, before)
}

// AcquireString takes a lock that is a string.
func AcquireString(k *Owned, before []Owner) transport.Call {
	return acquireCall(k.script(acquireStringScript, FirstStringScript), k, before)
}

// AcquireFenced takes a lock that is a hash, with a token.
func AcquireFenced(k *Owned, before []Owner) transport.Call {
	c := transport.Call{Script: k.script(acquireFencedScript, FirstFencedScript), Nkeys: 2}
	c.Long = make([]any, 0, 6+len(before))
	c.Long = append(c.Long, k.Keys.KeyArg, k.Keys.Token, k.LeaseArg, k.Owner,
		k.TokenTTL.Milliseconds(), k.Reserve)
	for _, b := range before {
		c.Put(b)
	}
	return c
}

// acquireCall puts the owners of earlier attempts behind the lease and the owner.
func acquireCall(s *transport.Script, k *Owned, before []Owner) transport.Call {
	c := transport.Call{Script: s, Nkeys: 1}
	c.Put(k.Keys.KeyArg)
	c.Put(k.LeaseArg)
	c.Put(k.Owner)
	for _, b := range before {
		c.Put(b)
	}
	return c
}

// RenewAll renews locks by one run of a renewal script.
func RenewAll(s *transport.Script, ks []Owned) transport.Call {
	c := keysCall(s, ks)
	for i := range ks {
		c.Put(ks[i].Owner)
		c.Put(ks[i].Lease.Milliseconds())
	}
	return c
}

// ReleaseAll releases locks of one client by one run of a release script.
func ReleaseAll(s *transport.Script, ks []Owned) transport.Call {
	c := keysCall(s, ks)
	for i := range ks {
		c.Put(ks[i].Owner)
		c.Put(ks[i].Keys.ChannelArg)
	}
	if tell := ks[0].Keys.Tell; tell != nil {
		c.Put(tell)
	}
	return c
}

// RelayHash relays a lock from leaving to the owner for whom acquire, a call, takes it.
// own is how many of the channel's subscriptions are the client's.
func RelayHash(s *transport.Script, leaving *Owned, own int, acquire transport.Call) transport.Call {
	args := acquire.Params()
	c := transport.Call{Script: s, Nkeys: acquire.Nkeys, Long: make([]any, 0, len(args)+4)}
	c.Long = append(c.Long, args[:acquire.Nkeys]...)
	tell := leaving.Keys.Tell
	if tell == nil {
		tell = ""
	}
	c.Long = append(c.Long, leaving.Owner, leaving.Keys.ChannelArg, tell, own)
	c.Long = append(c.Long, args[acquire.Nkeys:]...)
	return c
}

// keysCall is a call for the keys of many locks.
func keysCall(s *transport.Script, ks []Owned) transport.Call {
	c := transport.Call{Script: s, Nkeys: len(ks)}
	if len(ks) > 1 {
		c.Long = make([]any, 0, 3*len(ks))
	}
	for i := range ks {
		c.Put(ks[i].Keys.KeyArg)
	}
	return c
}

// InfoHash reads who holds a lock that is a hash, and the counter of its tokens.
func InfoHash(k *Keys) transport.Call {
	c := transport.Call{Script: infoScript, Nkeys: 1}
	c.Put(k.KeyArg)
	if k.Token != "" {
		c.Put(k.Token)
		c.Nkeys++
	}
	return c
}
