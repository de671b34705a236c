package transport

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file knows what an error says of the call that got it.

// What the package's users branch on, and commands end with.
var (
	ErrClosed     = errors.New("client closed")
	ErrWrongType  = errors.New("key holds another type")
	ErrTokenRange = errors.New("token counter out of range")
)

// Fate is what is known of a call after it.
type Fate int

// What may have become of a call.
const (
	Replied Fate = iota // it ran, and this is its reply
	Refused             // the server's answer is no, and will stay no
	Later               // the server's answer is not now; the call changed nothing
	Unsent              // there was no connection; the call never left
	Barred              // nor will there be one: the two sides' TLS does not agree; the caller is told at once
	Dubious             // an error that no Redis is known to send: it may have run; the caller is told at once
	Unknown             // it may have run, may run yet, or never will
)

// Final reports whether whoever waits for the call is told at once.
func (f Fate) Final() bool { return f == Refused || f == Barred || f == Dubious }

// Vain reports whether trying again soon changes nothing.
func (f Fate) Vain() bool { return f == Refused || f == Barred }

// Unsure reports whether the call may have run, without an answer of Redis.
func (f Fate) Unsure() bool { return f == Unknown || f == Dubious }

// Judge classifies the error of a call, and words it for the caller.
func Judge(err error) (Fate, error) {
	if err == nil {
		return Replied, nil
	}
	var reply redis.Error
	switch {
	case errors.As(err, &reply):
		return judgeReply(reply)
	case barsUs(err):
		return Barred, err
	case errors.Is(err, redis.ErrClosed):
		return Refused, err
	case neverSent(err):
		return Unsent, Unavailable(err)
	}
	return Unknown, Unavailable(err)
}

// judgeReply classifies an error reply. A proxy in between sends errors of its own, also for
// a command that the server has run, or runs yet: so only what a Redis or Valkey is known
// to answer with is taken for its answer.
func judgeReply(err redis.Error) (Fate, error) {
	code, rest, _ := strings.Cut(err.Error(), " ")
	switch {
	case code == "NOSCRIPT": // and there was no time to send the script
		return Later, Unavailable(err)
	case code == "WRONGTYPE":
		return Refused, fmt.Errorf("%w: %w", ErrWrongType, err)
	case code == "TOKENRANGE":
		return Refused, fmt.Errorf("%w: %w", ErrTokenRange, err)
	case SaysLater(code), code == "ERR" && strings.HasPrefix(rest, "max number of clients"):
		return Later, Unavailable(err)
	case saysNo(code), code == "ERR" && explainsNo(rest):
		return Refused, err
	}
	return Dubious, err
}

// SaysLater reports whether the first word of an error reply says: try again.
func SaysLater(code string) bool {
	switch code {
	case "LOADING", "BUSY", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "MASTERDOWN",
		"MISCONF", "OOM", "NOREPLICAS", "MOVED", "ASK", "REDIRECT":
		return true
	}
	return false
}

// saysNo reports whether the first word of an error reply says: never.
func saysNo(code string) bool {
	switch code {
	case "NOPERM", "NOAUTH", "WRONGPASS", "NOPROTO", "DENIED", "CROSSSLOT", "EXECABORT":
		return true
	}
	return false
}

// explainsNo reports whether the text of an error reply without a code of its own is one
// with which a server, or a script of ours, refuses commands like ours, so that nothing ran
// or a script ended before it took or freed anything.
func explainsNo(text string) bool {
	text = strings.ToLower(text)
	for _, known := range []string{
		"unknown command", "unknown subcommand", "unknown redis command", "syntax error",
		"wrong number of arg", "number of keys", "value is not an integer", "invalid expire time",
		"key should be of string type", "protocol error", "acl failure in script",
		"the user executing the script can't run", "error compiling script", "error running script",
		"auth <password> called without", "client sent auth", "db index is out of range",
		"select is not allowed", "this instance has cluster support disabled", "can't execute",
		"lease out of range", "token ttl out of range", "reserve out of range",
	} {
		if strings.HasPrefix(text, known) {
			return true
		}
	}
	return strings.Contains(text, "user_script") // raised by Lua
}

// barsUs reports whether err says that one side's TLS does not accept the other's: no
// command was read, and none will be until somebody changes that.
func barsUs(err error) bool {
	var cert *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var header tls.RecordHeaderError
	var alert *net.OpError
	switch {
	case errors.As(err, &cert), errors.As(err, &authority), errors.As(err, &host), errors.As(err, &invalid):
		return true
	case errors.As(err, &header):
		return header.Conn != nil // else a connection that was well before
	case errors.As(err, &alert) && alert.Op == "remote error":
		return isHandshakeAlert(alert.Err.Error())
	}
	return false
}

// isHandshakeAlert reports whether an alert of the other side's, whose type crypto/tls keeps
// to itself, is one that ends a handshake. In TLS 1.3 the client may hear of it only when it
// has begun to send.
func isHandshakeAlert(text string) bool {
	switch strings.TrimPrefix(text, "tls: ") {
	case "bad certificate", "unsupported certificate", "revoked certificate", "expired certificate",
		"unknown certificate", "unknown certificate authority", "certificate required", "access denied",
		"handshake failure", "protocol version not supported", "insufficient security level",
		"unrecognized name", "no application protocol":
		return true
	}
	return false
}

func isNoScript(err error) bool { return redis.HasErrorPrefix(err, "NOSCRIPT") }

// noNames reports whether err says that the user may not run scripts by name, or that what
// stands between does not know how to: the source may still be allowed.
func noNames(err error) bool {
	return Forbidden(err) && strings.Contains(err.Error(), "'evalsha'") || DoesNotKnow(err)
}

// DoesNotKnow reports whether a server answered that it does not know the
// command, or this form of it.
func DoesNotKnow(err error) bool {
	return redis.HasErrorPrefix(err, "unknown command") || redis.HasErrorPrefix(err, "syntax error") ||
		redis.HasErrorPrefix(err, "unknown subcommand")
}

// Forbidden reports whether a server answered that the user may not, or may not within a
// script.
func Forbidden(err error) bool {
	return redis.HasErrorPrefix(err, "NOPERM") || redis.HasErrorPrefix(err, "ACL failure in script") ||
		redis.HasErrorPrefix(err, "The user executing the script can't run")
}

// unavailableError marks an error that says that Redis could not be asked.
type unavailableError struct{ err error }

func (e *unavailableError) Error() string { return e.err.Error() }
func (e *unavailableError) Unwrap() error { return e.err }

// IsUnavailable reports whether err says that Redis could not be asked.
func IsUnavailable(err error) bool {
	var u *unavailableError
	return errors.As(err, &u)
}

// Unavailable is err, marked so.
func Unavailable(err error) error {
	if err == nil || IsUnavailable(err) {
		return err
	}
	return &unavailableError{err}
}

// noAnswerError says that Redis did not answer in time.
type noAnswerError struct{ within time.Duration }

func (e *noAnswerError) Error() string {
	return fmt.Sprintf("no answer from Redis within %v", e.within)
}
func (e *noAnswerError) Timeout() bool        { return true }
func (e *noAnswerError) Is(target error) bool { return target == os.ErrDeadlineExceeded }

// NoAnswer is an error that says that Redis did not answer in time.
func NoAnswer(within time.Duration) error { return &noAnswerError{within} }

// noConnectionError says that there was no connection in time to send on.
type noConnectionError struct{ within time.Duration }

func (e *noConnectionError) Error() string {
	return fmt.Sprintf("no connection to Redis within %v", e.within)
}
func (e *noConnectionError) Timeout() bool        { return true }
func (e *noConnectionError) Is(target error) bool { return target == os.ErrDeadlineExceeded }
