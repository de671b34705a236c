package transport

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// This file is how a command passes through the hooks of the caller's client.
//
// All lock traffic goes over connections of our own, and yet the caller's hooks see it: a
// command is given to the caller's client, whose hooks run one inside the other. New adds
// the innermost, ours: it takes the commands that are ours, sends them on our connections
// and calls nobody else. What comes back out passes through the caller's hooks again.
//
//  1. What a command was answered is noted when our connection has the reply, and only
//     that grants, keeps or releases anything. What a hook says instead is a failed attempt.
//  2. A command that did not come as far as our hook when the call returned was not sent by
//     us. Nor will it be: it is stopped then, and a hook that passes it on later is refused.
//     A hook may have sent what it made of it, so an owner that it names is released.
//  3. A hook that gives up while the command is on its way leaves the outcome unknown, and
//     the command to whoever still works on it.

var (
	errNoReply  = errors.New("a hook of the Redis client answered in the place of Redis")
	errGone     = errors.New("the lock command is no longer wanted")
	errLeftOpen = errors.New("a hook of the Redis client returned while the command was on its way")
)

// innermost takes a client's commands at the innermost of the hooks of the caller's Redis
// client. It stays there when the client is closed, and passes on what is not its own.
type innermost struct {
	// atomic
	others   atomic.Bool // there are other hooks
	asked    atomic.Bool // whether there are, for lone commands
	askedAll atomic.Bool // and for pipelines
}

func (*innermost) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook sends a lone command of ours.
func (h *innermost) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.owns(cmd) {
			return pass(ctx, cmd.(outgoing))
		}
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook sends a pipeline of ours. A hook may have put commands of its own into it.
func (h *innermost) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if !slices.ContainsFunc(cmds, h.owns) {
			return next(ctx, cmds)
		}
		err := passAll(ctx, cmds)
		if others := slices.DeleteFunc(slices.Clone(cmds), h.owns); len(others) > 0 {
			return cmp.Or(next(ctx, others), err)
		}
		return err
	}
}

// owns reports whether cmd is one of the client's own.
func (h *innermost) owns(cmd redis.Cmder) bool {
	o, is := cmd.(outgoing)
	return is && o.way().link.via == h
}

// strict reports whether a command may take any time to come here, since hooks of the caller's
// run before it: then nobody who has a deadline must send one on a goroutine of its own.
func (h *innermost) strict() bool { return !h.asked.Load() || h.others.Load() }

// seek finds out, with the first command of a sort, whether other hooks are there: then one of
// them is between carry and here. Those that are added later are never run for our commands.
func (h *innermost) seek(asked *atomic.Bool) {
	if asked.Load() {
		return
	}
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	alone := false
	for f, more := frames.Next(); more; f, more = frames.Next() {
		switch {
		case strings.HasSuffix(f.Function, "transport.carry"):
			alone = true
		case strings.Contains(f.Function, "transport.(*innermost)"), strings.Contains(f.Function, "/go-redis/v9."),
			strings.Contains(f.Function, "transport.pass"):
			continue
		}
		break
	}
	if !alone {
		h.others.Store(true)
	}
	asked.Store(true)
}

// outgoing is a command of ours on its way.
type outgoing interface {
	redis.Cmder
	way() *passage
	land() // notes what came back
}

// passage is how far one command has come.
type passage struct {
	link  *link        // to send it on
	state atomic.Int32 // one of those below
	err   error        // its error as the connection left it; once the state is landed, as the next two
	ints  []int64      // its reply, when it is integers
	value any          // else
	lone  bool         // it was sent alone
}

const (
	passing int32 = iota // it has not come to our hook
	sending              // it is on our connection
	landed               // it has come back from there
	stopped              // it has not come to our hook, and never will
)

func (p *passage) way() *passage { return p }

// begin makes the passage that of a new command.
func (p *passage) begin(l *link) {
	p.link, p.err, p.ints, p.value, p.lone = l, nil, nil, nil, false
	p.state.Store(passing)
}

// take reports whether the command may be sent now.
func (p *passage) take() bool { return p.state.CompareAndSwap(passing, sending) }

func (p *passage) back(ints []int64, value any, err error) {
	p.ints, p.value, p.err = ints, value, err
	p.state.Store(landed)
}

// stop ends the passage when the call has returned. It reports whether the command had come
// back.
func (p *passage) stop() bool {
	p.state.CompareAndSwap(passing, stopped)
	return p.state.Load() == landed
}

// pass sends one command on its own connections.
func pass(ctx context.Context, o outgoing) error {
	p := o.way()
	if !p.take() {
		return errGone
	}
	p.link.via.seek(&p.link.via.asked)
	p.lone = true
	err := p.link.Process(ctx, o)
	o.land()
	return err
}

// passAll sends the commands of a pipeline. A hook may have split it.
func passAll(ctx context.Context, cmds []redis.Cmder) error {
	var pipe redis.Pipeliner
	taken := make([]outgoing, 0, len(cmds))
	for _, cmd := range cmds {
		o, ours := cmd.(outgoing)
		if !ours || !o.way().take() {
			continue
		}
		if pipe == nil {
			pipe = o.way().link.Pipeline()
		}
		_ = pipe.Process(ctx, o) // only queues
		taken = append(taken, o)
	}
	if len(taken) == 0 {
		return errGone
	}
	taken[0].way().link.via.seek(&taken[0].way().link.via.askedAll)
	_, err := pipe.Exec(ctx) // each command keeps its own
	for _, o := range taken {
		o.land()
	}
	return err
}

// outcome is what came of a command, but for its reply, in a call that returned said.
func outcome(ctx context.Context, o outgoing, said error) (res Result) {
	p := o.way()
	switch p.state.Load() {
	case stopped:
		if said == nil {
			said = errNoReply
		}
		return Result{Fate: Unsent, Err: Unavailable(said), Astray: true}
	case landed:
		if said != nil && (p.err == nil || isReply(p.err)) {
			return Result{Fate: Unknown, Err: Unavailable(said)} // Redis answered, and a hook failed after that
		}
		res.Fate, res.Err = Judge(ownTimeout(ctx, p.err, p.lone || p.link.client != nil))
		return res
	}
	return Result{Fate: Unknown, Err: Unavailable(errLeftOpen)}
}

func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// explained is what a call returned, unless it is the error of one of its commands.
func explained(said error, batch []*ticket) error {
	for _, t := range batch {
		for _, o := range t.wire.cmds {
			if p := o.way(); said != nil && p.state.Load() == landed && p.err != nil && errors.Is(said, p.err) {
				return nil
			}
		}
	}
	return said
}
