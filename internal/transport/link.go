package transport

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// This file makes the connections of our own, from the options of the caller's client.
//
// The caller's pool brings what is meant for the caller's commands: a limiter that stops
// them, a cache, retries, timeouts that are relaxed while the server is maintained, reads
// from replicas, and a size that its own commands may use up. None of that may hold a
// renewal or a release back, or answer in the place of the primary.

// commander is the part of a go-redis client that calls need.
type commander interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
}

// own makes o the options of connections of our own, and counts those that are made.
func own(o *redis.Options, dials *atomic.Int64) *redis.Options {
	o.Limiter = nil
	o.ClientSideCacheConfig, o.ClientSideCache = nil, nil
	o.PushNotificationProcessor = nil // two clients cannot register handlers with one
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.AutoPipelineOptions = nil
	o.PipelinePoolSize = -1 // or lone commands and pipelines would have a pool each
	o.MaxRetries, o.DialerRetries = -1, 1
	o.PoolSize, o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = laneConns, 0, 0, 0
	o.MaxConcurrentDials = 0
	o.ContextTimeoutEnabled = true // an attempt's own timeout ends it on the socket too
	o.PoolTimeout, o.ReadTimeout, o.WriteTimeout = AttemptTimeout, AttemptTimeout, AttemptTimeout
	if o.Dialer == nil {
		o.Dialer = redis.NewDialer(o)
	}
	dial := o.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err == nil {
			dials.Add(1)
			if s, ok := ctx.Value(socketKey{}).(*socket); ok {
				s.set(conn)
			}
		}
		return conn, notSent(err)
	}
	if f := o.OnConnect; f != nil {
		// go-redis takes one wrapping off.
		o.OnConnect = func(ctx context.Context, cn *redis.Conn) error { return notSent(notSent(f(ctx, cn))) }
	}
	if f := o.CredentialsProviderContext; f != nil {
		o.CredentialsProviderContext = func(ctx context.Context) (string, string, error) {
			username, password, err := f(ctx)
			return username, password, notSent(err)
		}
	}
	if p := o.StreamingCredentialsProvider; p != nil {
		o.StreamingCredentialsProvider = &credentials{p}
	}
	return o
}

// ownCluster makes o the options of connections of our own to the nodes of a cluster.
func ownCluster(o *redis.ClusterOptions, dials *atomic.Int64) *redis.ClusterOptions {
	o.ReadOnly, o.RouteByLatency, o.RouteRandomly = false, false, false
	o.ShardPicker = nil
	o.MaxRetries = -1
	o.PushNotificationProcessor = nil
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.AutoPipelineOptions = nil
	newClient := o.NewClient
	o.NewClient = func(node *redis.Options) *redis.Client { return newClient(own(node, dials)) }
	return o
}

// socket is the newest connection that was dialled under a context: go-redis does not heed
// the end of one while it waits for the answers that open a connection.
type socket struct {
	mu     sync.Mutex
	conn   net.Conn
	closed bool
}

type socketKey struct{}

// WithSocket returns a context whose end closes what was dialled under it.
func WithSocket(ctx context.Context) (context.Context, context.CancelFunc) {
	s := &socket{}
	ctx, cancel := context.WithCancel(context.WithValue(ctx, socketKey{}, s))
	context.AfterFunc(ctx, s.close)
	return ctx, cancel
}

func (s *socket) set(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = conn
	if s.closed {
		_ = conn.Close()
	}
}

func (s *socket) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.conn != nil {
		_ = s.conn.Close()
	}
}

// credentials says of a provider's errors that nothing was sent.
type credentials struct {
	auth.StreamingCredentialsProvider
}

// Subscribe is the provider's.
func (c *credentials) Subscribe(l auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	creds, unsubscribe, err := c.StreamingCredentialsProvider.Subscribe(l)
	return creds, unsubscribe, notSent(err)
}

// notSentError is an error from before a connection was there to send on.
type notSentError struct{ err error }

func (e *notSentError) Error() string { return e.err.Error() }
func (e *notSentError) Unwrap() error { return e.err }

func notSent(err error) error {
	if err == nil {
		return nil
	}
	return &notSentError{err}
}

// neverSent reports whether err says that there was no connection to send on.
func neverSent(err error) bool {
	var none *notSentError
	if errors.As(err, &none) {
		return true
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return true
	}
	return errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted)
}
