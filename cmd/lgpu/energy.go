package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os/signal"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/internal/names"
	"github.com/lgpu/lgpu/internal/progress"
)

// joulesPerKWh is a kilowatt-hour in joules.
const joulesPerKWh = 3_600_000

func energyCommand() *cobra.Command {
	var e energyReport
	var price, co2 string
	c := &cobra.Command{
		Use:   "energy [options] [PATH]",
		Short: "Show the energy that logical GPUs have used",
		Long: `Show the energy that each group and lgpu has used of each device, its power now
and its part of what the device has drawn: of everything, or of the group or
lgpu at PATH and below. A group also has what lgpus used that are gone. With
--over, show what is used in a time from now on, and the mean power in it; with
--since and --until, what was used in a time that is past, by a history with a
point for each hour.

A device's energy is that of its own counter; what each lgpu had of it is
computed from the time for which it used the device. The method and its error:
https://github.com/lgpu/lgpu/blob/main/docs/energy.md.

Exit status: 0; 2 if PATH is not a group or lgpu, or an option makes no sense;
1 if the daemon cannot be reached.`,
		Example: `  lgpu energy
  lgpu energy --over 10s /team
  lgpu energy --since 2026-11-01 --until 2026-12-01 --price 0.30€/kWh /users
  lgpu energy --price 0.30€/kWh --co2 380
  lgpu energy --json | jq '.rows[] | select(.path == "/team").joules'`,
		DisableFlagsInUseLine: true,
		Args:                  atMostOne,
		RunE: func(c *cobra.Command, args []string) (err error) {
			if e.price, e.currency, err = parseRate(price); err != nil {
				return usage("a price is an amount for each kWh, such as 0.30 or 0.30€/kWh", "--price %s: %w", price, err)
			}
			var unit string
			if e.co2, unit, err = parseRate(co2); err != nil || unit != "" && unit != "g" {
				return usage("grams of CO₂ for each kWh, such as 380", "--co2 %s: it is not an amount", co2)
			}
			if e.over < 0 || e.over > 0 && e.over < leastOver {
				return usage("", "--over %v: the shortest is %v", e.over, leastOver)
			}
			if err := e.settle(time.Now()); err != nil {
				return err
			}
			return talk(c, toAsk, func(conn *api.Conn) error {
				path := rootPath
				if len(args) > 0 {
					path = at(conn, args[0])
				}
				return e.show(c, conn, path)
			})
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.DurationVar(&e.over, "over", 0, "measure for a `TIME`, such as 10s")
	f.StringVar(&e.since, "since", "", "what was used since `MOMENT`, such as 30d or 2026-11-01")
	f.StringVar(&e.until, "until", "", "with --since: until `MOMENT`; without it until now")
	f.StringVar(&price, "price", "", "also show what it costs, at `PRICE` for each kWh")
	f.StringVar(&co2, "co2", "", "also show CO₂, at so many `GRAMS` for each kWh")
	f.BoolVar(&e.json, "json", false, "print JSON")
	socketFlag(c)
	return c
}

// leastOver is the shortest time to measure: of a device without work, the daemon reads the counter once a second.
const leastOver = time.Second

// energyReport is one lgpu energy.
type energyReport struct {
	over         time.Duration
	since, until string
	begin, end   *time.Time // what since and until say; nil: nothing. Then the points of the history that were found

	price, co2 *float64 // of a kWh; nil: not asked for
	currency   string
	json       bool
}

// energyRow is what a directory has used of a device. The JSON has the same names, which docs/energy.md describes.
type energyRow struct {
	Path   *string  `json:"path"` // nil: what went to no lgpu
	Kind   *string  `json:"kind"` // group or lgpu
	Device string   `json:"device"`
	Joules float64  `json:"joules"`
	Watts  *float64 `json:"watts"`
	Part   float64  `json:"part"` // of what the device has drawn, percent
	Cost   *float64 `json:"cost"`
	CO2    *float64 `json:"co2_grams"`
}

// settle reads the options about time.
func (e *energyReport) settle(now time.Time) error {
	if e.since == "" && e.until != "" {
		return usage("", "--until: it needs --since")
	}
	if e.since != "" && e.over > 0 {
		return usage("", "--since: with --over a time from now on is meant")
	}
	for _, moment := range []struct {
		option, text string
		to           **time.Time
	}{{"since", e.since, &e.begin}, {"until", e.until, &e.end}} {
		if moment.text == "" {
			continue
		}
		t, err := parseMoment(moment.text, now)
		if err != nil {
			return usage("", "--%s %q: %w", moment.option, moment.text, err)
		}
		*moment.to = &t
	}
	if e.end != nil && !e.end.After(*e.begin) {
		return usage("", "--until %s: it is not after --since", e.until)
	}
	return nil
}

// energyUsage is what each directory (0: nobody) has used until a time, in millijoules by device.
type energyUsage map[uint64]map[string]uint64

// past asks what was used at a time, and when the history has that of.
func past(ctx context.Context, conn *api.Conn, at time.Time) (energyUsage, time.Time, error) {
	p, err := conn.Energy(ctx, &api.EnergyRequest{At: timestamppb.New(at)})
	if err != nil {
		return nil, time.Time{}, err
	}
	all := energyUsage{}
	for _, u := range p.GetUsed() {
		if all[u.GetId()] == nil {
			all[u.GetId()] = map[string]uint64{}
		}
		all[u.GetId()][u.GetUuid()] = u.GetEnergyMj()
	}
	return all, p.GetTime().AsTime().Local(), nil
}

// waits lets a time pass and shows how much of it has. False: ctx ended before.
func waits(ctx context.Context, out io.Writer, whole time.Duration) bool {
	line := progress.Start(out, "measuring")
	defer line.Done()
	look := time.NewTicker(time.Second)
	defer look.Stop()
	end := time.After(whole)
	for began := time.Now(); ; {
		select {
		case <-ctx.Done():
			return false
		case <-end:
			return true
		case <-look.C:
			passed := time.Since(began)
			line.Measure(float64(passed)/float64(whole), fmt.Sprintf("%v of %v", passed.Round(time.Second), whole), "measuring")
		}
	}
}

func (e *energyReport) show(c *cobra.Command, conn *api.Conn, path string) error {
	ctx, stop := signal.NotifyContext(c.Context(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	var before energyUsage
	if e.over > 0 {
		s, err := conn.Snapshot(ctx, &api.SnapshotRequest{})
		if err != nil {
			return err
		}
		before = used(s)
		if !waits(ctx, c.ErrOrStderr(), e.over) {
			return &exit{status: 128 + int(unix.SIGINT)}
		}
	}
	rows, err := e.measure(ctx, conn, before, path)
	if err != nil {
		return err
	}
	out := c.OutOrStdout()
	if e.json {
		return sayJSON(out, struct {
			Version int         `json:"version"`
			Since   *time.Time  `json:"since"`
			Until   *time.Time  `json:"until"`
			Rows    []energyRow `json:"rows"`
		}{1, e.begin, e.end, rows})
	}
	if len(rows) == 0 {
		return say(out, "no device here has a counter of energy\n")
	}
	if e.begin != nil {
		if err := say(out, fmt.Sprintf("from %s to %s\n", e.begin.Format(momentLayout), e.end.Format(momentLayout))); err != nil {
			return err
		}
	}
	return say(out, e.table(rows))
}

// momentLayout is how times are shown.
const momentLayout = "2006-01-02 15:04:05 -0700"

// measure asks what was used, since before if there is one.
func (e *energyReport) measure(ctx context.Context, conn *api.Conn, before energyUsage, path string) ([]energyRow, error) {
	now, err := conn.Snapshot(ctx, &api.SnapshotRequest{})
	if err != nil {
		return nil, err
	}
	after := used(now)
	if e.begin != nil {
		if before, after, err = e.recall(ctx, conn, now, after); err != nil {
			return nil, err
		}
	}
	rows, found := e.rows(before, after, now, path)
	if !found {
		return nil, usage(treeHint, "%s: no such group or lgpu", path)
	}
	return rows, nil
}

// recall asks for what was used at the two ends of a time that is past; without an end it is now.
func (e *energyReport) recall(ctx context.Context, conn *api.Conn, now *api.Snapshot, used energyUsage) (before, after energyUsage, err error) {
	begin, end := time.Time{}, now.GetTime().AsTime().Local()
	if before, begin, err = past(ctx, conn, *e.begin); err != nil {
		return nil, nil, err
	}
	if e.end != nil {
		if used, end, err = past(ctx, conn, *e.end); err != nil {
			return nil, nil, err
		}
	}
	if !end.After(begin) {
		return nil, nil, usage("the history has a point for each hour", "--until %s: there is nothing between it and --since", e.until)
	}
	e.begin, e.end, e.over = &begin, &end, end.Sub(begin)
	return before, used, nil
}

// used is the energy of everybody in a snapshot.
func used(s *api.Snapshot) energyUsage {
	all := energyUsage{0: {}}
	for _, d := range s.GetDevices() {
		all[0][d.GetUuid()] = d.GetEnergyOtherMj()
	}
	for _, n := range s.GetDirectories() {
		all[n.GetId()] = map[string]uint64{}
		for _, d := range n.GetDevices() {
			all[n.GetId()][d.GetUuid()] = d.GetEnergyMj()
		}
	}
	return all
}

// rows are those of a directory and all below it, and whether there is one. Those of the root end with what went to no
// lgpu. What was used before is left out.
func (e *energyReport) rows(before, after energyUsage, now *api.Snapshot, path string) (rows []energyRow, found bool) {
	drawn := map[string]float64{}
	since := func(id uint64, device string) float64 {
		mj := after[id][device]
		return float64(mj-min(before[id][device], mj)) / 1000
	}
	for _, d := range now.GetDevices() {
		drawn[d.GetUuid()] = since(0, d.GetUuid())
	}
	for _, n := range now.GetDirectories() {
		if n.GetPath() != rootPath {
			continue
		}
		for _, d := range n.GetDevices() {
			drawn[d.GetUuid()] += since(n.GetId(), d.GetUuid())
		}
	}
	for _, n := range now.GetDirectories() {
		if !names.Within(n.GetPath(), path) {
			continue
		}
		found = found || n.GetPath() == path
		for _, d := range n.GetDevices() {
			if d.EnergyMj == nil {
				continue
			}
			name, kind := n.GetPath(), strings.ToLower(n.GetKind().String())
			watts := float64(d.GetPowerMw()) / 1000
			rows = append(rows, e.row(energyRow{
				Path: &name, Kind: &kind, Device: d.GetUuid(), Joules: since(n.GetId(), d.GetUuid()), Watts: &watts,
			}, drawn))
		}
	}
	for _, d := range now.GetDevices() {
		if path == rootPath && d.EnergyOtherMj != nil {
			rows = append(rows, e.row(energyRow{Device: d.GetUuid(), Joules: since(0, d.GetUuid())}, drawn))
		}
	}
	return rows, found
}

// row fills in what follows from the energy.
func (e *energyReport) row(r energyRow, drawn map[string]float64) energyRow {
	if e.over > 0 {
		watts := r.Joules / e.over.Seconds()
		r.Watts = &watts
	}
	if total := drawn[r.Device]; total > 0 {
		r.Part = 100 * r.Joules / total
	}
	times := func(rate *float64) *float64 {
		if rate == nil {
			return nil
		}
		amount := *rate * r.Joules / joulesPerKWh
		return &amount
	}
	r.Cost, r.CO2 = times(e.price), times(e.co2)
	return r
}

// table is what was used, for people.
func (e *energyReport) table(rows []energyRow) string {
	lines := [][]string{{"LGPU", "DEVICE", "ENERGY", "POWER", "PART"}}
	if e.price != nil {
		lines[0] = append(lines[0], "COST")
	}
	if e.co2 != nil {
		lines[0] = append(lines[0], "CO2")
	}
	wide := nameWidth
	for _, r := range rows {
		name, power := "(no lgpu)", "-"
		if r.Path != nil {
			name = *r.Path
		}
		if r.Watts != nil {
			power = fmt.Sprintf("%.1f W", *r.Watts)
		}
		line := []string{name, shorten(r.Device, deviceWidth), formatEnergy(r.Joules), power, fmt.Sprintf("%.1f%%", r.Part)}
		if r.Cost != nil {
			line = append(line, fmt.Sprintf("%.4f%s", *r.Cost, e.currency))
		}
		if r.CO2 != nil {
			line = append(line, fmt.Sprintf("%.2f g", *r.CO2))
		}
		lines = append(lines, line)
		wide = max(wide, utf8.RuneCountInString(name))
	}
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "%-*s %-*s %10s %9s %6s", wide, l[0], deviceWidth, l[1], l[2], l[3], l[4])
		for _, amount := range l[5:] {
			fmt.Fprintf(&b, " %10s", amount)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// formatEnergy writes joules for people.
func formatEnergy(joules float64) string {
	switch wh := joules * 1000 / joulesPerKWh; {
	case wh < 1:
		return fmt.Sprintf("%.1f J", joules)
	case wh < 1000:
		return fmt.Sprintf("%.2f Wh", wh)
	default:
		return fmt.Sprintf("%.2f kWh", wh/1000)
	}
}

// parseRate reads an amount for each kWh: a number, with or without a unit before or after it, and with or without /kWh.
// It returns nil for an empty text.
func parseRate(text string) (amount *float64, unit string, err error) {
	if text == "" {
		return nil, "", nil
	}
	rest := text
	if n := len(rest) - len("/kwh"); n > 0 && strings.EqualFold(rest[n:], "/kwh") {
		rest = rest[:n]
	}
	digit := func(r rune) bool { return r >= '0' && r <= '9' || r == '.' }
	first, last := strings.IndexFunc(rest, digit), strings.LastIndexFunc(rest, digit)
	if first < 0 {
		return nil, "", fmt.Errorf("%q has no number", text)
	}
	unit = strings.TrimSpace(strings.TrimSpace(rest[:first]) + strings.TrimSpace(rest[last+1:]))
	number := rest[first : last+1]
	n, err := strconv.ParseFloat(number, 64)
	odd := strings.ContainsFunc(unit, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.Is(unicode.Sc, r) })
	exponent := strings.ContainsFunc(number, func(r rune) bool { return !digit(r) })
	if err != nil || math.IsInf(n, 0) || odd || exponent || utf8.RuneCountInString(unit) > 3 {
		return nil, "", fmt.Errorf("%q is not an amount", text)
	}
	return &n, unit, nil
}
