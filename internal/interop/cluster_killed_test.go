package interop

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

const (
	killedWatchdog = 12 * time.Second // outlives a failover
	killedLease    = 4 * time.Second
	killedPoll     = 500 * time.Millisecond
	killedTry      = time.Second // for one try in Go at a server that does not answer
	// Redisson looks for a new primary each 5 s, and tries again after up to 2 s. That
	// comes on top for all that the JVM does, whoever holds the lock.
	killedScan = 7 * time.Second
)

// lostPrimary are the loggers of what Redisson has to say about the primary: it could
// not renew in time, and found no replica behind the new one. One that heard what it
// does not know would be another.
var lostPrimary = []string{"org.redisson.renewal.", "org.redisson.cluster.", "org.redisson.connection."}

// killOnClusters kills a primary of each cluster, all at once.
func killOnClusters(t *testing.T, clusters map[redistest.Family]*redistest.Cluster) {
	conversation := "OnACluster" + t.Name()[strings.LastIndex(t.Name(), "/")+1:]
	var jvms []*jvm
	for _, version := range redissons() {
		j := startJVM(t, version)
		value[any](t, await(t, j.send("hush", nil)))
		t.Cleanup(func() {
			for _, line := range j.logged(t) {
				_, message, _ := strings.Cut(line, " ")
				if !slices.ContainsFunc(lostPrimary, func(logger string) bool { return strings.HasPrefix(message, logger) }) {
					t.Errorf("Redisson %s logged: %s", version, line)
				}
			}
		})
		jvms = append(jvms, j)
	}
	for family, c := range clusters {
		t.Run(string(family), func(t *testing.T) {
			t.Parallel()
			tell(t, conversation, string(family), "Redisson "+strings.Join(redissons(), " and "))
			killOnCluster(t, c, jvms)
		})
	}
}

// orphans are the locks of one JVM and one client in Go on a primary that dies.
type orphans struct {
	*clusterTalk
	clusterPair

	ofJVM, ofGo     string           // renewed until after the failover
	leftJVM, leftGo string           // leased and left
	leftTo          time.Time        // when those left have ended
	lease           *watchlock.Lease // of ofGo
	unlocking       <-chan reply     // of ofJVM
	forJVMs, goLast <-chan entry     // Go waits for ofJVM and leftJVM
	forGos, jvmLast <-chan reply     // the JVM waits for ofGo and leftGo
}

// holdAndWait has each side hold two locks that the other waits for.
func holdAndWait(t *testing.T, c *redistest.Cluster, j *jvm, primary *redistest.Server) *orphans {
	t.Helper()
	k := &clusterTalk{Cluster: c, version: "killed:" + j.version, owners: c.AwaitAgreement()}
	p := clusterPair{
		"auto", watchlock.ChannelsAuto,
		j.open(t, nil, jvmOptions{cluster: addrs(c), watchdog: killedWatchdog}),
		newClusterClient(t, c, watchlock.WithWatchdogTimeout(killedWatchdog),
			watchlock.WithMaxPollInterval(killedPoll), watchlock.WithUnlockTimeout(killedWatchdog)),
	}
	o := &orphans{
		clusterTalk: k, clusterPair: p,
		ofJVM: k.name(primary), ofGo: k.name(primary), leftJVM: k.name(primary), leftGo: k.name(primary),
	}
	p.peer.must("lock", o.ofJVM, o.ofJVM)
	o.lease = mustLock(t, p.client.NewMutex(o.ofGo))
	o.forJVMs, o.forGos = k.goWaits(t, p, o.ofJVM), k.jvmWaits(t, p, o.ofGo)
	p.peer.must("lock", o.leftJVM, o.leftJVM, "lease", killedLease.Milliseconds())
	_ = mustLock(t, p.client.NewMutex(o.leftGo), watchlock.WithLeaseTime(killedLease))
	o.leftTo = time.Now().Add(killedLease)
	o.goLast, o.jvmLast = k.goWaits(t, p, o.leftJVM), k.jvmWaits(t, p, o.leftGo)
	return o
}

// inStep reports whether a replica has all that the primary has.
func inStep(c *redistest.Cluster, primary *redistest.Server) bool {
	_, port, _ := strings.Cut(primary.Addr(), ":")
	size, err := primary.Do("DBSIZE")
	for _, s := range c.Nodes() {
		info, failed := s.Do("INFO", "replication")
		if text, _ := info.(string); failed != nil || !strings.Contains(text, "master_port:"+port+"\r") {
			continue
		}
		if n, failed := s.Do("DBSIZE"); err == nil && failed == nil && n == size {
			return true
		}
	}
	return false
}

func killOnCluster(t *testing.T, c *redistest.Cluster, jvms []*jvm) {
	primary := c.Primaries()[1]
	var all []*orphans
	for _, j := range jvms {
		all = append(all, holdAndWait(t, c, j, primary))
	}
	until(t, "the replica has it all", func() bool { return inStep(c, primary) })
	killed := time.Now()
	primary.Kill()
	c.AwaitFailover(primary)
	failover := time.Since(killed)
	t.Logf("failed over after %v", failover)
	for _, o := range all {
		o.owners = c.AwaitAgreement()
		o.release(t)
	}
	// A lock that was renewed until the failover may have been so just before the kill.
	goFinds, jvmFinds := killedPoll+killedPoll/10+killedTry, killedScan
	for _, o := range all {
		o.goEnters(t, o.forJVMs, killed, killedWatchdog+failover+goFinds)
		o.goEnters(t, o.goLast, killed, max(o.leftTo.Sub(killed), failover)+goFinds)
		o.jvmEnters(t, o.ofGo, o.forGos, killed, killedWatchdog+failover+jvmFinds)
		o.jvmEnters(t, o.leftGo, o.jvmLast, killed, killedLease+failover+jvmFinds)
	}
	successor := all[0].owner(all[0].ofGo)
	for _, o := range all {
		o.survives(t, "unlock", await(t, o.unlocking))
		until(t, "the JVM knows the new primary", func() bool {
			name := o.name(successor)
			return o.survives(t, "tryLock", o.peer.call("tryLock", name, name)) && o.survives(t, "unlock", o.peer.call("unlock", name, name))
		})
		o.wakesJVM(t, o.clusterPair, successor)
		o.wakesGo(t, o.clusterPair, successor)
	}
}

// release has both sides let go of what they held all the time.
func (o *orphans) release(t *testing.T) {
	t.Helper()
	mustStillWait(t, o.forJVMs, "Go")
	mustStillWait(t, o.forGos, "the JVM")
	o.unlocking = o.peer.start("unlock", o.ofJVM, o.ofJVM)
	if err := o.lease.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock after the failover: %v", err)
	}
}

// goEnters fails the test unless Go enters at most that long after the kill.
func (o *orphans) goEnters(t *testing.T, entered <-chan entry, killed time.Time, most time.Duration) {
	t.Helper()
	e := mustEnter(t, entered)
	late(t, o.version+", Go", e.at.Sub(killed), most)
	mustUnlock(t, e.lease)
}

// jvmEnters fails the test unless the JVM enters at most that long after the kill.
func (o *orphans) jvmEnters(t *testing.T, name string, waiting <-chan reply, killed time.Time, most time.Duration) {
	t.Helper()
	r := await(t, waiting)
	late(t, o.version+", the JVM", r.ended().Sub(killed), most)
	if o.survives(t, "lock", r) {
		o.survives(t, "unlock", o.peer.call("unlock", name, name))
	}
}

// unreached are the exceptions of Redisson that say that there is no connection, or
// no replica. Now and then it raises one out of lock or unlock during a failover.
var unreached = []string{"ConnectionException", "TimeoutException", "NodeNotFoundException", "NoSyncedSlavesException"}

// survives reports whether an operation of the JVM succeeded. It may be unreached.
func (o *orphans) survives(t *testing.T, op string, r reply) bool {
	t.Helper()
	if !r.OK {
		report := t.Errorf
		if slices.ContainsFunc(unreached, func(suffix string) bool { return strings.HasSuffix(r.Error, suffix) }) {
			report = t.Logf
		}
		report("%s: %s on the JVM: %s: %s", o.version, op, r.Error, r.Message)
	}
	return r.OK
}

// late fails the test unless a waiter entered at most that long after the kill.
func late(t testing.TB, who string, took, most time.Duration) {
	t.Helper()
	woke(t, took)
	t.Logf("%s entered %v after the kill, in time until %v", who, took.Round(time.Millisecond), most.Round(time.Millisecond))
	if took > most {
		t.Errorf("%s entered %v after the kill, want at most %v", who, took, most)
	}
}
