package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// sample is what one operation cost, as the mean over some time. The values are
// what a row counts besides, for each operation.
type sample struct {
	Work   string             `json:"work"`
	Wall   float64            `json:"wall"` // ns
	CPU    float64            `json:"cpu"`  // ns of this process, collector included; 0 is not measured
	Bytes  float64            `json:"bytes"`
	Allocs float64            `json:"allocs"`
	Values map[string]float64 `json:"values,omitempty"`
}

// results are the samples of each row.
type results map[string][]sample

// bench is one group's run.
type bench struct {
	options
	out   *json.Encoder
	files *atomic.Int64 // names the databases
}

// probe measures one sample. It is not for concurrent use.
type probe struct {
	ops    int
	values map[string]float64

	began  time.Time
	cpu    time.Duration
	mem    runtime.MemStats
	total  sample
	paused bool
}

func newProbe() *probe { return &probe{values: map[string]float64{}, paused: true} }

// start begins, or ends a pause.
func (p *probe) start() {
	runtime.ReadMemStats(&p.mem)
	p.cpu = cpuTime()
	p.began = time.Now()
	p.paused = false
}

// pause leaves what follows out of the sample, until start. It returns the ns since
// the last start.
func (p *probe) pause() float64 {
	wall, cpu := time.Since(p.began), cpuTime()-p.cpu
	bytes, allocs := p.mem.TotalAlloc, p.mem.Mallocs
	runtime.ReadMemStats(&p.mem)
	p.total.Wall += float64(wall)
	p.total.CPU += float64(cpu)
	p.total.Bytes += float64(p.mem.TotalAlloc - bytes)
	p.total.Allocs += float64(p.mem.Mallocs - allocs)
	p.paused = true
	return float64(wall)
}

// count adds to a value of the row.
func (p *probe) count(name string, n float64) { p.values[name] += n }

// elapsed is what was measured so far.
func (p *probe) elapsed() time.Duration {
	if p.paused {
		return time.Duration(p.total.Wall)
	}
	return time.Duration(p.total.Wall) + time.Since(p.began)
}

func (p *probe) done(work string) sample {
	if !p.paused {
		p.pause()
	}
	n := float64(p.ops)
	s := sample{Work: work, Wall: p.total.Wall / n, CPU: p.total.CPU / n, Bytes: p.total.Bytes / n, Allocs: p.total.Allocs / n}
	for name, v := range p.values {
		if s.Values == nil {
			s.Values = map[string]float64{}
		}
		s.Values[name] = v / n
	}
	return s
}

// take measures calls of fn, each of which does ops operations, until the sample
// is long enough.
func (b *bench) take(work string, ops int, fn func(*probe) error) (sample, error) {
	p := newProbe()
	runtime.GC()
	p.start()
	for p.ops == 0 || p.elapsed() < b.sample {
		if p.paused {
			p.start()
		}
		if err := fn(p); err != nil {
			return sample{}, fmt.Errorf("%s: %w", work, err)
		}
		p.ops += ops
	}
	return p.done(work), nil
}

// measure takes the samples of a row after one that warms up.
func (b *bench) measure(work string, ops int, fn func(*probe) error) error {
	for i := range b.samples + 1 {
		s, err := b.take(work, ops, fn)
		if err != nil {
			return err
		}
		if i == 0 {
			continue
		}
		if err := b.out.Encode(s); err != nil {
			return err
		}
	}
	return nil
}

// cpuTime is the processor time of this process, both kinds.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// peakBytes is the peak of memory in a process's accounting, in bytes.
func peakBytes(u *syscall.Rusage) float64 {
	if runtime.GOOS == "darwin" {
		return float64(u.Maxrss)
	}
	return float64(u.Maxrss) * 1024
}

// median is the middle value of one column.
func median(all []sample, of func(sample) float64) float64 { return middle(column(all, of)) }

// middle is the median of values, which it sorts.
func middle(v []float64) float64 {
	slices.Sort(v)
	switch n := len(v); {
	case n == 0:
		return 0
	case n%2 == 0:
		return (v[n/2-1] + v[n/2]) / 2
	default:
		return v[n/2]
	}
}

// column lists one column in order.
func column(all []sample, of func(sample) float64) []float64 {
	v := make([]float64, len(all))
	for i, s := range all {
		v[i] = of(s)
	}
	slices.Sort(v)
	return v
}

// conditions say on what machine, and how busy, the figures came about.
func conditions(dir string) (string, error) {
	took, err := syncCost(dir)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %s/%s, %d CPUs, a write of 4 KiB with its sync %s, load at the start %s",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), duration(float64(took)), loadAverage()), nil
}

// syncCost is the median cost of one small write that is on the disk.
func syncCost(dir string) (_ time.Duration, err error) {
	f, err := os.Create(filepath.Join(dir, "sync"))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	block := make([]byte, 4096)
	var took []time.Duration
	for range 101 {
		began := time.Now()
		if _, err := f.Write(block); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// loadAverage is that of the last minute, where the system tells it.
func loadAverage() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(data), " ")
	return first
}
