package transport

import (
	"context"
	"errors"
	"slices"

	"github.com/redis/go-redis/v9"
)

// This file is how a call is spelled as commands of go-redis, and what came of them.

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

// commands are those of one call, reused from call to call.
type commands struct {
	cmds []outgoing
	args []any        // of ints
	ints *intsCommand // a script's; its arguments are args
	said error        // what the call that carried them returned, if it is not theirs
}

// fill makes w the commands of c, to be sent on l: scripts by name, or with their whole
// source.
func (w *commands) fill(ctx context.Context, c *Call, l *link, whole bool) {
	w.cmds, w.said = w.cmds[:0], nil
	if c.Script == nil {
		for _, args := range c.Plain {
			cmd := &mixedCommand{Cmd: redis.NewCmd(ctx, args...)}
			// PUBLISH has no key, so on a cluster it would go to any node, and could
			// overtake the release that it tells of.
			cmd.SetFirstKeyPos(1)
			cmd.begin(l)
			w.cmds = append(w.cmds, cmd)
		}
		return
	}
	params := c.Params()
	if len(w.args) != 3+len(params) || c.Script.Mixed || w.ints == nil {
		w.args = make([]any, 3+len(params))
		w.ints = &intsCommand{}
		w.ints.IntSliceCmd = redis.NewIntSliceCmd(ctx, w.args...) // keeps the slice
		w.ints.SetFirstKeyPos(3)
	}
	w.args[0], w.args[1], w.args[2] = "evalsha", c.Script.Sha, c.Nkeys
	if whole {
		w.args[0], w.args[1] = "eval", c.Script.Source
	}
	copy(w.args[3:], params)
	if c.Script.Mixed {
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
func (w *commands) asked() (came, named bool, err error) {
	p := w.cmds[0].way()
	if p.state.Load() != landed {
		return false, false, nil
	}
	return true, w.cmds[0].Name() == "evalsha", p.err
}

// arrive follows the return of the call that carried the commands, which said what none of
// them explains. A hook may still have them when it returned before they did: then they are
// its own from now on.
func (w *commands) arrive(said error) {
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
func (w *commands) result(ctx context.Context, c *Call) (res Result) {
	if c.Script != nil {
		res = outcome(ctx, w.cmds[0], w.said)
		if res.Fate != Replied {
			return res
		}
		res.Ints, res.Reply = w.cmds[0].way().ints, w.cmds[0].way().value
		if res.Reply == nil && res.Ints == nil {
			return Result{Fate: Unknown, Err: Unavailable(errNoReply)}
		}
		return res
	}
	replies := make([]any, len(w.cmds))
	for i, cmd := range w.cmds {
		var answer redis.Error
		err := cmd.way().err
		switch res = outcome(ctx, cmd, w.said); {
		case res.Fate == Replied:
			if replies[i] = cmd.way().value; replies[i] == nil {
				return Result{Fate: Unknown, Err: Unavailable(errNoReply)}
			}
		case res.Fate == Unsent && i > 0:
			res.Fate = Unknown // what is before it was sent
			return res
		case res.Fate == Unknown, res.Fate == Unsent:
			return res
		case errors.Is(err, redis.Nil):
		case errors.As(err, &answer):
			replies[i] = error(answer)
		default:
			return res
		}
	}
	return Result{Reply: replies}
}
