package main

import (
	"image/color"
	"path/filepath"
	"regexp"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

const (
	chartWidth  = 18 * vg.Centimeter
	chartHeight = 10 * vg.Centimeter
)

// chartFont is that of all texts.
var chartFont = font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Points(9)}

// colours tell clients apart, also for people who do not see red or green. A
// client has the same in all plots.
var colours = []color.RGBA{
	{0x77, 0x77, 0x77, 255},
	{0xaa, 0xaa, 0x88, 255},
	{0x00, 0x72, 0xb2, 255},
	{0x56, 0xb4, 0xe9, 255},
	{0x00, 0x9e, 0x73, 255},
	{0xe6, 0x9f, 0x00, 255},
	{0xcc, 0x79, 0xa7, 255},
	{0xd5, 0x5e, 0x00, 255},
	{0xf0, 0xe4, 0x42, 255},
	{0xbb, 0xbb, 0xbb, 255},
	{0x44, 0x44, 0x44, 255},
}

// clientNames are those of the adapters and the floors, in the order of the colours.
func clientNames() (names []string) {
	for _, a := range adapters() {
		names = append(names, a.name)
	}
	for _, c := range handoffScenario().extra {
		names = append(names, c.name)
	}
	return names
}

// draw makes the plots for which there are figures.
func (a *account) draw(dir string) error {
	for name, make := range map[string]func() *plot.Plot{
		"contended.svg":   func() *plot.Plot { return a.lines("Sections per second on one lock", "per second", rate) },
		"waits.svg":       func() *plot.Plot { return a.lines("Wait for one lock, p99", "seconds", p99) },
		"uncontended.svg": func() *plot.Plot { return a.bars("Uncontended, x raw go-redis", "uncontended-1", "uncontended-64") },
		"handoff.svg":     func() *plot.Plot { return a.bars("Handoff p50, x the message alone", "handoff") },
	} {
		if p := make(); p != nil {
			if err := p.Save(chartWidth, chartHeight, filepath.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

func newChart(title string) *plot.Plot {
	p := plot.New()
	p.Title.Text = title
	p.Title.Padding = vg.Points(8)
	p.BackgroundColor = color.White
	p.Legend.Top = true
	p.Legend.Padding, p.Legend.XOffs = vg.Points(3), -vg.Points(6)
	p.Legend.ThumbnailWidth = vg.Points(14)
	for _, style := range []*text.Style{
		&p.Title.TextStyle, &p.Legend.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label,
	} {
		style.Font = chartFont
	}
	p.Title.TextStyle.Font.Size = vg.Points(11)
	grid := plotter.NewGrid()
	grid.Vertical.Width = 0
	p.Add(grid)
	return p
}

var crowdID = regexp.MustCompile(`^contended-1x(\d+)$`)

// lines draws a figure of the contended scenarios over the number of goroutines,
// both logarithmic.
func (a *account) lines(title, unit string, f figure) *plot.Plot {
	p := newChart(title)
	p.X.Label.Text, p.Y.Label.Text = "goroutines", unit
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.ConstantTicks{}, plot.LogTicks{Prec: -1}
	var ticks plot.ConstantTicks
	for _, s := range a.Scenarios {
		if id := crowdID.FindStringSubmatch(s.ID); id != nil {
			n, _ := strconv.ParseFloat(id[1], 64)
			ticks = append(ticks, plot.Tick{Value: n, Label: id[1]})
		}
	}
	if len(ticks) < 2 {
		return nil
	}
	p.X.Tick.Marker = ticks
	for i, name := range clientNames() {
		var points plotter.XYs
		k := 0
		for _, s := range a.Scenarios {
			if !crowdID.MatchString(s.ID) {
				continue
			}
			if e := s.entry(name); e != nil && e.Median[f] > 0 {
				points = append(points, plotter.XY{X: ticks[k].Value, Y: e.Median[f]})
			}
			k++
		}
		if len(points) == 0 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			continue // there is no other error than no points
		}
		line.Color, dots.Color, dots.Shape = colours[i], colours[i], draw.CircleGlyph{}
		line.Width = vg.Points(1.5)
		p.Add(line, dots)
		p.Legend.Add(name, line, dots)
	}
	p.X.Max *= 12 // room for the legend
	return p
}

// bars draws the ratios to the base in some scenarios, a group for each.
func (a *account) bars(title string, ids ...string) *plot.Plot {
	p := newChart(title)
	var groups []*result
	for _, id := range ids {
		for _, s := range a.Scenarios {
			if s.ID == id {
				groups = append(groups, s)
			}
		}
	}
	var drawn []int // of the names
	heights := map[int]plotter.Values{}
	for i, name := range clientNames() {
		for k, g := range groups {
			if e := g.entry(name); e != nil && e.Ratio != nil {
				if heights[i] == nil {
					heights[i], drawn = make(plotter.Values, len(groups)), append(drawn, i)
				}
				heights[i][k] = e.Ratio.Median
			}
		}
	}
	if len(drawn) < 2 {
		return nil
	}
	var titles []string
	for _, g := range groups {
		titles = append(titles, g.Title)
	}
	width := chartWidth * 0.5 / vg.Length(len(groups)*len(drawn))
	for n, i := range drawn {
		bar, err := plotter.NewBarChart(heights[i], width)
		if err != nil {
			continue // there is no other error than no values
		}
		bar.Color, bar.LineStyle.Width = colours[i], 0
		bar.Offset = width * vg.Length(float64(n)-float64(len(drawn)-1)/2)
		p.Add(bar)
		p.Legend.Add(clientNames()[i], bar)
	}
	p.NominalX(titles...)
	p.X.Tick.Label.Font = chartFont
	p.Y.Min = 0
	p.X.Min, p.X.Max = -0.5, float64(len(groups))*1.4-0.5 // room for the legend
	return p
}
