package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// of returns a column of a sample by its name.
func of(name string) func(sample) float64 {
	switch name {
	case "wall":
		return func(s sample) float64 { return s.Wall }
	case "cpu":
		return func(s sample) float64 { return s.CPU }
	case "bytes":
		return func(s sample) float64 { return s.Bytes }
	case "allocs":
		return func(s sample) float64 { return s.Allocs }
	}
	return func(s sample) float64 { return s.Values[name] }
}

// printTable writes the rows that were measured.
func printTable(w io.Writer, got results) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	lines := [][]string{{"work", "wall", "best", "CPU", "B/op", "allocs", "besides", "target", "met?"}}
	for _, r := range rows() {
		all := got[r.work]
		if len(all) == 0 {
			continue
		}
		best := column(all, of("wall"))[0]
		lines = append(lines, []string{
			r.work, duration(median(all, of("wall"))), duration(best), figure("cpu", median(all, of("cpu"))),
			figure("bytes", median(all, of("bytes"))), figure("allocs", median(all, of("allocs"))),
			besides(all), target(r.limits), verdict(all, r.limits),
		})
	}
	for _, cells := range lines {
		if _, err := fmt.Fprintln(t, strings.Join(cells, "\t| ")); err != nil {
			return err
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nwall, CPU (this process, collector included), B/op and allocs are medians of an operation; best is the\n"+
		"fastest sample's wall. met?: yes, stretch, or how many times the target; \"best\" is the best sample's word\n"+
		"where the median missed.\n")
	return err
}

// besides lists the values of a row, the peak and the ratio included.
func besides(all []sample) string {
	var names []string
	for _, s := range all {
		for name := range s.Values {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	var out []string
	for _, name := range names {
		v := median(all, of(name))
		if v != 0 || name == "goroutines" {
			out = append(out, number(v)+" "+name)
		}
	}
	return strings.Join(out, ", ")
}

func target(limits []limit) string {
	var most, stretch []string
	for _, l := range limits {
		most = append(most, named(l.of, l.most))
		if l.stretch > 0 {
			stretch = append(stretch, named(l.of, l.stretch))
		}
	}
	text := strings.Join(most, ", ")
	if len(stretch) > 0 {
		text += " (" + strings.Join(stretch, ", ") + ")"
	}
	return text
}

func named(of string, v float64) string {
	switch of {
	case "wall":
		return duration(v)
	case "cpu":
		return duration(v) + " CPU"
	case "bytes":
		return figure(of, v)
	case "goroutines":
		return "no goroutine"
	}
	return number(v) + " " + of
}

// verdict compares each figure with its limit.
func verdict(all []sample, limits []limit) string {
	if len(limits) == 0 {
		return "-"
	}
	var missed, bestOf []string
	stretch := true
	for _, l := range limits {
		v := median(all, of(l.of))
		if l.stretch == 0 || v > l.stretch {
			stretch = false
		}
		if v <= l.most {
			continue
		}
		missed = append(missed, fmt.Sprintf("%s %s×", l.of, number(v/l.most)))
		if best := column(all, of(l.of))[0]; best <= l.most {
			bestOf = append(bestOf, l.of)
		}
	}
	switch {
	case len(missed) == 0 && stretch:
		return "stretch"
	case len(missed) == 0:
		return "yes"
	case len(bestOf) == len(missed):
		return "no: " + strings.Join(missed, ", ") + " (best: yes)"
	}
	return "no: " + strings.Join(missed, ", ")
}

// figure writes a column's value, and a dash for what was not measured.
func figure(of string, v float64) string {
	switch {
	case v == 0:
		return "-"
	case of == "cpu":
		return duration(v)
	case of == "bytes" && v >= 1e6:
		return number(v/1e6) + " MB"
	case of == "bytes" && v >= 1e3:
		return number(v/1e3) + " KB"
	case of == "bytes":
		return number(v) + " B"
	}
	return number(v)
}

// duration writes nanoseconds with three digits.
func duration(ns float64) string {
	switch {
	case ns >= 1e9:
		return number(ns/1e9) + " s"
	case ns >= 1e6:
		return number(ns/1e6) + " ms"
	case ns >= 1e3:
		return number(ns/1e3) + " µs"
	}
	return number(ns) + " ns"
}

// number writes a value with three significant digits, whole ones in full.
func number(v float64) string {
	if math.Abs(v) >= 100 {
		return thousands(int(math.Round(v)))
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
