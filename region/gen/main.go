// Command gen writes the C headers of the types that the interposer shares with others: process/region_gen.h from
// package region and daemon/link_gen.h from package link.
package main

import (
	"log"
	"os"

	"github.com/lgpu/lgpu/cheader"
	"github.com/lgpu/lgpu/link"
	"github.com/lgpu/lgpu/region"
)

var headers = []cheader.Header{
	{
		File: "process/region_gen.h", Source: "./region", License: "Apache-2.0", Prefix: "LGPU_",
		About: "Layout of the region that an lgpu shares with its processes. Meaning and\n// units of every field: region/layout.go.",
		Constants: []cheader.Constant{
			{Name: "MAGIC", Value: region.Magic}, {Name: "VERSION", Value: uint64(region.Version)},
			{Name: "MAX_DEVICES", Value: region.MaxDevices},
			{Name: "MAX_CLIENTS", Value: region.MaxClients}, {Name: "WINDOWS", Value: region.Windows},
			{Name: "WINDOW_NANOS", Value: region.WindowNanos},
			{Name: "LIMITS_BYTES", Value: region.LimitsBytes}, {Name: "HAMI_BASE", Value: region.HAMiBase},
			{Name: "CLIENT_LOCK_OFFSET", Value: region.ClientLockOffset},
			{Name: "NO_LIMIT", Value: region.NoLimit}, {Name: "FULL_COMPUTE", Value: uint64(region.FullCompute)},
			{Name: "CLIENT_FREE", Value: uint64(region.ClientFree)},
			{Name: "CLIENT_LIVE", Value: uint64(region.ClientLive)},
			{Name: "TURN_MAGIC", Value: region.TurnMagic}, {Name: "TURN_ENTRIES", Value: region.MaxTurnEntries},
			{Name: "TURN_IDLE", Value: uint64(region.TurnIdle)},
			{Name: "TURN_WAITING", Value: uint64(region.TurnWaiting)},
			{Name: "TURN_GRANTED", Value: uint64(region.TurnGranted)},
		},
		Types: []any{
			region.DeviceLimits{}, region.Limits{}, region.Counter{}, region.Operation{}, region.Ledger{},
			region.Window{}, region.DeviceUsage{}, region.Client{}, region.Usage{}, region.TurnEntry{}, region.Turn{},
		},
		Align: map[string]uint64{"lgpu_counter": 16},
	},
	{
		File: "daemon/link_gen.h", Source: "./region", License: "Apache-2.0", Prefix: "LGPU_LINK_",
		About: "What the interposer and the daemon say to each other. Meaning of every kind,\n// flag and field: link/link.go.",
		Constants: []cheader.Constant{
			{Name: "VERSION", Value: link.Version}, {Name: "LINGER", Value: link.Linger},
			{Name: "BEAT", Value: link.Beat}, {Name: "SILENCE", Value: link.Silence},
			{Name: "FOREVER", Value: link.Forever}, {Name: "MAX_TEXT", Value: link.MaxText},
			{Name: "HELLO", Value: uint64(link.Hello)}, {Name: "GATE", Value: uint64(link.Gate)},
			{Name: "WANT", Value: uint64(link.Want)},
			{Name: "CLOSED", Value: uint64(link.Closed)}, {Name: "NEED", Value: uint64(link.Need)},
			{Name: "WELCOME", Value: uint64(link.Welcome)},
			{Name: "REFUSE", Value: uint64(link.Refuse)}, {Name: "FREE", Value: uint64(link.Free)},
			{Name: "OPEN", Value: uint64(link.Open)},
			{Name: "CLOSE", Value: uint64(link.Close)}, {Name: "SEEP", Value: uint64(link.Seep)},
			{Name: "MEMORY", Value: uint64(link.Memory)}, {Name: "GONE", Value: uint64(link.Gone)},
			{Name: "FLAG_VIEW", Value: uint64(link.FlagView)},
			{Name: "FLAG_RECONNECT", Value: uint64(link.FlagReconnect)},
			{Name: "FLAG_WANTED", Value: uint64(link.FlagWanted)},
			{Name: "FLAG_WAITING", Value: uint64(link.FlagWaiting)},
			{Name: "FLAG_HOST", Value: uint64(link.FlagHost)}, {Name: "FLAG_RUNNING", Value: uint64(link.FlagRunning)},
		},
		Types: []any{link.Message{}},
	},
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: gen FOLDER")
	}
	if err := cheader.Write(os.Args[1], headers); err != nil {
		log.Fatal(err)
	}
}
