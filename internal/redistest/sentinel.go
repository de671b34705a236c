package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// SentinelMaster is what the sentinels call the primary.
	SentinelMaster = "primary"

	sentinelReplicas = 2
	sentinelCount    = 3
	sentinelQuorum   = 2
	// A server that does not answer for this long is taken for dead.
	sentinelDownAfter = time.Second
	// A failover that got stuck is given up after this, and tried again after twice.
	sentinelFailoverTimeout = 4 * time.Second
	// As whom replicas and sentinels come to a server: Isolate tells them from clients by it.
	sentinelPeer = "peer"
)

// Sentinel is a primary with two replicas that three sentinels watch, all on ports
// of 127.0.0.1. Its methods are for the goroutine of the test, except Client,
// ClusterTypeClient and what only reads.
type Sentinel struct {
	t         testing.TB
	nodes     []*Server
	sentinels []*Server
}

// WithMinReplicas makes a primary refuse to write when fewer than n replicas have
// acknowledged something in the last second or two. For each node of a Sentinel.
func WithMinReplicas(n int) ServerOption {
	return WithArgs("--min-replicas-to-write", strconv.Itoa(n), "--min-replicas-max-lag", "1")
}

// StartSentinel returns servers without data, in which the replicas follow the
// primary and the sentinels know them and each other. A primary that is dead is
// replaced within seconds. All are killed when the test ends, or this process does;
// opts are for the primary and the replicas. When a program is absent the test is
// skipped, or fails if the environment variable CI is set.
func StartSentinel(t testing.TB, opts ...ServerOption) *Sentinel {
	t.Helper()
	s := &Sentinel{t: t}
	for range 1 + sentinelReplicas {
		s.nodes = append(s.nodes, Start(t, slices.Concat([]ServerOption{WithTCP()}, opts, []ServerOption{WithArgs(
			"--user", sentinelPeer, "on", ">"+sentinelPeer, "~*", "&*", "+@all",
			"--masteruser", sentinelPeer, "--masterauth", sentinelPeer,
			"--repl-diskless-sync-delay", "0",
		)})...))
	}
	host, port, _ := net.SplitHostPort(s.nodes[0].addr)
	for _, replica := range s.nodes[1:] {
		s.must(replica, "REPLICAOF", host, port)
	}
	s.await("the replicas follow", func() error {
		for _, replica := range s.nodes[1:] {
			if err := follows(replica, s.nodes[0]); err != nil {
				return err
			}
		}
		return nil
	})
	dir := t.TempDir()
	for i := range sentinelCount {
		conf := filepath.Join(dir, fmt.Sprintf("sentinel%d.conf", i))
		if err := os.WriteFile(conf, []byte(sentinelConf(host, port)), 0o600); err != nil {
			t.Fatalf("redistest: %v", err)
		}
		s.sentinels = append(s.sentinels, Start(t, On(sentinelFamily), WithTCP(), func(s *Server) { s.conf = conf }))
	}
	s.AwaitWhole()
	return s
}

// sentinelConf is what a sentinel that knows only of the primary begins with.
func sentinelConf(host, port string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "sentinel monitor %s %s %s %d\n", SentinelMaster, host, port, sentinelQuorum)
	for _, line := range [][2]string{
		{"down-after-milliseconds", strconv.FormatInt(sentinelDownAfter.Milliseconds(), 10)},
		{"failover-timeout", strconv.FormatInt(sentinelFailoverTimeout.Milliseconds(), 10)},
		{"parallel-syncs", "1"},
		{"auth-user", sentinelPeer},
		{"auth-pass", sentinelPeer},
	} {
		fmt.Fprintf(&b, "sentinel %s %s %s\n", line[0], SentinelMaster, line[1])
	}
	return b.String()
}

// Nodes returns the primary and the replicas of the beginning, in this order, dead
// ones too.
func (s *Sentinel) Nodes() []*Server { return slices.Clone(s.nodes) }

// Sentinels returns the sentinels, to stop or kill them.
func (s *Sentinel) Sentinels() []*Server { return slices.Clone(s.sentinels) }

// FailoverOptions returns options for a client of the sentinels that is as quiet as
// one of Virtual.Client.
func (s *Sentinel) FailoverOptions() *redis.FailoverOptions {
	o := quietFailover()
	for _, sentinel := range s.sentinels {
		o.SentinelAddrs = append(o.SentinelAddrs, sentinel.addr)
	}
	return o
}

func quietFailover() *redis.FailoverOptions {
	quiet := quietOptions()
	return &redis.FailoverOptions{
		MasterName: SentinelMaster, Protocol: quiet.Protocol, DisableIdentity: quiet.DisableIdentity,
	}
}

// Client returns a new client of the primary, as NewFailoverClient makes it, that is
// closed when the test ends; opts may change its options.
func (s *Sentinel) Client(opts ...func(*redis.FailoverOptions)) *redis.Client {
	return failoverClient(s.t, redis.NewFailoverClient, s.FailoverOptions(), opts)
}

// ClusterTypeClient is Client with NewFailoverClusterClient. Its Close leaves goroutines
// behind that listen to a sentinel: go-redis does not end them.
func (s *Sentinel) ClusterTypeClient(opts ...func(*redis.FailoverOptions)) *redis.ClusterClient {
	return clusterTypeClient(s.t, s.FailoverOptions(), opts)
}

func failoverClient[C redis.UniversalClient](
	t testing.TB, make func(*redis.FailoverOptions) C, o *redis.FailoverOptions, opts []func(*redis.FailoverOptions),
) C {
	for _, apply := range opts {
		apply(o)
	}
	client := make(o)
	t.Cleanup(func() { _ = client.Close() }) // fails when the test has closed it already
	return client
}

// clusterTypeClient makes a client whose remains dial nobody when the test is over:
// another test may have a server at that address by then.
func clusterTypeClient(
	t testing.TB, o *redis.FailoverOptions, opts []func(*redis.FailoverOptions),
) *redis.ClusterClient {
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	last := func(o *redis.FailoverOptions) {
		next := o.Dialer
		if next == nil {
			next = (&net.Dialer{Timeout: 5 * time.Second}).DialContext
		}
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if isClosed(over) {
				return nil, refused(network)
			}
			return next(ctx, network, addr)
		}
	}
	return failoverClient(t, redis.NewFailoverClusterClient, o, append(slices.Clone(opts), last))
}

// Primary returns the primary that all sentinels name, which may be dead.
func (s *Sentinel) Primary() *Server {
	s.t.Helper()
	var primary *Server
	s.await("one primary is named", func() error {
		named, err := s.named()
		if err != nil {
			return err
		}
		for _, p := range named {
			if p != named[0] {
				return fmt.Errorf("%s and %s are named", p.addr, named[0].addr)
			}
		}
		primary = named[0]
		return nil
	})
	return primary
}

// named is the primary by each sentinel that runs.
func (s *Sentinel) named() ([]*Server, error) {
	var named []*Server
	for _, sentinel := range running(s.sentinels) {
		reply, err := sentinel.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SentinelMaster)
		if err != nil {
			return nil, err
		}
		pair, _ := reply.([]any)
		if len(pair) != 2 {
			return nil, fmt.Errorf("%s: reply %v", sentinel.addr, reply)
		}
		addr := fmt.Sprint(pair[0], ":", pair[1])
		i := slices.IndexFunc(s.nodes, func(n *Server) bool { return n.addr == addr })
		if i < 0 {
			return nil, fmt.Errorf("%s names %s", sentinel.addr, addr)
		}
		named = append(named, s.nodes[i])
	}
	if len(named) == 0 {
		return nil, errors.New("no sentinel runs")
	}
	return named, nil
}

// AwaitWhole returns when all replicas follow the primary, and every sentinel that
// runs sees that, and all of them each other. Servers that do not run are to be
// restarted before. A server that was the primary follows soon after: meanwhile the
// sentinels ask and tell more often than they do otherwise.
func (s *Sentinel) AwaitWhole() {
	s.t.Helper()
	sentinels := running(s.sentinels)
	s.hurry(sentinels, 200*time.Millisecond, 200*time.Millisecond)
	// As a sentinel begins with. They make a planned failover last about 2 s.
	defer s.hurry(sentinels, 10*time.Second, 2*time.Second)
	s.await("all are seen well", func() error {
		primary := s.Primary()
		for _, sentinel := range sentinels {
			if err := s.seesWhole(sentinel, primary); err != nil {
				return err
			}
		}
		for _, n := range s.nodes {
			if n == primary {
				continue
			}
			if err := follows(n, primary); err != nil {
				return err
			}
		}
		return streams(primary, len(s.nodes)-1)
	})
}

// hurry sets how often sentinels ask the servers for INFO, and tell each other what
// they know. They ping and connect again each quarter of the time after which a
// server is dead: with their own second, which is all of it, they take one for dead
// that they are only about to connect to, and fail over once more.
func (s *Sentinel) hurry(sentinels []*Server, info, publish time.Duration) {
	s.t.Helper()
	for _, sentinel := range sentinels {
		s.must(sentinel, "SENTINEL", "DEBUG", "info-period", info.Milliseconds(),
			"publish-period", publish.Milliseconds(), "ping-period", sentinelDownAfter.Milliseconds()/4)
	}
}

// seesWhole says what is amiss in the eyes of one sentinel.
func (s *Sentinel) seesWhole(sentinel, primary *Server) error {
	reply, err := sentinel.Do("SENTINEL", "MASTER", SentinelMaster)
	if err != nil {
		return err
	}
	master := textMap(reply)
	others := strconv.Itoa(len(s.sentinels) - 1)
	if master["flags"] != "master" || master["role-reported"] != "master" || master["num-other-sentinels"] != others {
		return fmt.Errorf("%s: primary %v", sentinel.addr, master)
	}
	reply, err = sentinel.Do("SENTINEL", "REPLICAS", SentinelMaster)
	if err != nil {
		return err
	}
	replicas, _ := reply.([]any)
	if len(replicas) != len(s.nodes)-1 {
		return fmt.Errorf("%s: %d replicas", sentinel.addr, len(replicas))
	}
	for _, r := range replicas {
		replica := textMap(r)
		follows := net.JoinHostPort(replica["master-host"], replica["master-port"])
		if replica["flags"] != "slave" || replica["role-reported"] != "slave" ||
			replica["master-link-status"] != "ok" || follows != primary.addr {
			return fmt.Errorf("%s: replica %v", sentinel.addr, replica)
		}
	}
	_, err = sentinel.Do("SENTINEL", "CKQUORUM", SentinelMaster)
	return err
}

// textMap is a reply that is a map of texts.
func textMap(reply any) map[string]string {
	texts := map[string]string{}
	pairs, _ := reply.(map[any]any)
	for k, v := range pairs {
		texts[fmt.Sprint(k)] = fmt.Sprint(v)
	}
	return texts
}

// follows says why replica does not follow primary.
func follows(replica, primary *Server) error {
	reply, err := replica.Do("INFO", "replication")
	if err != nil {
		return err
	}
	_, port, _ := net.SplitHostPort(primary.addr)
	text, _ := reply.(string)
	for _, want := range []string{"role:slave", "master_port:" + port, "master_link_status:up"} {
		if !strings.Contains(text, want+"\r\n") {
			return fmt.Errorf("%s: not %s", replica.addr, want)
		}
	}
	return nil
}

// streams says why what is written to a primary does not come to n replicas. After a
// full copy it begins to when a replica has acknowledged that, up to a second later,
// and the state of the link does not tell.
func streams(primary *Server, n int) error {
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	pipe := primary.admin.Pipeline()
	pipe.Publish(ctx, "redistest", "is streamed")
	have := pipe.Do(ctx, "WAIT", n, 2000)
	if _, err := pipe.Exec(ctx); err != nil {
		return err
	}
	if have, err := have.Int(); err != nil || have < n {
		return fmt.Errorf("%s streams to %d replicas, %w", primary.addr, have, err)
	}
	return nil
}

// running returns those whose process runs and is not stopped.
func running(servers []*Server) []*Server {
	var run []*Server
	for _, s := range servers {
		if s.proc.alive() && !s.stopped {
			run = append(run, s)
		}
	}
	return run
}

func (s *Sentinel) must(at *Server, args ...any) {
	s.t.Helper()
	if _, err := at.Do(args...); err != nil {
		s.t.Fatalf("redistest: sentinel: %v at %s: %v", args, at.addr, err)
	}
}

// await polls until ok has no objection.
func (s *Sentinel) await(what string, ok func() error) {
	s.t.Helper()
	await(s.t, what, 10*time.Millisecond, ok)
}
