package main

import (
	"fmt"
	"math"
	"time"
)

// figure is the name of something that is measured, as it stands in the JSON.
type figure string

// figures are what one measurement found. What does not apply is absent. Times
// are in seconds.
type figures map[figure]float64

const (
	rate        figure = "per_second"
	timeEach    figure = "seconds_each"
	p50         figure = "wait_p50_seconds"
	p99         figure = "wait_p99_seconds"
	longest     figure = "wait_max_seconds"
	served      figure = "most_to_least_served"
	shares      figure = "spread_of_processes"
	timeInside  figure = "share_of_time_inside"
	turnShare   figure = "share_of_turns"
	sent        figure = "commands_sent_each"
	ran         figure = "commands_run_each"
	sentSecond  figure = "commands_sent_per_second"
	sentRound   figure = "commands_sent_per_renewal_round"
	allocs      figure = "allocations_each"
	allocated   figure = "bytes_each"
	clientCPU   figure = "client_cpu_seconds_each"
	serverCPU   figure = "server_cpu_seconds_each"
	clientShare figure = "client_share_of_a_core"
	serverShare figure = "server_share_of_a_core"
	connections figure = "connections"
	subscribers figure = "subscribed_connections"
	memoryEach  figure = "bytes_held_each"
	goroutines  figure = "goroutines_each"
)

// column is how a figure looks in a table.
type column struct {
	title  string
	format func(float64) string
}

var columns = map[figure]column{
	rate:        {"per second", formatCount},
	timeEach:    {"each", formatTime},
	p50:         {"wait p50", formatTime},
	p99:         {"p99", formatTime},
	longest:     {"max", formatTime},
	served:      {"most/least served", formatRatio},
	shares:      {"spread of the processes", formatShare},
	timeInside:  {"time inside", formatShare},
	turnShare:   {"share of the turns", formatShare},
	sent:        {"commands sent", formatSmall},
	ran:         {"run", formatSmall},
	sentSecond:  {"commands sent per second", formatSmall},
	sentRound:   {"commands a round", formatSmall},
	allocs:      {"allocations", formatSmall},
	allocated:   {"bytes", formatCount},
	clientCPU:   {"client CPU", formatTime},
	serverCPU:   {"server CPU", formatTime},
	clientShare: {"client CPU", formatShare},
	serverShare: {"server CPU", formatShare},
	connections: {"connections", formatCount},
	subscribers: {"subscribed", formatCount},
	memoryEach:  {"memory each", formatBytes},
	goroutines:  {"goroutines each", formatSmall},
}

// format writes a value as the tables do.
func (f figure) format(v float64) string { return columns[f].format(v) }

func formatCount(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.2f M", v/1e6)
	case v >= 10_000:
		return fmt.Sprintf("%.1f k", v/1e3)
	}
	return fmt.Sprintf("%.0f", v)
}

func formatSmall(v float64) string {
	switch {
	case v == 0:
		return "0"
	case math.Abs(v) < 0.01:
		return fmt.Sprintf("%.2g", v)
	case math.Abs(v) < 100:
		return fmt.Sprintf("%.2f", v)
	}
	return formatCount(v)
}

func formatRatio(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func formatShare(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }

func formatBytes(v float64) string {
	if math.Abs(v) >= 10_000 {
		return fmt.Sprintf("%.1f KB", v/1e3)
	}
	return fmt.Sprintf("%.0f B", v)
}

func formatTime(v float64) string {
	d := time.Duration(v * float64(time.Second))
	switch {
	case d >= time.Second:
		return fmt.Sprintf("%.2f s", v)
	case d >= time.Millisecond:
		return fmt.Sprintf("%.2f ms", v*1e3)
	case d >= 10*time.Microsecond:
		return fmt.Sprintf("%.0f µs", v*1e6)
	case d >= time.Microsecond:
		return fmt.Sprintf("%.1f µs", v*1e6)
	}
	return fmt.Sprintf("%.0f ns", v*1e9)
}
