package main

import (
	"image/color"
	"path/filepath"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

const (
	chartWidth  = 18 * vg.Centimeter
	chartHeight = 10 * vg.Centimeter
)

// colours tell clients apart, also for people who do not see red or green. A
// client has the same in all plots.
var colours = []uint32{
	0x777777, 0xaaaa88, 0x0072b2, 0x56b4e9, 0x009e73, 0xe69f00, 0xcc79a7, 0xd55e00, 0xf0e442,
}

func colour(i int) color.Color {
	return color.RGBA{uint8(colours[i] >> 16), uint8(colours[i] >> 8), uint8(colours[i]), 255}
}

// clientNames are in the order of the colours.
func clientNames() (names []string) {
	for _, a := range adapters() {
		names = append(names, a.name)
	}
	return names
}

// draw makes the plots for which there are figures.
func (a *account) draw(dir string) error {
	for name, p := range map[string]*plot.Plot{
		"contended.svg":   a.lines("Sections per second on one lock", "per second", rate),
		"waits.svg":       a.lines("Wait for one lock, p99", "seconds", p99),
		"uncontended.svg": a.bars("Uncontended, x raw go-redis", "uncontended-1", "uncontended-64"),
		"handoff.svg":     a.bars("Handoff p50, x raw go-redis", "handoff"),
	} {
		if p == nil {
			continue
		}
		if err := p.Save(chartWidth, chartHeight, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func newChart(title string) *plot.Plot {
	plot.DefaultFont.Variant = "Sans"
	p := plot.New()
	p.Title.Text = title
	p.Legend.TextStyle.Font.Size = vg.Points(9)
	p.Legend.Padding, p.Legend.XOffs = vg.Points(3), -vg.Points(6)
	p.BackgroundColor = color.White
	p.Legend.Top = true
	grid := plotter.NewGrid()
	grid.Vertical.Width = 0
	p.Add(grid)
	return p
}

// lines draws a figure of the contended scenarios over the number of goroutines,
// both logarithmic.
func (a *account) lines(title, unit string, f figure) *plot.Plot {
	points, ticks := map[string]plotter.XYs{}, plot.ConstantTicks{}
	for _, s := range a.Scenarios {
		label, ok := strings.CutPrefix(s.ID, "contended-1x")
		if !ok {
			continue
		}
		n, _ := strconv.ParseFloat(label, 64)
		ticks = append(ticks, plot.Tick{Value: n, Label: label})
		for _, e := range s.Contenders {
			if e.Median[f] > 0 {
				points[e.Name] = append(points[e.Name], plotter.XY{X: n, Y: e.Median[f]})
			}
		}
	}
	if len(ticks) < 2 {
		return nil
	}
	p := newChart(title)
	p.X.Label.Text, p.Y.Label.Text = "goroutines", unit
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = ticks, plot.LogTicks{Prec: -1}
	for i, name := range clientNames() {
		line, dots, err := plotter.NewLinePoints(points[name])
		if err != nil || len(points[name]) == 0 {
			continue // there is no other error than no points
		}
		line.Color, dots.Color, dots.Shape = colour(i), colour(i), plotutil.Shape(i)
		p.Add(line, dots)
		p.Legend.Add(name, line, dots)
	}
	p.X.Max *= 12 // room for the legend
	return p
}

// bars draws the ratios to the base in some scenarios, a group for each.
func (a *account) bars(title string, ids ...string) *plot.Plot {
	var titles []string
	heights := map[string]plotter.Values{}
	for _, id := range ids {
		for _, s := range a.Scenarios {
			if s.ID != id {
				continue
			}
			titles = append(titles, s.Title)
			for _, e := range s.Contenders {
				heights[e.Name] = append(heights[e.Name], e.Ratio.Median)
			}
		}
	}
	if len(heights) < 2 {
		return nil
	}
	p := newChart(title)
	width := chartWidth * 0.5 / vg.Length(len(titles)*len(heights))
	offset := -width * vg.Length(len(heights)-1) / 2
	for i, name := range clientNames() {
		bar, err := plotter.NewBarChart(heights[name], width)
		if err != nil {
			continue // there is no other error than no values
		}
		bar.Color, bar.LineStyle.Width, bar.Offset = colour(i), 0, offset
		offset += width
		p.Add(bar)
		p.Legend.Add(name, bar)
	}
	p.NominalX(titles...)
	p.Y.Min = 0
	p.X.Min, p.X.Max = -0.5, float64(len(titles))*1.4-0.5 // room for the legend
	return p
}
