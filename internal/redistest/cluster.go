package redistest

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	clusterPrimaries = 3
	clusterSlots     = 16384
	// A node that does not answer for this long is taken for dead.
	clusterNodeTimeout = 1500 * time.Millisecond
	// Time for all nodes to agree: to form, or to elect a new primary.
	clusterTimeout = 40 * time.Second
)

// Cluster is a cluster of three primaries with a replica each, on ports of
// 127.0.0.1. Its methods are for the goroutine of the test, except Client and
// what only reads.
type Cluster struct {
	t     testing.TB
	nodes []*Server
	ids   []string // of the nodes, in their order
}

// StartCluster returns a cluster without data, in which every node agrees on who
// serves which slot, all slots are served, and each replica follows its primary.
// Its nodes fail over within seconds. They are killed when the test ends, or this
// process does. When the family's program is absent the test is skipped, or fails
// if the environment variable CI is set.
func StartCluster(t testing.TB, opts ...ServerOption) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	for range 2 * clusterPrimaries {
		c.nodes = append(c.nodes, startNode(t, opts))
	}
	for i, s := range c.nodes {
		id := c.must(s, "CLUSTER", "MYID").(string)
		c.ids = append(c.ids, id)
		c.must(s, "CLUSTER", "SET-CONFIG-EPOCH", i+1)
		if i < clusterPrimaries {
			c.must(s, "CLUSTER", "ADDSLOTSRANGE", i*clusterSlots/clusterPrimaries, (i+1)*clusterSlots/clusterPrimaries-1)
		}
		host, port, _ := net.SplitHostPort(s.addr)
		for _, other := range c.nodes[:i] {
			c.must(other, "CLUSTER", "MEET", host, port, s.busPort)
		}
	}
	c.await("every node knows all others", func() error {
		for _, s := range c.nodes {
			nodes, err := s.Do("CLUSTER", "NODES")
			if err != nil {
				return err
			}
			text, _ := nodes.(string)
			if n := strings.Count(text, "\n"); n != len(c.nodes) || strings.Contains(text, "handshake") {
				return fmt.Errorf("%s knows %d of %d nodes", s.addr, n, len(c.nodes))
			}
		}
		return nil
	})
	for i, s := range c.nodes[clusterPrimaries:] {
		c.must(s, "CLUSTER", "REPLICATE", c.ids[i])
	}
	c.await("replicas follow", func() error {
		for _, s := range c.nodes[clusterPrimaries:] {
			if info, err := s.Do("INFO", "replication"); err != nil || !strings.Contains(info.(string), "master_link_status:up") {
				return fmt.Errorf("%s does not, %w", s.addr, err)
			}
		}
		return nil
	})
	c.AwaitAgreement()
	return c
}

// startNode starts one server that belongs to no cluster yet.
func startNode(t testing.TB, opts []ServerOption) *Server {
	t.Helper()
	_, bus, _ := net.SplitHostPort(freePort(t))
	return Start(t, slices.Concat([]ServerOption{WithTCP()}, opts, []ServerOption{
		func(s *Server) { s.busPort = bus },
		WithArgs(
			"--cluster-enabled", "yes", "--cluster-port", bus,
			"--cluster-node-timeout", strconv.FormatInt(clusterNodeTimeout.Milliseconds(), 10),
			"--cluster-replica-validity-factor", "0", // a replica may take over however old its data is
			"--repl-diskless-sync-delay", "0",
		),
	})...)
}

// Nodes returns all nodes, dead ones too.
func (c *Cluster) Nodes() []*Server { return slices.Clone(c.nodes) }

// Client returns a new client of the cluster that is closed when the test ends;
// opts may change its options.
func (c *Cluster) Client(opts ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	quiet := quietOptions()
	o := &redis.ClusterOptions{
		MaintNotificationsConfig: quiet.MaintNotificationsConfig, DisableIdentity: quiet.DisableIdentity,
	}
	for _, s := range c.nodes {
		o.Addrs = append(o.Addrs, s.addr)
	}
	for _, apply := range opts {
		apply(o)
	}
	client := redis.NewClusterClient(o)
	c.t.Cleanup(func() { _ = client.Close() }) // fails when the test has closed it already
	return client
}

// Primaries returns the nodes that serve slots, as the live nodes see it.
func (c *Cluster) Primaries() []*Server {
	c.t.Helper()
	owners := c.AwaitAgreement()
	var primaries []*Server
	for _, s := range c.nodes {
		if slices.Contains(owners, s) {
			primaries = append(primaries, s)
		}
	}
	return primaries
}

// Owner returns the node that serves a slot, as the live nodes see it.
func (c *Cluster) Owner(slot int) *Server {
	c.t.Helper()
	return c.AwaitAgreement()[slot]
}

// Slot returns the slot of a key or channel.
func (c *Cluster) Slot(key string) int {
	c.t.Helper()
	slot, _ := c.must(c.live()[0], "CLUSTER", "KEYSLOT", key).(int64)
	return int(slot)
}

// AwaitFailover returns when another node serves the slots that old served, and
// every node that answers agrees. Old is to be killed or stopped before.
func (c *Cluster) AwaitFailover(old *Server) {
	c.t.Helper()
	c.await("the failover", func() error {
		owners, err := c.agreed(old)
		if err == nil && slices.Contains(owners, old) {
			err = fmt.Errorf("%s still serves", old.addr)
		}
		return err
	})
}

// AwaitAgreement returns when every live node sees the same owner for each slot,
// and the cluster up. It returns the owners by slot.
func (c *Cluster) AwaitAgreement() []*Server {
	c.t.Helper()
	var owners []*Server
	c.await("agreement", func() (err error) {
		owners, err = c.agreed(nil)
		return err
	})
	return owners
}

// MoveSlot gives a slot, with the keys in it, to another primary, and returns
// when every live node knows.
func (c *Cluster) MoveSlot(slot int, to *Server) {
	c.t.Helper()
	owners := c.AwaitAgreement()
	from := owners[slot]
	if from == to {
		return
	}
	fromID, toID := c.ids[slices.Index(c.nodes, from)], c.ids[slices.Index(c.nodes, to)]
	c.must(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", fromID)
	c.must(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", toID)
	host, port, _ := net.SplitHostPort(to.addr)
	for {
		keys, _ := c.must(from, "CLUSTER", "GETKEYSINSLOT", slot, 100).([]any)
		if len(keys) == 0 {
			break
		}
		c.must(from, append([]any{"MIGRATE", host, port, "", 0, adminTimeout.Milliseconds(), "KEYS"}, keys...)...)
	}
	c.must(to, "CLUSTER", "SETSLOT", slot, "NODE", toID)
	for _, s := range c.live() {
		if s != to && slices.Contains(owners, s) {
			c.must(s, "CLUSTER", "SETSLOT", slot, "NODE", toID)
		}
	}
	c.await("the slot's move", func() error {
		owners, err := c.agreed(nil)
		if err == nil && owners[slot] != to {
			err = fmt.Errorf("%s still has it", owners[slot].addr)
		}
		return err
	})
}

// agreed returns the owners of all slots, if all live nodes but one that is not
// asked see the same and the cluster is up.
func (c *Cluster) agreed(unasked *Server) ([]*Server, error) {
	var agreed []*Server
	for _, s := range c.live() {
		if s == unasked {
			continue
		}
		info, err := s.Do("CLUSTER", "INFO")
		if err != nil {
			return nil, err
		}
		if text, _ := info.(string); !strings.Contains(text, "cluster_state:ok") {
			return nil, fmt.Errorf("%s: the cluster is down", s.addr)
		}
		owners, err := c.owners(s)
		if err != nil {
			return nil, err
		}
		if agreed != nil && !slices.Equal(agreed, owners) {
			return nil, fmt.Errorf("%s sees other owners", s.addr)
		}
		agreed = owners
	}
	return agreed, nil
}

// owners returns who serves each slot, as one node sees it.
func (c *Cluster) owners(s *Server) ([]*Server, error) {
	reply, err := s.Do("CLUSTER", "SLOTS")
	if err != nil {
		return nil, err
	}
	owners := make([]*Server, clusterSlots)
	ranges, _ := reply.([]any)
	for _, r := range ranges {
		// First slot, last slot, primary, replicas; a node is its host, port and id.
		r, _ := r.([]any)
		if len(r) < 3 {
			return nil, fmt.Errorf("%s: reply %v", s.addr, reply)
		}
		first, _ := r[0].(int64)
		last, _ := r[1].(int64)
		primary, _ := r[2].([]any)
		i := slices.IndexFunc(c.ids, func(id string) bool { return len(primary) > 2 && primary[2] == id })
		if i < 0 || first < 0 || last >= clusterSlots {
			return nil, fmt.Errorf("%s: an unknown node serves %d to %d", s.addr, first, last)
		}
		for slot := first; slot <= last; slot++ {
			owners[slot] = c.nodes[i]
		}
	}
	if i := slices.Index(owners, nil); i >= 0 {
		return nil, fmt.Errorf("%s: nobody serves slot %d", s.addr, i)
	}
	return owners, nil
}

// live returns the nodes whose process runs and is not stopped.
func (c *Cluster) live() []*Server {
	var live []*Server
	for _, s := range c.nodes {
		if s.proc.alive() && !s.stopped {
			live = append(live, s)
		}
	}
	return live
}

func (c *Cluster) must(s *Server, args ...any) any {
	c.t.Helper()
	reply, err := s.Do(args...)
	if err != nil {
		c.t.Fatalf("redistest: cluster: %v at %s: %v", args, s.addr, err)
	}
	return reply
}

// await polls until ok has no objection.
func (c *Cluster) await(what string, ok func() error) {
	c.t.Helper()
	await(c.t, what, 20*time.Millisecond, ok)
}

// await polls until ok has no objection, for as long as nodes may take to agree.
func await(t testing.TB, what string, every time.Duration, ok func() error) {
	t.Helper()
	deadline := time.NewTimer(clusterTimeout)
	defer deadline.Stop()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		err := ok()
		if err == nil {
			return
		}
		select {
		case <-ticker.C:
		case <-deadline.C:
			t.Fatalf("redistest: waited %v for this: %s: %v", clusterTimeout, what, err)
		}
	}
}
