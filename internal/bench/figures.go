package main

import (
	"fmt"
	"strconv"
	"time"
)

// figure is the title of something that is measured.
type figure string

// figures are what one measurement found. What does not apply is absent. Times
// are in seconds.
type figures map[figure]float64

// columns are the figures in the order of the tables, of which each has those that
// somebody has a value for.
var (
	columns []figure
	formats = map[figure]func(float64) string{}
)

var (
	rate        = column("per second", number)
	turnShare   = column("share of the turns", share)
	p50         = column("wait p50", duration)
	p99         = column("p99", duration)
	longest     = column("max", duration)
	served      = column("most/least served", number)
	shares      = column("spread of the processes", share)
	sent        = column("commands sent", number)
	ran         = column("run", number)
	allocs      = column("allocations", number)
	allocated   = column("bytes", number)
	memoryEach  = column("bytes held each", number)
	goroutines  = column("goroutines each", number)
	clientCPU   = column("client CPU", duration)
	serverCPU   = column("server CPU", duration)
	connections = column("connections", number)
	subscribers = column("subscribed", number)
)

func column(title figure, format func(float64) string) figure {
	columns, formats[title] = append(columns, title), format
	return title
}

// format writes a value of the figure, or a ratio, which has no name.
func (f figure) format(v float64) string {
	if format := formats[f]; format != nil {
		return format(v)
	}
	return number(v)
}

// threeDigits is v to three digits that count.
func threeDigits(v float64) float64 {
	v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', 3, 64), 64)
	return v
}

func number(v float64) string { return strconv.FormatFloat(threeDigits(v), 'f', -1, 64) }

func share(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }

func duration(v float64) string { return time.Duration(threeDigits(v * 1e9)).String() }
