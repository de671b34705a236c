package redistest

import "strings"

// subscriptions counts what a connection is subscribed to, by the kind of
// command that did it. It is owned by the goroutine that reads replies.
type subscriptions map[string]map[string]struct{}

// note follows an acknowledgement.
func (s subscriptions) note(kind, channel string) {
	family := strings.TrimSuffix(strings.TrimSuffix(kind, "subscribe"), "un")
	if s[family] == nil {
		s[family] = map[string]struct{}{}
	}
	if strings.HasSuffix(kind, "unsubscribe") {
		delete(s[family], channel)
	} else {
		s[family][channel] = struct{}{}
	}
}

// of returns how many subscriptions an UNSUBSCRIBE, PUNSUBSCRIBE or
// SUNSUBSCRIBE without arguments ends.
func (s subscriptions) of(name string) int {
	return len(s[strings.ToLower(strings.TrimSuffix(name, "UNSUBSCRIBE"))])
}

func (s subscriptions) any() bool {
	for _, channels := range s {
		if len(channels) > 0 {
			return true
		}
	}
	return false
}

// down carries replies and messages to the client.
func (l *link) down() {
	defer l.end()
	var split splitter
	subs := subscriptions{}
	buf := make([]byte, 16<<10)
	for {
		n, err := l.server.Read(buf)
		split.feed(buf[:n])
		for {
			frame, ok := split.next()
			if !ok {
				break
			}
			if !l.deliver(frame, subs) {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// deliver hands one frame to the client, as the rules want it. It reports
// whether the link goes on.
func (l *link) deliver(frame []byte, subs subscriptions) bool {
	kind, words := classify(frame, subs)
	switch kind {
	case isMessage:
		channel, payload := words[len(words)-2], words[len(words)-1]
		if l.wire.drops(channel, payload) {
			return true
		}
		return l.hand(frame)
	case isOtherPush:
		return l.hand(frame)
	}
	x := l.head()
	if x == nil {
		return l.hand(frame) // a reply to nothing: the server says goodbye
	}
	if kind == isAck {
		if strings.HasSuffix(x.name, "SUBSCRIBE") {
			if x.frames == 0 {
				x.frames = max(1, subs.of(x.name))
			}
			subs.note(words[0], words[1])
		} else if frame[0] == '>' {
			return l.hand(frame) // the server ended a subscription by itself
		}
	}
	x.frames--
	goesOn := l.answer(x, frame)
	if x.frames <= 0 || frame[0] == '-' {
		l.settle()
	}
	return goesOn
}

// answer does what the plan of an exchange says to one frame of its reply.
func (l *link) answer(x *exchange, frame []byte) bool {
	if !x.began {
		x.began = true
		for _, f := range x.plan.after {
			f(l)
		}
	}
	switch {
	case x.plan.dropReply:
		return false
	case x.plan.swallow:
		l.hush()
	case x.discard:
		return !l.isDone()
	case x.plan.instead != nil:
		return l.hand(x.plan.instead)
	}
	return l.hand(frame)
}

// hand writes a frame to the client. A client that is gone is no reason to
// end: what it sent before may still be on its way to the server.
func (l *link) hand(frame []byte) bool {
	if !l.silent.Load() {
		_, _ = l.client.Write(frame)
	}
	return !l.isDone()
}

// head returns the oldest exchange that is not answered, nil if there is none.
func (l *link) head() *exchange {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) == 0 {
		return nil
	}
	return l.pending[0]
}

// settle ends the oldest exchange.
func (l *link) settle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = l.pending[1:]
	l.changed.Broadcast()
}

type frameKind int

const (
	isReply frameKind = iota
	isAck             // of a subscription or its end
	isMessage
	isOtherPush
)

// classify says what a frame from the server is. RESP3 marks what is not a
// reply; in RESP2 a message is an array like any other, on a connection with
// subscriptions.
func classify(frame []byte, subs subscriptions) (kind frameKind, words []string) {
	push := frame[0] == '>'
	if !push && frame[0] != '*' {
		return isReply, nil
	}
	words = frameStrings(frame)
	word := ""
	if len(words) >= 3 {
		word = words[0]
	}
	switch word {
	case "subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe":
		return isAck, words
	case "message", "smessage":
		if push || subs.any() && len(words) == 3 {
			return isMessage, words
		}
	case "pmessage":
		if push || subs.any() && len(words) == 4 {
			return isMessage, words
		}
	}
	if push {
		return isOtherPush, words
	}
	return isReply, words
}
