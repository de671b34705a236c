package interop

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock"
	"github.com/seed-8c25f305/watchlock/internal/interop/porting"
	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

const (
	// Where the channels of the two sides differ, a waiter of the JVM sleeps for the
	// TTL that it saw, and one in Go until its next poll.
	deafLease = 1500 * time.Millisecond
	deafPoll  = 200 * time.Millisecond
	// What a machine with other work may add to a sleep: less than another poll.
	stalled = 200 * time.Millisecond
)

// Each conversation has a row in the table, on one cluster for each family. What
// disturbs the cluster comes last.
func TestOnAClusterOfThreePrimariesWithReplicas(t *testing.T) {
	clusters := make(map[redistest.Family]*redistest.Cluster)
	for _, family := range redistest.Families() {
		clusters[family] = redistest.StartCluster(t, redistest.On(family))
	}
	conversations := []struct {
		name string
		hold func(t *testing.T, k *clusterTalk)
	}{
		{"EachWakesTheOtherByMessageInTheModesThatCan", wakeOnCluster},
		{"GoPollsAndTheJVMWaitsForTheLeaseWhereTheModesDiffer", deafOnCluster},
		{"ClientsOfAllModesExcludeEachOther", excludeOnCluster},
		{"TokensRiseOverBoth", tokensOnCluster},
		{"TheGuidesClientSharesNamesWithAMapper", guideOnCluster},
	}
	for _, family := range redistest.Families() {
		for _, version := range redissons() {
			t.Run(string(family)+"/redisson-"+version, func(t *testing.T) {
				j := sharedJVM(t, version)
				t.Cleanup(func() { j.mustBeQuiet(t) })
				k := newClusterTalk(t, clusters[family], j)
				for _, c := range conversations {
					t.Run(c.name, func(t *testing.T) {
						tell(t, "OnACluster"+c.name, string(family), "Redisson "+version)
						t.Cleanup(func() { j.mustBeQuiet(t) })
						c.hold(t, k)
					})
				}
			})
		}
	}
	t.Run("NobodyHangsWhenThePrimaryIsKilled", func(t *testing.T) { killOnClusters(t, clusters) })
}

// A Redisson client of a cluster waits for a replica behind each grant and each
// release.
func wakeOnCluster(t *testing.T, k *clusterTalk) {
	before, handed := k.waits(), 0
	for _, primary := range k.Primaries() {
		for _, p := range k.pairs(t, true) {
			k.wakesJVM(t, p, primary)
			k.wakesGo(t, p, primary)
			handed += 2
		}
	}
	if n := k.waits() - before; n < 2*handed {
		t.Errorf("Redisson has waited for replicas %d times in %d grants and releases", n, 2*handed)
	}
}

func deafOnCluster(t *testing.T, k *clusterTalk) {
	pairs := k.pairs(t, false)
	primaries := k.Primaries()
	// All wait at once. The releases of the leases come well before their ends.
	leases, waiting := make([]*watchlock.Lease, len(pairs)), make([]<-chan reply, len(pairs))
	names := make([]string, len(pairs))
	for i, p := range pairs {
		names[i] = k.name(primaries[i%len(primaries)])
		leases[i] = mustLock(t, p.client.NewMutex(names[i]), watchlock.WithLeaseTime(deafLease))
		waiting[i] = k.jvmWaits(t, p, names[i])
	}
	released := make([]time.Time, len(pairs))
	for i, p := range pairs {
		mustStillWait(t, waiting[i], "the JVM")
		if n := k.listeners(t, names[i], !wayOf(p.mode)); n != 0 {
			t.Errorf("%v: %d connections of the JVM hear Go", p, n)
		}
		released[i] = time.Now()
		mustUnlock(t, leases[i])
	}
	for i, p := range pairs {
		r := await(t, waiting[i])
		value[any](t, r)
		took := r.ended().Sub(released[i])
		woke(t, took)
		if took <= messageWake || took > deafLease+stalled {
			t.Errorf("%v: the JVM entered %v after the release, want by the end of the lease of %v, and by no message", p, took, deafLease)
		}
	}
	for i, p := range pairs {
		mustBe(t, p.peer, 1, "getHoldCount", names[i], names[i])
		p.peer.must("unlock", names[i], names[i])
		name := k.name(primaries[i%len(primaries)])
		p.peer.must("lock", name, name)
		entered := k.goWaits(t, p, name)
		if n := k.listeners(t, name, wayOf(p.mode)); n != 0 {
			t.Errorf("%v: %d connections of Go hear the JVM", p, n)
		}
		mustStillWait(t, entered, "Go")
		began := time.Now()
		unlocked := p.peer.must("unlock", name, name)
		e := mustEnter(t, entered)
		took := e.at.Sub(began)
		woke(t, took)
		// It was released at some time during the unlock.
		if took > unlocked.ended().Sub(began)+deafPoll+deafPoll/10+stalled {
			t.Errorf("%v: Go entered %v after the unlock began, which took %v, want within the poll interval of %v",
				p, took, unlocked.ended().Sub(began), deafPoll)
		}
		mustUnlock(t, e.lease)
	}
}

// The JVMs that listen elsewhere than they publish to come in when a lease would
// have ended, and the others take turns by messages.
func excludeOnCluster(t *testing.T, k *clusterTalk) {
	const sections = 400
	ctx, cancel := context.WithTimeout(t.Context(), replyWait)
	defer cancel()
	name, path := k.name(k.Primaries()[0]), counterFile(t)
	starter := mustLock(t, k.goes[watchlock.ChannelsBoth].NewMutex(name))
	onJVM := make(map[string]<-chan reply)
	for _, mode := range shardedModes {
		onJVM[mode] = k.peers[mode].start("sections", name, name, "counter", path, "until", sections, "threads", 2)
	}
	inGo := make([][]int, len(allChannels))
	var all sync.WaitGroup
	for i, channels := range allChannels {
		all.Go(func() {
			var err error
			if inGo[i], err = countInGo(ctx, k.goes[channels].NewMutex(name), path, sections, 2); err != nil {
				t.Errorf("%v: %v", channels, err)
			}
		})
	}
	until(t, "all wait", func() bool { return k.listeners(t, name, true) == 5 && k.listeners(t, name, false) == 3 })
	mustUnlock(t, starter)
	all.Wait()
	ofGo, ofJVM := 0, 0
	for _, counts := range inGo {
		ofGo += sum(counts)
	}
	for mode, answer := range onJVM {
		jvm := value[jvmShares](t, await(t, answer))
		t.Logf("%s on the JVM: %v", mode, jvm.Counts)
		ofJVM += sum(jvm.Counts)
	}
	t.Logf("in Go: %v", inGo)
	text, err := os.ReadFile(path)
	if err != nil || string(text) != strconv.Itoa(sections) {
		t.Errorf("the unprotected counter is %q, %v, want %d", text, err, sections)
	}
	if ofGo == 0 || ofJVM == 0 || ofGo+ofJVM != sections {
		t.Errorf("%d sections in Go and %d on the JVM, want some of each and %d in all", ofGo, ofJVM, sections)
	}
}

func tokensOnCluster(t *testing.T, k *clusterTalk) {
	const parties, each = 2, 50
	p := k.pairs(t, true)[0] // the defaults of both
	for _, primary := range k.Primaries() {
		name := k.name(primary)
		m := p.client.NewFencedMutex(name)
		var tokens rising
		for range 30 {
			tokens.take(t, "the JVM", value[int64](t, p.peer.must("takeToken", name, name)))
			tokens.take(t, "Go", mustToken(t, m))
		}
		journal := filepath.Join(t.TempDir(), "journal")
		onJVM := p.peer.start("noteTokens", name, name, "journal", journal, "threads", parties, "each", each)
		if err := noteTokens(t.Context(), m, journal, parties, each); err != nil {
			t.Errorf("Do: %v", err)
		}
		value[any](t, await(t, onJVM))
		f, err := os.Open(journal)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		before := tokens.n
		for lines := bufio.NewScanner(f); lines.Scan(); {
			var token int64
			var who string
			if _, err := fmt.Sscan(lines.Text(), &token, &who); err != nil {
				t.Fatalf("the journal says %q: %v", lines.Text(), err)
			}
			tokens.take(t, who, token)
		}
		if n := tokens.n - before; n != 2*parties*each {
			t.Errorf("%d tokens were noted, want %d", n, 2*parties*each)
		}
	}
}

// The guide's client has the prefix shop: for its locks, and its watchdog timeout.
func guideOnCluster(t *testing.T, k *clusterTalk) {
	rdb := k.Client()
	shop, err := porting.ConnectAsShop(rdb)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(shop.Close(), rdb.Close()); err != nil {
			t.Error(err)
		}
	})
	peer := k.peers["auto"].open(t, nil, jvmOptions{cluster: addrs(k.Cluster), prefix: "shop:", watchdog: 20 * time.Second})
	p := clusterPair{"auto", watchlock.ChannelsAuto, peer, shop}
	mapped := *k
	mapped.prefix = "shop:"
	for _, primary := range k.Primaries() {
		mapped.toJVM(t, p, mapped.name(primary)) // connects
		mapped.toGo(t, p, mapped.name(primary))
		mapped.wakesJVM(t, p, primary)
		mapped.wakesGo(t, p, primary)
	}
}
