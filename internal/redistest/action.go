package redistest

import "time"

// Action is what a Wire does with a command that a rule chooses.
type Action interface {
	apply(p *plan)
}

// Fault is an Action without parameters.
type Fault int

const (
	// DropReply lets the server run the command and, when the reply comes,
	// closes the connection instead of delivering it.
	DropReply Fault = iota + 1
	// Swallow lets the server run the command and delivers neither its reply
	// nor anything after it. The connection stays open.
	Swallow
	// DropRequest closes the connection before the command goes out. Replies
	// to earlier commands are delivered first.
	DropRequest
	// LoseRequest leaves the command out: the server never sees it, nothing is
	// delivered any more, and the connection stays open.
	LoseRequest
	// Twice sends the command twice and swallows the second reply.
	Twice
)

func (f Fault) apply(p *plan) {
	switch f {
	case DropReply:
		p.dropReply = true
	case Swallow:
		p.swallow = true
	case DropRequest:
		p.dropRequest = true
	case LoseRequest:
		p.loseRequest = true
	case Twice:
		p.twice = true
	}
}

// HoldRequest keeps the command, and what follows it on its connection, from
// the server until release is closed. The command is sent then even if the
// client has closed the connection meanwhile; only Wire.Cut ends it early.
func HoldRequest(release <-chan struct{}) Action {
	return before(func(l *link) { l.waitFor(release) })
}

// HoldReply lets the server run the command and keeps the reply, and what
// follows it on its connection, from the client until release is closed.
func HoldReply(release <-chan struct{}) Action {
	return after(func(l *link) { l.waitFor(release) })
}

// Answer lets the server run the command and delivers an error with this text in
// place of its reply, as a proxy does that gave the server up.
func Answer(text string) Action { return answer{text: text} }

// Refuse leaves the command out, so that the server never sees it, and delivers an
// error with this text.
func Refuse(text string) Action { return answer{text: text, unrun: true} }

type answer struct {
	text  string
	unrun bool
}

func (a answer) apply(p *plan) {
	p.instead, p.unrun = []byte("-"+a.text+"\r\n"), a.unrun
}

// Delay sends the command d later. What follows it waits too.
func Delay(d time.Duration) Action {
	return before(func(l *link) { l.sleep(d) })
}

// DelayReply delivers the reply d later. What follows it waits too.
func DelayReply(d time.Duration) Action {
	return after(func(l *link) { l.sleep(d) })
}

// Call calls f when the command is about to go out. Nothing else moves towards
// the server on that connection until f returns.
func Call(f func()) Action {
	return before(func(*link) { f() })
}

// CallReply calls f when the server has run the command and its reply is about
// to be delivered. Nothing else moves towards the client on that connection
// until f returns.
func CallReply(f func()) Action {
	return after(func(*link) { f() })
}

// All does several things to one command: what comes before the request in
// their order, then what comes before the reply in their order, then faults.
func All(actions ...Action) Action { return all(actions) }

type all []Action

func (a all) apply(p *plan) {
	for _, action := range a {
		action.apply(p)
	}
}

type before func(*link)

func (f before) apply(p *plan) { p.before = append(p.before, f) }

type after func(*link)

func (f after) apply(p *plan) { p.after = append(p.after, f) }

// plan is what happens to one command. Its functions run on the goroutines of
// the command's link.
type plan struct {
	before []before // in turn, when the request is about to go out
	after  []after  // in turn, when the reply is about to be delivered

	dropRequest bool
	loseRequest bool
	twice       bool
	dropReply   bool
	swallow     bool
	unrun       bool   // a PING goes out in the command's place
	instead     []byte // of the reply
}
