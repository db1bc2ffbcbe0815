package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/api/state"
	"github.com/lgpu/lgpu/internal/units"
)

func devicesCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "devices [--json]",
		Short: "Show the devices of this machine, and how they reach each other",
		Long: `Show the devices that the daemon manages: what they are, the NUMA node that is
nearest to each, whether it is well, and how it reaches the others, in the words
of nvidia-smi topo: NV18 is eighteen NVLinks; PIX one PCIe switch, PXB several,
PHB the host bridge, NODE the bridges of one NUMA node, SYS several nodes. With
--json also the driver, and the MIG profiles with their placements; the JSON is
described at https://github.com/lgpu/lgpu/blob/main/docs/json.md.

Exit status: 0; 1 if the daemon cannot be reached.`,
		Example: `  lgpu devices
  lgpu devices --json | jq '.devices[].inventory.numa'`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			return talk(c, toAsk, func(conn *api.Conn) error {
				s, err := conn.Snapshot(c.Context(), &api.SnapshotRequest{})
				if err != nil {
					return err
				}
				if asJSON {
					all := state.Of(s)
					return sayJSON(c.OutOrStdout(), deviceList{all.Version, all.Time, all.Devices})
				}
				return say(c.OutOrStdout(), deviceTable(s.GetDevices()))
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	socketFlag(c)
	return c
}

// deviceList is what lgpu devices --json prints: a part of the state.
type deviceList struct {
	Version int            `json:"version"`
	Time    time.Time      `json:"time"`
	Devices []state.Device `json:"devices"`
}

// deviceTable shows devices to people: one on a line, with a column for the way to each other.
func deviceTable(devices []*api.Device) string {
	if len(devices) == 0 {
		return "this machine has no device that lgpu can use; lgpu doctor says why\n"
	}
	rows := [][]string{{"DEVICE", "UUID", "NAME", "ARCH", "CC", "SMS", "MEMORY", "NUMA", "HEALTH"}}
	for _, d := range devices {
		rows[0] = append(rows[0], "TO "+d.GetOrdinal())
	}
	for _, d := range devices {
		about, numa, health := d.GetInventory(), "-", "well"
		if about != nil && about.Numa != nil {
			numa = fmt.Sprint(about.GetNuma())
		}
		if d.GetPartitioned() {
			health = "in MIG mode"
		}
		if d.GetFault() != "" {
			health = d.GetFault()
		}
		row := []string{d.GetOrdinal(), shorten(d.GetUuid(), deviceWidth), d.GetName(), dash(about.GetArchitecture()),
			dash(about.GetCapability()), fmt.Sprint(d.GetUnits()), units.FormatSize(d.GetMemoryTotal()), numa, health}
		for _, peer := range devices {
			row = append(row, wayTo(d, peer))
		}
		rows = append(rows, row)
	}
	return aligned(rows)
}

// wayTo is how a device reaches another.
func wayTo(d, peer *api.Device) string {
	for _, l := range d.GetInventory().GetLinks() {
		if l.GetPeer() != peer.GetUuid() {
			continue
		}
		if l.GetNvlinks() > 0 {
			return fmt.Sprint(l.GetPath(), l.GetNvlinks())
		}
		return l.GetPath()
	}
	return "-"
}

// dash stands for what is not known.
func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// aligned writes rows below each other, in columns that are as wide as what is in them.
func aligned(rows [][]string) string {
	wide := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			wide[i] = max(wide[i], len(cell))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			fmt.Fprintf(&line, "%-*s  ", wide[i], cell)
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}
