package interop

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/seed-8c25f305/watchlock/internal/redistest"
)

func TestFourPeersOfTheStringFormNeverEnterTogetherNorDeleteEachOthersKey(t *testing.T) {
	redistest.OnEachFamily(t, func(t *testing.T, s *redistest.Server) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		tell(t, "string form: 2,000 sections of four peers", string(s.Family()), nestName+", redislock, a recipe in Go")
		sec := newSection(t)
		key := orderLock("1")
		peers := append(stringPeers(t, s), shippingPeer(startNest(t, s, sec), "1"))
		each := sections / len(peers) / 2
		monitor := s.Monitor()
		var all sync.WaitGroup
		for _, p := range slices.Concat(peers, peers) { // two of each
			all.Go(func() {
				for range each {
					if err := p.do(ctx, key, func() error { return sec.run(p.name) }); err != nil {
						t.Errorf("%s: %v", p.name, err)
						return
					}
				}
			})
		}
		all.Wait()
		lines := monitor()
		// One after the other they would not have met.
		if journal := sec.check(t, sections); changesOfHands(journal) < sections/20 {
			t.Errorf("only %d changes of hands", changesOfHands(journal))
		}
		if exists(t, s, key) {
			t.Error("the key is left")
		}
		// Those in this process that wait for one client may share a grant.
		h := replay(t, key, lines)
		if h.grants < sections*3/4 || h.grants > sections || h.releases != h.grants {
			t.Errorf("%d grants and %d releases for %d sections", h.grants, h.releases, sections)
		}
	})
}

func changesOfHands(journal []string) int { return len(slices.Compact(slices.Clone(journal))) - 1 }

// shippingPeer ships one order by HTTP, in sections of the service's own.
func shippingPeer(n *nest, id string) stringPeer {
	return stringPeer{
		name: "nest",
		do: func(ctx context.Context, _ string, _ func() error) error {
			for {
				switch status, _, err := n.ship(ctx, id, 0, 30*time.Second); {
				case err != nil:
					return err
				case status == http.StatusCreated:
					return nil
				case status != http.StatusConflict:
					return fmt.Errorf("status %d", status)
				}
				if err := pause(ctx); err != nil {
					return err
				}
			}
		},
	}
}
