package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// needRedisson skips the test where Redisson is not built, in CI it fails.
func needRedisson(t *testing.T) {
	t.Helper()
	if _, err := findRedisson(); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("Redisson: %v", err)
		}
		t.Skipf("Redisson: %v", err)
	}
}

// mustHaveRedisson fails the test unless Redisson was measured without a failure
// wherever it takes part. Where it is not built it must be said.
func mustHaveRedisson(t *testing.T, dir string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	var a account
	if err := json.Unmarshal(text, &a); err != nil {
		t.Fatal(err)
	}
	if _, err := findRedisson(); err != nil {
		switch {
		case os.Getenv("CI") != "":
			t.Errorf("Redisson: %v", err)
		case a.Absent[redissonName] == "":
			t.Error("it is not said that Redisson is missing")
		}
		return
	}
	measured := 0
	for _, s := range a.Scenarios {
		if s.Left[redissonName] != "" {
			continue
		}
		measured++
		e := s.entry(redissonName)
		if e == nil || len(e.Failures) > 0 {
			t.Errorf("%s: Redisson: %+v", s.ID, e)
			continue
		}
		want := []figure{s.Main, connections}
		if e.Median[s.Main] > 0 { // who enters has waited
			want = append(want, p50, p99, longest)
		}
		for _, f := range want {
			if _, ok := e.Median[f]; !ok {
				t.Errorf("%s: Redisson: no %s: %v", s.ID, f, e.Median)
			}
		}
	}
	if measured != 11 {
		t.Errorf("Redisson took part in %d scenarios", measured)
	}
}

func TestRedissonIsLeftOutWithAWordWhereItIsNotBuilt(t *testing.T) {
	testServer(t)
	t.Setenv("WATCHLOCK_PEERS", t.TempDir())
	var table, said bytes.Buffer
	args := []string{"-smoke", "-only", "^beside-bare-loop$", "-out", t.TempDir()}
	if err := start(args, &table, &said); err != nil {
		t.Fatal(err)
	}
	for where, text := range map[string]string{"stderr": said.String(), "the table": table.String()} {
		if n := strings.Count(text, redissonName); n != 1 || !strings.Contains(text, "ci/peers.sh redisson") {
			t.Errorf("%s names Redisson %d times:\n%s", where, n, text)
		}
	}
	said.Reset()
	if err := start(append(args, "-with", "^watchlock$"), io.Discard, &said); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(said.String(), redissonName) {
		t.Errorf("nobody asked for it:\n%s", said.String())
	}
}

// jvmTrial is a short measurement with Redisson, on a server of its own.
func jvmTrial(t *testing.T) trial {
	t.Helper()
	needRedisson(t)
	return trial{testServer(t), redissonAdapter(), plan{span: 300 * time.Millisecond, smoke: true}, "jvm:" + t.Name()}
}

func TestCommandsOfRedissonAreToldFromThoseOfItsScripts(t *testing.T) {
	tr := jvmTrial(t)
	f, err := crowd{goroutines: 1, own: true}.measure(tr)
	if err != nil {
		t.Fatal(err)
	}
	// Two scripts, and a DEL after the second; the ends of the span may cut a pair.
	sections := f[rate] * tr.plan.span.Seconds()
	if off := f[sent] - 3; off < -0.01-3/sections || off > 0.1+6/sections {
		t.Errorf("%.3f commands sent for a pair in about %.0f, want 3", f[sent], sections)
	}
	if f[ran] < 8 {
		t.Errorf("%.3f commands run for a pair: those of scripts are missing", f[ran])
	}
	if _, there := f[allocs]; there {
		t.Error("allocations of another process are told")
	}
	if f[clientCPU] <= 0 {
		t.Error("no CPU of the JVM is told")
	}
}

func TestAThreadOfAJVMThatMeetsAnotherInsideIsFound(t *testing.T) {
	tr := jvmTrial(t)
	seen, path, err := tr.freshWitness()
	if err != nil {
		t.Fatal(err)
	}
	j, err := theJVM()
	if err != nil {
		t.Fatal(err)
	}
	c := crowd{goroutines: 1, section: time.Millisecond}
	r, err := c.gatherInJVM(j, tr, path)
	if err != nil {
		t.Fatal(err)
	}
	local := c.gather(adapter{}, brokenLock{}, "broken", seen)
	for end := time.Now().Add(10 * time.Second); atomic.LoadInt64(&seen.met) == 0 && time.Now().Before(end); {
		pause(time.Millisecond)
	}
	_, err1 := local.finish()
	its, err2 := r.end()
	if err := errors.Join(err1, err2, r.close()); err != nil {
		t.Fatal(err)
	}
	var broken *brokenError
	if err := seen.check(local.entered() + its.entered); !errors.As(err, &broken) || its.entered == 0 {
		t.Errorf("%d sections of the JVM beside others: %v", its.entered, err)
	}
}

// A wrong order is answered, and the next one as if nothing had been.
func TestWhatFailsInAJVMIsTheFailureOfItsMeasurement(t *testing.T) {
	tr := jvmTrial(t)
	j, err := theJVM()
	if err != nil {
		t.Fatal(err)
	}
	if err := (jvmCrowd{j}).begin(); err == nil || !strings.Contains(err.Error(), "IllegalStateException") {
		t.Errorf("nothing is on and can be measured: %v", err)
	}
	if _, err := (crowd{goroutines: 2}).measure(tr); err != nil {
		t.Error(err)
	}
	if err := j.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := (crowd{goroutines: 2}).measure(tr); err == nil || !strings.Contains(err.Error(), "the JVM is gone") {
		t.Errorf("a JVM that was killed: %v", err)
	}
	if _, err := (crowd{goroutines: 2}).measure(tr); err != nil {
		t.Errorf("no new one takes its place: %v", err)
	}
}

func TestWaitsFromAJVMKeepTheirQuantiles(t *testing.T) {
	tr := jvmTrial(t)
	f, err := crowd{goroutines: 2, section: 5 * time.Millisecond}.measure(tr)
	if err != nil {
		t.Fatal(err)
	}
	// Of less than 100, the p99 is the longest, within its bucket.
	if off := f[p99]/f[longest] - 1; off < -0.04 || off > 0 {
		t.Errorf("the p99 is %v, the longest %v", f[p99], f[longest])
	}
	if f[longest] < 0.005 || f[longest] > 10 || f[p99] > f[longest] || f[p50] > f[p99] || f[p50] <= 0 {
		t.Errorf("one of two waits for 5 ms at least: %v, %v, %v", f[p50], f[p99], f[longest])
	}
	if f[timeInside] <= 0.1 || f[timeInside] > 1.1 {
		t.Errorf("%v of the time inside", f[timeInside])
	}
}
