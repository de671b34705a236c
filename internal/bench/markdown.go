package main

import (
	"fmt"
	"slices"
	"strings"
)

// markdown is the report for people.
func (a *account) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Benchmark of %s\n\n`%s`\n\n%s; %d rounds of %v.\n\n", a.Date, a.Command, a.Machine, a.Rounds, a.Span)
	b.WriteString("Figures are medians of the rounds; in brackets, the least and the greatest. Ratios are formed within " +
		"each round, in an order drawn for it; the uncontended scenarios have three times as many. A difference is called " +
		"noise unless so many rounds, of at least 5, agree on which side of 1 it is that chance would bring it about at most " +
		"once in 16 times (sign test). Costs are for each section or pair of Lock and Unlock, over the whole process. Every " +
		"section checked that it was alone.\n\n## Goals\n\n" + a.goalTable() + "\n")
	for _, s := range a.Scenarios {
		fmt.Fprintf(&b, "## %s\n\n%s\n\n%s\n", s.Title, s.About, s.table())
	}
	b.WriteString("## Clients\n\n")
	for _, each := range adapters() {
		fmt.Fprintf(&b, "- %s: %s.\n", each.name, each.about)
	}
	if _, err := findRedisson(); err != nil {
		fmt.Fprintf(&b, "- %s is left out: %v.\n", redissonName, err)
	}
	fmt.Fprintf(&b, "\nEach has a pool of up to 64 connections where it uses go-redis; locks have a TTL of 30 s.\n%s.\n",
		strings.Join(a.Versions, ", "))
	return b.String()
}

func (r *result) table() string {
	var b strings.Builder
	shown := slices.DeleteFunc(slices.Clone(columns), func(f figure) bool {
		return !slices.ContainsFunc(r.Contenders, func(e *entry) bool {
			_, ok := e.Median[f]
			return ok
		})
	})
	cells := []string{"client"}
	if r.Base != "" {
		cells = append(cells, "x raw")
	}
	for _, f := range shown {
		cells = append(cells, string(f))
	}
	writeHead(&b, cells)
	for _, e := range r.Contenders {
		writeRow(&b, r.row(e, shown))
	}
	b.WriteString(r.verdict())
	return b.String()
}

func (r *result) row(e *entry, shown []figure) []string {
	cells := []string{e.Name}
	if r.Base != "" {
		cell := ""
		if e.Ratio.N > 0 {
			cell = e.Ratio.text(number)
			if e.Name != r.Base {
				cell += e.Ratio.noise()
			}
		}
		cells = append(cells, cell)
	}
	for _, f := range shown {
		v, ok := e.Median[f]
		switch {
		case !ok:
			cells = append(cells, "")
		case f == r.Main:
			cells = append(cells, e.Main.text(f.format))
		default:
			cells = append(cells, f.format(v))
		}
	}
	if len(e.Failures) > 0 {
		cells[0] += fmt.Sprintf(" **in %d of %d rounds: %s**", len(e.Failures), len(e.Rounds), strings.ReplaceAll(e.Failures[0], "|", "/"))
	}
	return cells
}

// verdict compares watchlock with the best of its peers.
func (r *result) verdict() string {
	mine, peer := r.entry(plainName), r.bestPeer()
	if mine == nil || peer == nil {
		return ""
	}
	ratio := spreadOf(ratios(mine.Rounds, peer.Rounds, r.Main))
	return fmt.Sprintf("\nwatchlock against %s, the best of the other clients: %s times its %q%s.\n",
		peer.Name, ratio.text(number), r.Main, ratio.noise())
}

// goalTable is the goals whose scenarios were run, if the rounds can decide them.
func (a *account) goalTable() string {
	if a.Rounds < decidingRounds || a.Span < decidingSpan {
		return fmt.Sprintf("Less than %d rounds of %v decide none.\n", decidingRounds, decidingSpan)
	}
	var b strings.Builder
	writeHead(&b, []string{"scenario", "client", "what", "goal", "found", "reached"})
	for _, g := range goals {
		for _, s := range a.Scenarios {
			if s.ID != g.scenario {
				continue
			}
			if found, reached := g.check(s); reached != "" {
				writeRow(&b, []string{s.ID, g.name, g.text, g.wanted(), found, reached})
			}
		}
	}
	return b.String()
}

func writeHead(b *strings.Builder, cells []string) {
	writeRow(b, cells)
	writeRow(b, slices.Repeat([]string{"---"}, len(cells)))
}

func writeRow(b *strings.Builder, cells []string) {
	b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}
