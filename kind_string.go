package watchlock

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// foreignPoll bounds how long a waiter for the string form sleeps: holders that
// use the plain recipe publish nothing.
const foreignPoll = 500 * time.Millisecond

// The channel is not Redisson's: no JVM may wait for a lock that it cannot read. To take the
// lock, the server may first have to be asked what it knows, and whose it is.
var stringTraits = traits{
	name: "SET NX mutex", form: formString, channel: "watchlock_setnx__channel", trips: 3, poll: foreignPoll,
}

// stringKind is the plain recipe on the wire: SET NX PX with the owner as the
// value, compared before it is deleted. One for a client, since it remembers
// what the servers can.
type stringKind struct{ ways *stringWays }

func newStringKind(bySlot bool) *stringKind { return &stringKind{newStringWays(bySlot)} }

func (*stringKind) String() string { return stringTraits.name }

func (*stringKind) traits() *traits { return &stringTraits }

// acquire takes nothing before it is known how to give it back: by DELEX, or by a script
// like the one that takes it.
func (s *stringKind) acquire(do transport.Doer, k *ownedKey, before []owner) (grant, transport.Result) {
	mode, asked := s.ways.mode(k.keys), false
	if mode == modeUnknown {
		var res transport.Result
		if mode, res = s.ask(do, k); res.Fate != transport.Replied {
			return grant{}, res
		}
		asked = true
	}
	if mode == modeScript {
		g, res := s.acquireScript(do, k, before)
		if asked || res.Fate != transport.Refused || !transport.Forbidden(res.Err) {
			return g, res
		}
		// The server may have been replaced by one that needs none.
		if mode, asked := s.ask(do, k); asked.Fate != transport.Replied || mode == modeScript {
			return g, res
		}
	}
	return s.acquirePlain(do, k, before)
}

func (s *stringKind) acquirePlain(do transport.Doer, k *ownedKey, before []owner) (grant, transport.Result) {
	res := do.Run(acquirePlain(k))
	holder, res := onlyReply(res)
	if res.Fate != transport.Replied {
		if transport.DoesNotKnow(res.Err) {
			s.ways.learn(k.keys, modeScript)
			return s.acquireScript(do, k, before)
		}
		return grant{}, res
	}
	if holder == nil {
		return grant{taken: true}, res
	}
	if earlier := owner(holder); slices.Contains(before, earlier) {
		taken, next := onlyReply(do.Run(takeOverPlain(k, earlier)))
		switch {
		case next.Fate != transport.Replied && transport.DoesNotKnow(next.Err):
			s.ways.learn(k.keys, modeScript)
			return s.acquireScript(do, k, before)
		case next.Fate != transport.Replied:
			return grant{}, next
		case taken != nil:
			return grant{taken: true}, next
		}
	}
	// Refused. How long for is worth a question, but not an error.
	ttl, asked := onlyReply(do.Run(pttlPlain(k.keys)))
	if asked.Fate != transport.Replied {
		ttl = nil
	}
	return grant{ttl: readPTTL(ttl)}, res
}

func (s *stringKind) acquireScript(do transport.Doer, k *ownedKey, before []owner) (grant, transport.Result) {
	g, res := acquireBy(do, acquireString(k, before))
	s.review(k.keys, res)
	return g, res
}

// ask learns how to talk to the server that has the lock, by a DELEX that names an owner
// that nobody can be yet. Where scripts are known to run it is spared on a cluster: they
// are the way back at any server, whether or not that knows DELEX.
func (s *stringKind) ask(do transport.Doer, k *ownedKey) (stringMode, transport.Result) {
	if s.ways.askScripts() {
		look := *k
		look.lease = 0
		_, res := renewBy(do, renewAll(renewStringScript, []ownedKey{look}), 1)
		switch {
		case res.Fate == transport.Replied:
			s.ways.learnScripts(k.keys, true)
			if mode := s.ways.mode(k.keys); mode != modeUnknown {
				return mode, res
			}
		case res.Fate != transport.Refused || !transport.Forbidden(res.Err):
			return modeUnknown, res
		default:
			s.ways.learnScripts(k.keys, false)
		}
	}
	replies, res := replyList(do.Run(releasePlain([]ownedKey{*k})), 1)
	if res.Fate != transport.Replied {
		return modeUnknown, res
	}
	mode := modePlain
	switch err := replyError(replies[0]); {
	case transport.DoesNotKnow(err), transport.Forbidden(err):
		mode = modeScript
	case notAString(err): // acquire will say so
	case err != nil:
		res.Fate, res.Err = transport.Judge(err)
		return modeUnknown, res
	}
	s.ways.learn(k.keys, mode)
	return mode, res
}

// renew goes by script wherever the user may run one, also where acquire and
// release need none: SET with IFEQ sets the TTL to what it says, so one that comes
// late would lower what a later extension has taken; and it is refused when memory
// is full, which a renewal must not be. Without the right to scripts only the
// watchdog's own renewals are sent. A late one of those sets no end that is nearer
// than one that was believed.
func (s *stringKind) renew(do transport.Doer, ks []ownedKey) ([]verdict, transport.Result) {
	keys := ks[0].keys
	if !s.ways.scriptless(keys) {
		verdicts, res := renewBy(do, renewAll(renewStringScript, ks), len(ks))
		// A script whose every look fails lacks the right to look.
		blind := res.Fate == transport.Replied && s.ways.mode(keys) == modePlain &&
			!slices.ContainsFunc(verdicts, func(v verdict) bool { return v != unseen })
		if res.Fate == transport.Replied && !blind {
			s.ways.learnScripts(keys, true)
		}
		if !blind && (res.Fate != transport.Refused || !transport.Forbidden(res.Err)) {
			return verdicts, res
		}
		s.ways.learnScripts(keys, false)
	}
	if slices.ContainsFunc(ks, func(k ownedKey) bool { return k.longer }) {
		return nil, transport.Result{Fate: transport.Refused, Err: fmt.Errorf("%w: the user may not run scripts, which extending needs", errors.ErrUnsupported)}
	}
	replies, res := replyList(do.Run(renewPlain(ks)), len(ks))
	if res.Fate != transport.Replied {
		return nil, res
	}
	verdicts := make([]verdict, len(ks))
	for i, k := range ks {
		verdicts[i] = readRenewPlain(k, replies[i])
	}
	return verdicts, res
}

func (s *stringKind) release(do transport.Doer, ks []ownedKey) (answers, transport.Result) {
	mode := s.ways.mode(ks[0].keys)
	if mode == modeScript {
		return s.releaseScript(do, ks)
	}
	c := releasePlain(ks)
	together := mode == modePlain && len(ks) == 1 && !ks[0].unsure
	if together {
		c = c.Then(tellPlain(ks)) // a message too many costs less than a round trip
	}
	replies, res := replyList(do.Run(c), len(c.Plain))
	if res.Fate != transport.Replied {
		return nil, res
	}
	a := make(answers, 2*len(ks))
	var tell []ownedKey
	for i, k := range ks {
		switch err := replyError(replies[i]); {
		case transport.DoesNotKnow(err), transport.Forbidden(err):
			s.ways.learn(k.keys, modeScript)
			return s.releaseScript(do, ks)
		case notAString(err):
		case err != nil:
			res.Fate, res.Err = transport.Judge(err)
			return nil, res
		case replies[i] == int64(1):
			a[2*i] = 1
			tell = append(tell, k)
		}
	}
	s.ways.learn(ks[0].keys, modePlain)
	switch {
	case together:
		a[1] = s.tell(do, ks, replies[1:])
	case len(tell) > 0:
		// A hint: waiters poll as well.
		told, _ := replyList(do.Run(tellPlain(tell)), 1)
		if told := s.tell(do, tell, told); len(ks) == 1 {
			a[1] = told
		}
	}
	return a, res
}

func (s *stringKind) releaseScript(do transport.Doer, ks []ownedKey) (answers, transport.Result) {
	a, res := releaseBy(do, releaseAll(releaseStringScript, ks), len(ks))
	s.review(ks[0].keys, res)
	return a, res
}

// tell returns how many the publishing of releases reached, and publishes once
// more where the server does not know sharded channels.
func (*stringKind) tell(do transport.Doer, ks []ownedKey, replies []any) int64 {
	if slices.ContainsFunc(replies, func(r any) bool { return transport.DoesNotKnow(replyError(r)) }) && ks[0].keys.tell != publishBoth {
		replies, _ = replyList(do.Run(tellClassic(ks)), 1)
	}
	return readTold(replies)
}

func (*stringKind) info(do transport.Doer, k *lockKeys) (holder, transport.Result) {
	replies, res := replyList(do.Run(infoPlain(k)), 2)
	if res.Fate != transport.Replied {
		return holder{}, res
	}
	if err := replyError(replies[0]); err != nil {
		res.Fate, res.Err = transport.Judge(err)
		return holder{}, res
	}
	owner, held := replies[0].(string)
	if !held {
		return holder{}, res
	}
	return holder{Held: true, Owner: owner, Holds: 1, TTL: readPTTL(replies[1])}, res
}

// review forgets that scripts are the way where the user may not run them: the
// server may have been replaced by one that needs none.
func (s *stringKind) review(k *lockKeys, res transport.Result) {
	if res.Fate == transport.Refused && transport.Forbidden(res.Err) {
		s.ways.learn(k, modeUnknown)
	}
}
