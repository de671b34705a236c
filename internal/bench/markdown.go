package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// markdown is the report for people.
func (a *account) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Benchmark of %s\n\n", a.Date)
	fmt.Fprintf(&b, "`%s`\n\n%s\n\n", a.Command, a.machineText())
	b.WriteString("Figures are medians of the rounds; in brackets, the least and the greatest. Ratios are formed within " +
		"each round, in an order drawn for it; the uncontended scenarios have three times as many. A difference is called noise unless so many rounds, of at least 5, agree on which side of 1 it is " +
		"that chance would bring it about at most once in 16 times (sign test). Costs are for each section " +
		"or pair of Lock and Unlock, over the whole process. Every section checked that it was alone.\n\n")
	if text := a.goalTable(); text != "" {
		b.WriteString("## Goals\n\n" + text + "\n")
	}
	for _, s := range a.Scenarios {
		fmt.Fprintf(&b, "## %s\n\n%s\n\n%s\n", s.Title, s.About, s.table())
	}
	b.WriteString("## Clients\n\n")
	for _, each := range adapters() {
		fmt.Fprintf(&b, "- %s: %s.\n", each.name, each.about)
	}
	for _, name := range slices.Sorted(maps.Keys(a.Absent)) {
		fmt.Fprintf(&b, "- %s is left out: %s.\n", name, a.Absent[name])
	}
	b.WriteString("\nEach has a pool of up to 64 connections where it uses go-redis; locks have a TTL of 30 s.\n")
	for _, path := range slices.Sorted(maps.Keys(a.Versions)) {
		fmt.Fprintf(&b, "%s %s. ", path, a.Versions[path])
	}
	b.WriteString("\n")
	return b.String()
}

func (a *account) machineText() string {
	m := a.Machine
	text := fmt.Sprintf("%s, %d cores, %s; Redis %s on loopback TCP; %s; %d rounds of %s.",
		m.CPU, m.Cores, m.System, m.Redis, m.Go, a.Rounds, a.Span)
	if m.Load > 1 {
		text += fmt.Sprintf(" **The machine was busy at the start: load %.1f.**", m.Load)
	}
	return text
}

// table is one scenario'r.
func (r *result) table() string {
	var b strings.Builder
	cells := []string{"client"}
	if r.Base != "" {
		cells = append(cells, "x "+strings.TrimSuffix(strings.TrimPrefix(r.Base, "floor: "), " go-redis"))
	}
	for _, f := range r.columns {
		cells = append(cells, columns[f].title)
	}
	writeRow(&b, cells)
	writeRow(&b, slices.Repeat([]string{"---"}, len(cells)))
	for _, e := range r.Contenders {
		writeRow(&b, r.row(e))
	}
	for _, name := range slices.Sorted(maps.Keys(r.Left)) {
		fmt.Fprintf(&b, "\n%s is left out: %s.", name, r.Left[name])
	}
	if len(r.Left) > 0 {
		b.WriteString("\n")
	}
	b.WriteString(r.verdict())
	return b.String()
}

func (r *result) row(e *entry) []string {
	cells := []string{e.Name}
	if r.Base != "" {
		cell := ""
		if e.Ratio != nil {
			cell = e.Ratio.String()
			if noise := e.Ratio.noise(); noise != "" && e.Name != r.Base {
				cell += ", " + noise
			}
		}
		cells = append(cells, cell)
	}
	for _, f := range r.columns {
		v, ok := e.Median[f]
		switch {
		case !ok:
			cells = append(cells, "")
		case f == r.Main && e.Main.N > 1:
			cells = append(cells, fmt.Sprintf("%s (%s–%s)", f.format(v), f.format(e.Main.Low), f.format(e.Main.High)))
		default:
			cells = append(cells, f.format(v))
		}
	}
	if len(e.Failures) > 0 {
		cells[len(cells)-1] += fmt.Sprintf(" **in %d of %d rounds: %s**", len(e.Failures), len(e.Rounds), strings.ReplaceAll(e.Failures[0], "|", "/"))
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
	if ratio.N == 0 {
		return ""
	}
	text := fmt.Sprintf("\nwatchlock against %s, the best of the other clients: %v times its %q", peer.Name, ratio, columns[r.Main].title)
	if noise := ratio.noise(); noise != "" {
		text += ", " + noise
	}
	return text + ".\n"
}

// goalTable is the goals whose scenarios were run.
func (a *account) goalTable() string {
	var b strings.Builder
	for _, g := range goals() {
		for _, s := range a.Scenarios {
			if s.ID != g.scenario {
				continue
			}
			found, reached, measured := g.check(s)
			if !measured {
				continue
			}
			mark := "no"
			if reached {
				mark = "yes"
			}
			if b.Len() == 0 {
				b.WriteString("| scenario | client | what | goal | found | reached |\n| --- | --- | --- | --- | --- | --- |\n")
			}
			writeRow(&b, []string{s.ID, g.name, g.text, g.wanted(), found, mark})
		}
	}
	return b.String()
}

func writeRow(b *strings.Builder, cells []string) {
	b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}
