package redistest

import (
	"fmt"
	"slices"
	"time"
)

// Naming is a change of the primary, as the sentinels tell it to clients that ask.
type Naming struct {
	// Primary is the new one.
	Primary *Server
	// First is when one sentinel named it, All when all did that run. A sentinel
	// publishes +switch-master at its own instant: the one that leads the failover
	// does so last, when the replicas follow.
	First, All time.Time
}

// Failover makes another server the primary in good order, and returns when all
// sentinels that run name it. The old one goes on as a primary until the sentinels
// tell it otherwise, for 8 s and more (Redis, "High availability with Redis Sentinel":
// four times the period of their messages), or until AwaitWhole.
func (s *Sentinel) Failover() Naming {
	s.t.Helper()
	old := s.Primary()
	s.await("a failover begins", func() error {
		_, err := running(s.sentinels)[0].Do("SENTINEL", "FAILOVER", SentinelMaster)
		return err // another one may not have ended
	})
	return s.AwaitPrimaryOtherThan(old)
}

// AwaitPrimaryOtherThan returns when all sentinels that run name the same primary,
// and not old. Old is to be killed, stopped or isolated before.
func (s *Sentinel) AwaitPrimaryOtherThan(old *Server) Naming {
	s.t.Helper()
	var n Naming
	await(s.t, "another primary is named", 5*time.Millisecond, func() error {
		named, err := s.named()
		if err != nil {
			return err
		}
		now := time.Now()
		for _, p := range named {
			if p != old && n.First.IsZero() {
				n.First = now
			}
		}
		if named[0] == old || slices.ContainsFunc(named, func(p *Server) bool { return p != named[0] }) {
			return fmt.Errorf("%s is named, or several are", named[0].addr)
		}
		n.Primary, n.All = named[0], now
		return nil
	})
	return n
}

// Isolate cuts a server off from the sentinels and from the servers that replicate
// it, and from nobody else: a primary that is isolated goes on serving clients, and
// another one is named.
//
// Sentinels and replicas log in as a user of their own, who may do nothing on s from
// now on: sentinels take its errors for no answer, and a replica gets no stream.
func (s *Sentinel) Isolate(server *Server) {
	s.t.Helper()
	s.must(server, "ACL", "SETUSER", sentinelPeer, "-@all")
	s.must(server, "CLIENT", "KILL", "TYPE", "replica")
}

// Rejoin ends Isolate. If another primary was named, the sentinels make the server
// follow it within 10 s or so, or in AwaitWhole.
func (s *Sentinel) Rejoin(server *Server) {
	s.t.Helper()
	s.must(server, "ACL", "SETUSER", sentinelPeer, "+@all")
}

// Heal ends what Kill, Stop and Isolate did to servers and sentinels, and returns
// when everything is whole.
func (s *Sentinel) Heal() {
	s.t.Helper()
	for _, server := range slices.Concat(s.nodes, s.sentinels) {
		switch {
		case !server.proc.alive():
			server.Restart()
		case server.stopped:
			server.Cont()
		}
	}
	for _, server := range s.nodes {
		s.Rejoin(server)
	}
	s.AwaitWhole()
}
