package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"

	"github.com/offshoot-dev/offshoot/internal/products"
)

// limit is one figure of a target; stretch is what would be better still, or 0.
type limit struct {
	of            string // "wall", "cpu", "bytes", "allocs", or the name of a value
	most, stretch float64
}

// row is one line of the table.
type row struct {
	work   string
	group  string
	limits []limit
}

// The units of the limits.
const (
	us = 1e3
	ms = 1e6
	kb = 1e3
)

// rows is the table in its order. The targets are those of the design's section 7;
// a row without one is there to explain another.
func rows() []row {
	child := []limit{{"cpu", 60 * us, 40 * us}, {"bytes", 20 * kb, 12 * kb}, {"allocs", 200, 150}}
	live, mem, disk := liveOnly(), inMemory(), onSQLite()
	list := []row{
		{workEvent, "append", nil},
		{workOpen, "open", nil},
		{workFollow, "follow-up", []limit{{"wall", 50 * us, 0}}},
		{childWork(live, 1), "child-live", child},
		{childWork(live, 100), "child-live", child},
		{childWork(live, 1000), "child-live", child},
		{aliveWork(live, 100), "child-live", child},
		{aliveWork(live, 1000), "child-live", child},
		{workStructured, "structured", nil},
		{childWork(mem, 1), "child-memory", child},
		{childWork(mem, 100), "child-memory", child},
		{childWork(mem, 1000), "child-memory", child},
		{aliveWork(mem, 100), "child-memory", child},
		{aliveWork(mem, 1000), "child-memory", child},
		{childWork(disk, 1), "child-sqlite", []limit{{"wall", 2.5 * ms, 1.2 * ms}}},
		{fmt.Sprintf("  "+workOwn, "1"), "child-store", nil},
		{childWork(disk, 100), "child-sqlite", []limit{{"wall", 0.4 * ms, 0.15 * ms}}},
		{fmt.Sprintf("  "+workOwn, "100"), "child-store", nil},
		{childWork(disk, 1000), "child-sqlite", nil},
		{workStep, "step", []limit{{"ratio", 1.3, 0}}},
		{workStepAlone, "step", nil},
	}
	for _, kind := range []storeKind{mem, disk} {
		for _, n := range []int{1, 100, 1000} {
			list = append(list, row{toolWork(kind, n), "tool-" + kind.short, nil})
		}
	}
	for _, n := range concurrency() {
		list = append(list, row{commitWork(n), "commit", nil})
	}
	for _, n := range forkSizes() {
		list = append(list,
			row{forkWork(n), "fork", []limit{{"wall", 200 * us, 0}, {"bytes", 20 * kb, 0}}},
			row{forkDiskWork(n), "fork-sqlite", []limit{{"B of disk", 4 * kb, 0}}},
			row{forkChildWork(n), "fork-sqlite", nil},
		)
	}
	list = append(list,
		row{acceptedWork(mem), "continuable-memory", nil},
		row{settledWork(mem, 1), "continuable-memory", nil},
		row{settledWork(mem, 100), "continuable-memory", nil},
		row{acceptedWork(disk), "continuable-sqlite", nil},
		row{settledWork(disk, 1), "continuable-sqlite", nil},
		row{settledWork(disk, 100), "continuable-sqlite", nil},
		row{workToRunning, "deliver", []limit{{"wall", 50 * us, 0}}},
		row{workToWaiting, "deliver", []limit{{"wall", 50 * us, 0}}},
		row{coldWork(100), "deliver-100", []limit{{"wall", 2 * ms, 0}}},
		row{coldWork(10_000), "deliver-10000", []limit{{"wall", 25 * ms, 10 * ms}}},
		row{parkedWork(1_000), "parked", []limit{{"bytes", 4 * kb, 0}, {"goroutines", 0.001, 0}}},
		row{parkedWork(10_000), "parked", []limit{{"bytes", 4 * kb, 0}, {"goroutines", 0.001, 0}}},
		row{cancelWork(mem, 1_000), "cancel-memory", []limit{{"wall", 100 * ms, 0}}},
		row{cancelWork(mem, 10_000), "cancel-memory", nil},
		row{cancelWork(disk, 1_000), "cancel-sqlite", []limit{{"wall", 500 * ms, 0}}},
		row{workIdle, "waiting", []limit{{"bytes", 4 * kb, 0}, {"goroutines", 0.001, 0}}},
		row{resumeWork(100), "resume-100", []limit{{"wall", 2 * ms, 0}}},
		row{resumeWork(10_000), "resume-10000", []limit{{"wall", 25 * ms, 0}}},
		row{thawWork(10_000), "resume-10000", []limit{{"wall", 10 * ms, 0}}},
		row{workInspect, "inspect", nil},
		row{workListLive, "list-live", []limit{{"wall", 10 * ms, 0}}},
		row{workListBoth, "list-live", nil},
		row{workListOpen, "list", []limit{{"wall", 60 * ms, 0}}},
		row{workListStore, "list", nil},
		row{workListNew, "list", []limit{{"wall", 150 * ms, 0}}},
		row{workListTool, "list", nil},
		row{workListAll, "list", nil},
		row{treeWork(treeLive), "tree", []limit{{"wall", 150 * ms, 0}, {"MB peak", 64, 0}}},
		row{treeWork(treeMemory), "tree", []limit{{"wall", 150 * ms, 0}, {"MB peak", 64, 0}}},
		row{treeWork(treeSQLite), "tree", []limit{{"wall", 1500 * ms, 0}}},
		row{workVersion, "command", nil},
		row{workFirst, "command", []limit{{"wall", 20 * ms, 0}, {"MB peak", 30, 0}}},
	)
	list = append(list, row{workPeer, "peers", nil}, row{workPeers(), "peers", nil})
	if os.Getenv(products.Variable) != "" {
		for _, name := range productNames() {
			list = append(list, row{productWork(name), "products", nil}, row{byHandWork(name), "products", nil})
		}
	}
	list = append(append(list, scaleRows(10_000)...), scaleRows(100_000)...)
	return append(list, bigRows()...)
}

// groups are the rows that are measured together, in one process.
func groups() map[string]func(context.Context, *bench) error {
	return map[string]func(context.Context, *bench) error{
		"append":       appendEvents,
		"open":         openLog,
		"follow-up":    followUp,
		"child-live":   oneShotsInMemory(liveOnly()),
		"structured":   structuredAnswer,
		"child-memory": oneShotsInMemory(inMemory()),
		"child-sqlite": oneShots(onSQLite(), 1, 100, 1000),
		"child-store":  ownShare,
		"step":         durableStep,
		"commit":       groupCommit,
		"fork":         forks,
		"fork-sqlite":  forksOnDisk,
		"waiting":      waiting,
		"resume-100":   resumes(100, 40, false),

		"continuable-memory": starts(inMemory(), 1, 100),
		"continuable-sqlite": starts(onSQLite(), 1, 100),
		"deliver":            toResident,
		"deliver-100":        toCold(100, 40),
		"deliver-10000":      toCold(10_000, 2),
		"parked":             parked(1_000, 10_000),
		"cancel-memory":      cancels(inMemory(), 1_000, 10_000),
		"cancel-sqlite":      cancels(onSQLite(), 1_000),

		"resume-10000": resumes(10_000, 2, true),
		"inspect":      inspect,
		"list":         listing,
		"list-live":    listLive,
		"tool-memory":  throughTool(inMemory(), 1, 100, 1000),
		"tool-sqlite":  throughTool(onSQLite(), 1, 100, 1000),
		"tree":         trees(treeLive, treeMemory, treeSQLite),
		"command":      firstResult,
		"peers":        peers,
		"products":     realProducts,
		"scale-10000":  scale(10_000),
		"scale-100000": scale(100_000),
		"big":          big,
	}
}

// chosen lists the groups, in the table's order, that have a matching row or name.
func chosen(pattern *regexp.Regexp) []string {
	var names []string
	for _, r := range rows() {
		if !slices.Contains(names, r.group) && (pattern.MatchString(r.work) || pattern.MatchString(r.group)) {
			names = append(names, r.group)
		}
	}
	return names
}
