package wire

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/transport"
)

// ForeignPoll bounds how long a waiter for the string form sleeps: holders that
// use the plain recipe publish nothing.
const ForeignPoll = 500 * time.Millisecond

// The channel is not Redisson's: no JVM may wait for a lock that it cannot read. To take the
// lock, the server may first have to be asked what it knows, and twice if it is another by then.
var stringTraits = traits{
	name: "SET NX mutex", Form: FormString, channel: "watchlock_setnx__channel", Trips: 6, Poll: ForeignPoll,
}

// StringKind is the plain recipe on the wire: SET NX PX with the owner as the
// value, compared before it is deleted. One for a client, since it remembers
// what the servers can.
type StringKind struct{ Ways *stringWays }

// NewStringKind makes the kind of one client. Where keys of one script must share a slot, servers
// may differ.
func NewStringKind(bySlot bool) *StringKind { return &StringKind{newStringWays(bySlot)} }

func (*StringKind) String() string { return stringTraits.name }

// Traits is Kind's.
func (*StringKind) Traits() *traits { return &stringTraits }

// Acquire takes nothing before it is known how to give it back: by DELEX, or by a script
// like the one that takes it.
func (s *StringKind) Acquire(do transport.Doer, k *Owned, before []Owner) (Grant, transport.Result) {
	mode, asked := s.Ways.mode(k.Keys), false
	if mode == modeUnknown {
		var res transport.Result
		if mode, res = s.ask(do, k); res.Fate != transport.Replied {
			return Grant{}, res
		}
		asked = true
	}
	if mode == ModeScript {
		g, res := s.acquireScript(do, k, before)
		if asked || res.Fate != transport.Refused || !transport.Forbidden(res.Err) {
			return g, res
		}
		// The server may have been replaced by one that needs none.
		if mode, asked := s.ask(do, k); asked.Fate != transport.Replied || mode == ModeScript {
			return g, res
		}
	}
	return s.acquirePlain(do, k, before)
}

func (s *StringKind) acquirePlain(do transport.Doer, k *Owned, before []Owner) (Grant, transport.Result) {
	res := do.Run(AcquirePlain(k))
	holder, res := onlyReply(res)
	if res.Fate != transport.Replied {
		if transport.DoesNotKnow(res.Err) {
			s.Ways.Learn(k.Keys, ModeScript)
			return s.acquireScript(do, k, before)
		}
		return Grant{}, res
	}
	if holder == nil {
		return Grant{Taken: true}, res
	}
	if earlier := Owner(holder); slices.Contains(before, earlier) {
		taken, next := onlyReply(do.Run(TakeOverPlain(k, earlier)))
		switch {
		case next.Fate != transport.Replied && transport.DoesNotKnow(next.Err):
			s.Ways.Learn(k.Keys, ModeScript)
			return s.acquireScript(do, k, before)
		case next.Fate != transport.Replied:
			return Grant{}, next
		case taken != nil:
			return Grant{Taken: true}, next
		}
	}
	// Refused. How long for is worth a question, but not an error.
	ttl, asked := onlyReply(do.Run(pttlPlain(k.Keys)))
	if asked.Fate != transport.Replied {
		ttl = nil
	}
	return Grant{TTL: ReadPTTL(ttl)}, res
}

func (s *StringKind) acquireScript(do transport.Doer, k *Owned, before []Owner) (Grant, transport.Result) {
	g, res := acquireBy(do, AcquireString(k, before))
	s.review(k.Keys, res)
	return g, res
}

// ask learns how to talk to the server that has the lock, by a DELEX that names an owner
// that nobody can be yet. Where scripts are known to run it is spared on a cluster: they
// are the way back at any server, whether or not that knows DELEX.
func (s *StringKind) ask(do transport.Doer, k *Owned) (stringMode, transport.Result) {
	if s.Ways.askScripts() {
		look := *k
		look.Lease = 0
		_, res := renewBy(do, RenewAll(RenewStringScript, []Owned{look}), 1)
		switch {
		case res.Fate == transport.Replied:
			s.Ways.learnScripts(k.Keys, true)
			if mode := s.Ways.mode(k.Keys); mode != modeUnknown {
				return mode, res
			}
		case res.Fate != transport.Refused || !transport.Forbidden(res.Err):
			return modeUnknown, res
		default:
			s.Ways.learnScripts(k.Keys, false)
		}
	}
	replies, res := replyList(do.Run(ReleasePlain([]Owned{*k})), 1)
	if res.Fate != transport.Replied {
		return modeUnknown, res
	}
	mode := ModePlain
	switch err := ReplyError(replies[0]); {
	case transport.DoesNotKnow(err), transport.Forbidden(err):
		mode = ModeScript
	case NotAString(err): // acquire will say so
	case err != nil:
		res.Fate, res.Err = transport.Judge(err)
		return modeUnknown, res
	}
	s.Ways.Learn(k.Keys, mode)
	return mode, res
}

// Renew goes by script wherever the user may run one, also where acquire and
// release need none: SET with IFEQ sets the TTL to what it says, so one that comes
// late would lower what a later extension has taken; and it is refused when memory
// is full, which a renewal must not be. Without the right to scripts only the
// watchdog's own renewals are sent. A late one of those sets no end that is nearer
// than one that was believed.
func (s *StringKind) Renew(do transport.Doer, ks []Owned) ([]Verdict, transport.Result) {
	keys := ks[0].Keys
	if !s.Ways.scriptless(keys) {
		verdicts, res := renewBy(do, RenewAll(RenewStringScript, ks), len(ks))
		// A script whose every look fails lacks the right to look.
		blind := res.Fate == transport.Replied && s.Ways.mode(keys) == ModePlain &&
			!slices.ContainsFunc(verdicts, func(v Verdict) bool { return v != Unseen })
		if res.Fate == transport.Replied && !blind {
			s.Ways.learnScripts(keys, true)
		}
		if !blind && (res.Fate != transport.Refused || !transport.Forbidden(res.Err)) {
			return verdicts, res
		}
		s.Ways.learnScripts(keys, false)
	}
	if slices.ContainsFunc(ks, func(k Owned) bool { return k.Longer }) {
		return nil, transport.Result{Fate: transport.Refused, Err: fmt.Errorf("%w: the user may not run scripts, which extending needs", errors.ErrUnsupported)}
	}
	replies, res := replyList(do.Run(RenewPlain(ks)), len(ks))
	if res.Fate != transport.Replied {
		return nil, res
	}
	verdicts := make([]Verdict, len(ks))
	for i, k := range ks {
		verdicts[i] = ReadRenewPlain(k, replies[i])
	}
	return verdicts, res
}

// Release is Kind's.
func (s *StringKind) Release(do transport.Doer, ks []Owned) (Answers, transport.Result) {
	mode := s.Ways.mode(ks[0].Keys)
	if mode == ModeScript {
		return s.releaseScript(do, ks)
	}
	c := ReleasePlain(ks)
	together := mode == ModePlain && len(ks) == 1 && !ks[0].Unsure
	if together {
		c = c.Then(announcePlain(ks)) // a message too many costs less than a round trip
	}
	replies, res := replyList(do.Run(c), len(c.Plain))
	if res.Fate != transport.Replied {
		return nil, res
	}
	a := make(Answers, 2*len(ks))
	var tell []Owned
	for i, k := range ks {
		switch err := ReplyError(replies[i]); {
		case transport.DoesNotKnow(err), transport.Forbidden(err):
			s.Ways.Learn(k.Keys, ModeScript)
			return s.releaseScript(do, ks)
		case NotAString(err):
		case err != nil:
			res.Fate, res.Err = transport.Judge(err)
			return nil, res
		case replies[i] == int64(1):
			a[2*i] = 1
			tell = append(tell, k)
		}
	}
	s.Ways.Learn(ks[0].Keys, ModePlain)
	switch {
	case together:
		a[1] = s.announced(do, ks, replies[1:])
	case len(tell) > 0:
		// A hint: waiters poll as well.
		told, _ := replyList(do.Run(announcePlain(tell)), 1)
		if told := s.announced(do, tell, told); len(ks) == 1 {
			a[1] = told
		}
	}
	return a, res
}

func (s *StringKind) releaseScript(do transport.Doer, ks []Owned) (Answers, transport.Result) {
	a, res := releaseBy(do, ReleaseAll(ReleaseStringScript, ks), len(ks))
	s.review(ks[0].Keys, res)
	return a, res
}

// announced returns how many the publishing of releases reached, and publishes once
// more where the server does not know sharded channels.
func (*StringKind) announced(do transport.Doer, ks []Owned, replies []any) int64 {
	if slices.ContainsFunc(replies, func(r any) bool { return transport.DoesNotKnow(ReplyError(r)) }) && ks[0].Keys.Tell != publishBoth {
		replies, _ = replyList(do.Run(announceClassic(ks)), 1)
	}
	return readTold(replies)
}

// Info is Kind's.
func (*StringKind) Info(do transport.Doer, k *Keys) (Holder, transport.Result) {
	replies, res := replyList(do.Run(InfoPlain(k)), 2)
	if res.Fate != transport.Replied {
		return Holder{}, res
	}
	if err := ReplyError(replies[0]); err != nil {
		res.Fate, res.Err = transport.Judge(err)
		return Holder{}, res
	}
	owner, held := replies[0].(string)
	if !held {
		return Holder{}, res
	}
	return Holder{Held: true, Owner: owner, Holds: 1, TTL: ReadPTTL(replies[1])}, res
}

// review forgets that scripts are the way where the user may not run them: the
// server may have been replaced by one that needs none.
func (s *StringKind) review(k *Keys, res transport.Result) {
	if res.Fate == transport.Refused && transport.Forbidden(res.Err) {
		s.Ways.Learn(k, modeUnknown)
	}
}
