package walks

import (
	"errors"
	"fmt"
	"math"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// Holds returns what is wrong with the numbers that a command printed, whatever they are: that memory is above its limit,
// that parts do not make up the whole, that a program got less or more than its limit says. Shares of time are compared
// with each other, not with what was asked for: on a busy machine they are anything.
func Holds(printed []string) error {
	rows := tree(printed)
	return errors.Join(fits(rows), sums(rows), bill(printed), refused(printed), gauges(printed))
}

// lgpuRow is a line of lgpu ps.
type lgpuRow struct {
	path         string
	group        bool
	memory, most float64 // bytes; most is infinite for no limit
	memoryUnit   float64 // the last digit of memory
	compute      float64 // percent
	knowsCompute bool
	pids         string
	depth        int
}

var psLine = regexp.MustCompile(`^( *)(\S+) +GPU-\S+ +([0-9.]+ \w+) +(-|[0-9.]+ \w+) +(-|[0-9.]+%) +(-|[0-9.]+%) +\S+ *(.*)$`)

// tree reads the lines of lgpu ps, those of --tree with their paths.
func tree(lines []string) []lgpuRow {
	var rows []lgpuRow
	var at []string // by depth
	for _, line := range lines {
		m := psLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		r := lgpuRow{depth: len(m[1]), pids: m[7], group: strings.HasSuffix(m[2], "/"), most: math.Inf(1)}
		if r.depth > len(at) {
			continue // part of another table
		}
		at = append(at[:r.depth], strings.TrimSuffix(m[2], "/"))
		r.path = "/" + strings.Trim(strings.Join(at, "/"), "/")
		r.memory, r.memoryUnit = amount(m[3])
		if m[4] != "-" {
			r.most, _ = amount(m[4])
		}
		if share, is := strings.CutSuffix(m[5], "%"); is {
			r.compute, r.knowsCompute = number(share), true
		}
		rows = append(rows, r)
	}
	return rows
}

// number reads one that a pattern has found.
func number(text string) float64 {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return math.NaN()
	}
	return v
}

var factors = map[string]float64{"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
	"mJ": 1e-3, "J": 1, "kJ": 1e3, "MJ": 1e6, "mW": 1e-3, "W": 1, "kW": 1e3, "mg": 1e-3, "g": 1, "kg": 1e3}

// amount reads a number with its unit, and what one of its last digit is: below 100 there is a decimal, of which 0 is left
// out.
func amount(text string) (value, digit float64) {
	figure, unit, _ := strings.Cut(text, " ")
	factor, known := factors[unit]
	if !known {
		return math.NaN(), math.NaN()
	}
	_, decimals, _ := strings.Cut(figure, ".")
	if decimals == "" && number(figure) < 100 {
		decimals = "0"
	}
	return number(figure) * factor, factor * math.Pow10(-len(decimals))
}

// fits: nothing has more memory than its limit, and what runs has processes.
func fits(rows []lgpuRow) error {
	var wrong []error
	for _, r := range rows {
		if !(r.memory <= r.most) {
			wrong = append(wrong, fmt.Errorf("%s has %.0f bytes, above its limit of %.0f", r.path, r.memory, r.most))
		}
		if !r.group && r.compute > 0 && strings.Trim(r.pids, "0123456789, ") != "" {
			wrong = append(wrong, fmt.Errorf("%s computes without a process: %q", r.path, r.pids))
		}
	}
	return errors.Join(wrong...)
}

// sums: a group has what is in it, together.
func sums(rows []lgpuRow) error {
	var wrong []error
	for _, group := range rows {
		if !group.group {
			continue
		}
		memory, unit, compute, shares := 0.0, group.memoryUnit, 0.0, 0.1
		for _, r := range rows {
			if r.path != group.path && path.Dir(r.path) == group.path {
				memory, unit = memory+r.memory, unit+r.memoryUnit
				compute, shares = compute+r.compute, shares+0.1
			}
		}
		if !(math.Abs(group.memory-memory) <= unit) {
			wrong = append(wrong, fmt.Errorf("%s has %.0f bytes, and all in it %.0f", group.path, group.memory, memory))
		}
		if group.knowsCompute && !(math.Abs(group.compute-compute) <= shares) {
			wrong = append(wrong, fmt.Errorf("%s has %.1f %%, and all in it %.1f", group.path, group.compute, compute))
		}
	}
	return errors.Join(wrong...)
}

var energyLine = regexp.MustCompile(`^(/\S*) +GPU-\S+ +([0-9.]+ m?k?M?J) +([0-9.]+ m?k?W) +([0-9.]+)%(?: +([0-9.]+) +([0-9.]+ m?k?g))?$`)

// What the walks give as prices of a kWh, in any money and in grams.
const (
	walkPrice = 0.30
	walkCO2   = 380
	kWh       = 3.6e6 // joules
)

// bill: of lgpu energy, everything has used some, parts make up the whole, and it costs what that costs.
func bill(lines []string) error {
	type line struct{ energy, digit, power, watt, part, cost, co2, gram float64 }
	all := map[string]line{}
	var wrong []error
	for _, text := range lines {
		m := energyLine.FindStringSubmatch(text)
		if m == nil {
			continue
		}
		l := line{part: number(m[4])}
		l.energy, l.digit = amount(m[2])
		l.power, l.watt = amount(m[3])
		if !(l.energy > 0) {
			wrong = append(wrong, fmt.Errorf("%s has used no energy", m[1]))
		}
		if m[5] != "" {
			l.cost = number(m[5])
			l.co2, l.gram = amount(m[6])
			if want := l.energy / kWh * walkPrice; !(math.Abs(l.cost-want) <= 0.0001) {
				wrong = append(wrong, fmt.Errorf("%s costs %v, not %v", m[1], l.cost, want))
			}
			if want := l.energy / kWh * walkCO2; !(math.Abs(l.co2-want) <= l.gram+l.digit/kWh*walkCO2) {
				wrong = append(wrong, fmt.Errorf("%s is %v g of CO2, not %v", m[1], l.co2, want))
			}
		}
		all[m[1]] = l
	}
	root, whole := all["/"]
	for at, l := range all {
		if whole && !(math.Abs(l.part/root.part-l.energy/root.energy) <= 0.002) {
			wrong = append(wrong, fmt.Errorf("%s is %v %% of %v %%, and %v J of %v", at, l.part, root.part, l.energy, root.energy))
		}
		sum, power, within := line{}, 0.0, 0
		for below, b := range all {
			if below != at && path.Dir(below) == at {
				sum.energy, sum.digit = sum.energy+b.energy, sum.digit+b.digit
				power, sum.watt = power+b.power, sum.watt+b.watt
				within++
			}
		}
		if within == 0 {
			continue
		}
		if !(math.Abs(l.energy-sum.energy) <= l.digit+sum.digit) {
			wrong = append(wrong, fmt.Errorf("%s has used %v J, and all in it %v", at, l.energy, sum.energy))
		}
		if !(math.Abs(l.power-power) <= l.watt+sum.watt) {
			wrong = append(wrong, fmt.Errorf("%s draws %v W, and all in it %v", at, l.power, power))
		}
	}
	return errors.Join(wrong...)
}

var (
	gotLine     = regexp.MustCompile(`^memory ([0-9]+) CUDA_ERROR_OUT_OF_MEMORY$`)
	kernelsLine = regexp.MustCompile(`^kernels ([0-9]+) `)
	refusedLine = regexp.MustCompile(`refused device memory ([0-9]+) times, .* by the limit of \S+, ([0-9.]+ \w+)`)
)

// context is more than what a program's context takes of its limit.
const context = 128 << 20

// refused: a program that took all that it got got its limit, but for its context, and was told so; and it computed.
func refused(lines []string) error {
	got, limit, times, kernels := math.NaN(), math.NaN(), 0.0, math.NaN()
	for _, line := range lines {
		if m := gotLine.FindStringSubmatch(line); m != nil {
			got = number(m[1])
		}
		if m := kernelsLine.FindStringSubmatch(line); m != nil {
			kernels = number(m[1])
		}
		if m := refusedLine.FindStringSubmatch(line); m != nil {
			times = number(m[1])
			limit, _ = amount(m[2])
		}
	}
	switch {
	case math.IsNaN(got):
		return nil
	case !(got <= limit && got >= limit-context):
		return fmt.Errorf("the program got %.0f bytes; its limit is %.0f", got, limit)
	case !(times >= 1):
		return errors.New("the program was refused nothing")
	case !(kernels >= 1):
		return errors.New("the program ran no kernel")
	}
	return nil
}

var gaugeLine = regexp.MustCompile(`^lgpu_memory_used_bytes\{device="[^"]+",kind="(\w+)",path="([^"]+)"\} (\S+)$`)

// gauges: of the metrics, a group has the memory that all in it have, and an lgpu has some.
func gauges(lines []string) error {
	all, groups := map[string]float64{}, map[string]bool{}
	for _, line := range lines {
		if m := gaugeLine.FindStringSubmatch(line); m != nil {
			all[m[2]], groups[m[2]] = number(m[3]), m[1] == "group"
		}
	}
	var wrong []error
	for at, bytes := range all {
		if !groups[at] {
			if !(bytes > 0) {
				wrong = append(wrong, fmt.Errorf("%s has no memory", at))
			}
			continue
		}
		sum := 0.0
		for below, b := range all {
			if below != at && path.Dir(below) == at {
				sum += b
			}
		}
		if sum != bytes {
			wrong = append(wrong, fmt.Errorf("%s has %.0f bytes, and all in it %.0f", at, bytes, sum))
		}
	}
	return errors.Join(wrong...)
}
