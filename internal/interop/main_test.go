package interop

import (
	"flag"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if os.Getenv(holderEnv) != "" {
		holdUntilKilled()
		return
	}
	flag.Parse()
	// Most of what is parallel here sleeps, so more of it than there are cores.
	if !isSet("test.parallel") {
		if err := flag.Set("test.parallel", "8"); err != nil {
			panic(err)
		}
	}
	status := m.Run()
	closeSharedJVMs()
	printTable()
	os.Exit(status)
}

func isSet(name string) bool {
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	return set
}
