package watchlock

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1
	_ "embed"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
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
	//go:embed lua/look.lua
	lookSource string
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
	lookScript          = newScript(luaFunction("others", othersSource) + lookSource)
	firstScript         = newFirstScript("hash", acquireSource)
	firstFencedScript   = newFirstScript("fenced", acquireFencedSource)
	firstStringScript   = newFirstScript("string", acquireStringSource)
	relayScript         = newRelayScript(acquireSource)
	relayFencedScript   = newRelayScript(acquireFencedSource)
)

// script is a Lua program and the name Redis gives it.
type script struct {
	source string
	sha    any  // a string, boxed once
	mixed  bool // it answers more than integers
}

func newScript(source string) *script {
	sum := sha1.Sum([]byte(source)) //nolint:gosec // as above
	return &script{source: source, sha: hex.EncodeToString(sum[:])}
}

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

// call is what leaves at once: one run of a script, or a few plain commands in
// one pipeline.
type call struct {
	script *script
	nkeys  int
	short  [4]any // keys, then arguments, of a script that has few
	n      int    // of short
	long   []any  // of one that has more

	plain [][]any
}

// put appends a key or an argument.
func (c *call) put(arg any) {
	if c.long == nil && c.n < len(c.short) {
		c.short[c.n] = arg
		c.n++
		return
	}
	if c.long == nil {
		c.long = append(make([]any, 0, 4*len(c.short)), c.short[:c.n]...)
	}
	c.long = append(c.long, arg)
}

// params are the keys and arguments.
func (c *call) params() []any {
	if c.long != nil {
		return c.long
	}
	return c.short[:c.n]
}

// mixedCommand and intsCommand are calls on their way, by what they are answered
// with. go-redis sends them once: they may not run twice without their owner
// knowing.
type (
	mixedCommand struct {
		*redis.Cmd
		passage
	}
	intsCommand struct {
		*redis.IntSliceCmd
		passage
	}
)

// NoRetry tells go-redis not to send the command again.
func (*mixedCommand) NoRetry() bool { return true }

// NoRetry tells go-redis not to send the command again.
func (*intsCommand) NoRetry() bool { return true }

func (c *mixedCommand) land() { c.back(nil, c.Val(), c.Err()) }
func (c *intsCommand) land()  { c.back(c.Val(), nil, c.Err()) }

// wire is the commands of one call, reused from call to call.
type wire struct {
	cmds []outgoing
	args []any        // of ints
	ints *intsCommand // a script's; its arguments are args
	said error        // what the call that carried them returned, if it is not theirs
}

// fill makes w the commands of c, to be sent on l: scripts by name, or with their whole
// source.
func (w *wire) fill(ctx context.Context, c *call, l *link, whole bool) {
	w.cmds, w.said = w.cmds[:0], nil
	if c.script == nil {
		for _, args := range c.plain {
			cmd := &mixedCommand{Cmd: redis.NewCmd(ctx, args...)}
			// PUBLISH has no key, so on a cluster it would go to any node, and could
			// overtake the release that it tells of.
			cmd.SetFirstKeyPos(1)
			cmd.begin(l)
			w.cmds = append(w.cmds, cmd)
		}
		return
	}
	params := c.params()
	if len(w.args) != 3+len(params) || c.script.mixed || w.ints == nil {
		w.args = make([]any, 3+len(params))
		w.ints = &intsCommand{}
		w.ints.IntSliceCmd = redis.NewIntSliceCmd(ctx, w.args...) // keeps the slice
		w.ints.SetFirstKeyPos(3)
	}
	w.args[0], w.args[1], w.args[2] = "evalsha", c.script.sha, c.nkeys
	if whole {
		w.args[0], w.args[1] = "eval", c.script.source
	}
	copy(w.args[3:], params)
	if c.script.mixed {
		cmd := &mixedCommand{Cmd: redis.NewCmd(ctx, w.args...)}
		cmd.SetFirstKeyPos(3)
		cmd.begin(l)
		w.cmds, w.args = append(w.cmds, cmd), nil
		return
	}
	w.ints.SetErr(nil)
	w.ints.SetVal(nil)
	w.ints.begin(l)
	w.cmds = append(w.cmds, w.ints)
}

// asked is whether the script came to the connection and was asked for by its name there,
// and its error.
func (w *wire) asked() (came, named bool, err error) {
	p := w.cmds[0].way()
	if p.state.Load() != landed {
		return false, false, nil
	}
	return true, w.cmds[0].Name() == "evalsha", p.err
}

// arrive follows the return of the call that carried the commands, which said what none of
// them explains. A hook may still have them when it returned before they did: then they are
// its own from now on.
func (w *wire) arrive(said error) {
	w.said = said
	kept := said != nil
	for _, cmd := range w.cmds {
		kept = !cmd.way().stop() || kept
	}
	if kept {
		w.cmds, w.args, w.ints = slices.Clone(w.cmds), nil, nil
	}
}

// result is what came of c's commands. The reply of plain ones is a list, in
// which an error reply stands as an error; when one has no reply at all, the
// outcome is its.
func (w *wire) result(ctx context.Context, c *call) (res result) {
	if c.script != nil {
		res = outcome(ctx, w.cmds[0], w.said)
		if res.fate != replied {
			return res
		}
		res.ints, res.reply = w.cmds[0].way().ints, w.cmds[0].way().value
		if res.reply == nil && res.ints == nil {
			return result{fate: unknown, err: unavailable(errNoReply)}
		}
		return res
	}
	replies := make([]any, len(w.cmds))
	for i, cmd := range w.cmds {
		var answer redis.Error
		err := cmd.way().err
		switch res = outcome(ctx, cmd, w.said); {
		case res.fate == replied:
			if replies[i] = cmd.way().value; replies[i] == nil {
				return result{fate: unknown, err: unavailable(errNoReply)}
			}
		case res.fate == unsent && i > 0:
			res.fate = unknown // what is before it was sent
			return res
		case res.fate == unknown, res.fate == unsent:
			return res
		case errors.Is(err, redis.Nil):
		case errors.As(err, &answer):
			replies[i] = error(answer)
		default:
			return res
		}
	}
	return result{reply: replies}
}

// key is c's first key.
func (c *call) key() string {
	var key any
	if c.script != nil {
		key = c.params()[0]
	} else {
		key = c.plain[0][1]
	}
	name, _ := key.(string)
	return name
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
	c.putWaiters(leaving, own)
	c.long = append(c.long, args[acquire.nkeys:]...)
	return c
}

// lookHash asks about one lock, and whether anybody else waits for it.
func lookHash(k *ownedKey, own int) call {
	c := call{script: lookScript, nkeys: 1, long: make([]any, 0, 5)}
	c.put(k.keys.keyArg)
	c.putWaiters(k, own)
	return c
}

// putWaiters puts an owner, and what tells whether others than its client wait.
func (c *call) putWaiters(k *ownedKey, own int) {
	tell := k.keys.tell
	if tell == nil {
		tell = ""
	}
	c.long = append(c.long, k.owner, k.keys.channelArg, tell, own)
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
