package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/region"
	"github.com/lgpu/lgpu/units"
)

func psCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "ps [--json]",
		Short: "Show the logical GPUs of this machine and what they use",
		Long: `Show each logical GPU of this user: memory in use and its limit, the share of
the device's time over the last second and its cap, and the processes.
docs/cli.md describes the JSON.`,
		Example: `  lgpu ps
  lgpu ps --json | jq '.lgpus[].devices[].memory.used'`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments,
		RunE:                  func(c *cobra.Command, _ []string) error { return ps(c.OutOrStdout(), c.ErrOrStderr(), asJSON) },
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// ps writes the state of all lgpus of this user's runtime folder. Files there that are no regions are warned of.
func ps(out, warn io.Writer, asJSON bool) error {
	dir, err := region.Dir()
	if err != nil {
		return failed(err)
	}
	if err := region.Collect(dir); err != nil {
		fmt.Fprintln(warn, "lgpu: warning:", err)
	}
	paths, err := region.List(dir)
	if err != nil {
		return failed(err)
	}
	var states []state
	for _, path := range paths {
		s, err := read(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // ended meanwhile
		}
		if err != nil {
			fmt.Fprintln(warn, "lgpu: warning:", err)
			continue
		}
		states = append(states, state{s, path})
	}
	if asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		if err := e.Encode(document(states)); err != nil {
			return failed(fmt.Errorf("write: %w", err))
		}
		return nil
	}
	if _, err := io.WriteString(out, table(states)); err != nil {
		return failed(fmt.Errorf("write: %w", err))
	}
	return nil
}

// state is one lgpu as ps found it.
type state struct {
	*region.Snapshot
	path string
}

func read(path string) (*region.Snapshot, error) {
	r, err := region.Open(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return r.Snapshot()
}

// width is what the table fits in.
const width = 80

// table is the state for people: one line for each device of each lgpu.
func table(states []state) string {
	if len(states) == 0 {
		return "no logical GPUs; to start one: lgpu run --memory 8GiB --compute 25 -- COMMAND\n"
	}
	var b strings.Builder
	row := func(name, device, used, limit, share, limitShare, pids string) {
		line := fmt.Sprintf("%-18s %-12s %9s %9s %7s %5s  %s", name, device, used, limit, share, limitShare, pids)
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	row("LGPU", "DEVICE", "MEMORY", "LIMIT", "COMPUTE", "CAP", "PIDS")
	for _, s := range states {
		name, pids := s.Name, pidList(s.Clients, width-66)
		if name == "" {
			name = "-"
		}
		if len(name) > 18 {
			name = name[:17] + "…"
		}
		for _, d := range s.Devices {
			limit, share, limitShare := "-", "-", "-"
			if d.Memory != region.NoLimit {
				limit = units.FormatSize(d.Memory)
			}
			if d.Compute < region.FullCompute {
				share = fmt.Sprintf("%.1f%%", float64(d.Share)/100)
				limitShare = units.FormatPercent(d.Compute) + "%"
			}
			row(name, gpu.UUID(d.UUID).String()[:12], units.FormatSize(d.Used), limit, share, limitShare, pids)
			name, pids = "", ""
		}
	}
	return b.String()
}

// pidList writes as many pids as fit, and how many more there are.
func pidList(clients []region.ClientState, room int) string {
	var text string
	for i, c := range clients {
		next := strconv.Itoa(c.PID)
		if i > 0 {
			next = text + "," + next
		}
		more := ""
		if left := len(clients) - i - 1; left > 0 {
			more = fmt.Sprintf(",+%d", left)
		}
		if i > 0 && len(next)+len(more) > room {
			return fmt.Sprintf("%s,+%d", text, len(clients)-i)
		}
		text = next
	}
	return text
}

// The JSON of lgpu ps --json. docs/cli.md promises these names; null is "not limited", and what is not limited is not
// measured.
type (
	jsonDocument struct {
		LGPUs []jsonLGPU `json:"lgpus"`
	}
	jsonLGPU struct {
		Name       string        `json:"name"`
		ID         string        `json:"id"`
		Region     string        `json:"region"`
		Created    time.Time     `json:"created"`
		HostMemory jsonAmount    `json:"host_memory"`
		Devices    []jsonDevice  `json:"devices"`
		Processes  []jsonProcess `json:"processes"`
	}
	jsonAmount struct {
		Used  uint64  `json:"used"`
		Limit *uint64 `json:"limit"`
	}
	jsonMemory struct {
		jsonAmount
		Peak     uint64 `json:"peak"`
		Physical uint64 `json:"physical"`
	}
	jsonCompute struct {
		Share    *float64 `json:"share"`
		Cap      *float64 `json:"cap"`
		Units    *uint32  `json:"units"`
		Busy     float64  `json:"busy_seconds"`
		Launches uint64   `json:"launches"`
	}
	jsonDevice struct {
		UUID    string      `json:"uuid"`
		Memory  jsonMemory  `json:"memory"`
		Compute jsonCompute `json:"compute"`
	}
	jsonProcess struct {
		PID        int      `json:"pid"`
		Command    string   `json:"command"`
		HostMemory uint64   `json:"host_memory"`
		Memory     []uint64 `json:"memory"`
	}
)

func document(states []state) jsonDocument {
	doc := jsonDocument{LGPUs: []jsonLGPU{}}
	for _, s := range states {
		l := jsonLGPU{
			Name: s.Name, ID: fmt.Sprintf("%016x", s.ID), Region: s.path, Created: s.Created.UTC(),
			HostMemory: amount(s.Host, s.HostLimit), Devices: []jsonDevice{}, Processes: []jsonProcess{},
		}
		for _, d := range s.Devices {
			j := jsonDevice{
				UUID:    gpu.UUID(d.UUID).String(),
				Memory:  jsonMemory{jsonAmount: amount(d.Used, d.Memory), Peak: d.Peak, Physical: d.Physical},
				Compute: jsonCompute{Busy: d.Busy.Seconds(), Launches: d.Launches},
			}
			if d.Compute < region.FullCompute {
				share, limit := float64(d.Share)/100, float64(d.Compute)/100
				j.Compute.Share, j.Compute.Cap = &share, &limit
			}
			if d.Units != 0 {
				j.Compute.Units = &d.Units
			}
			l.Devices = append(l.Devices, j)
		}
		for _, c := range s.Clients {
			l.Processes = append(l.Processes, jsonProcess{PID: c.PID, Command: c.Comm, HostMemory: c.Host, Memory: c.Memory})
		}
		doc.LGPUs = append(doc.LGPUs, l)
	}
	return doc
}

func amount(used, limit uint64) jsonAmount {
	if limit == region.NoLimit {
		return jsonAmount{Used: used}
	}
	return jsonAmount{Used: used, Limit: &limit}
}
