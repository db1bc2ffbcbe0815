// Command gen writes the C headers of the types that the interposer shares with others: process/region_gen.h from
// package region and daemon/link_gen.h from package protocol.
package main

import (
	"log"
	"os"

	"github.com/lgpu/lgpu/internal/cheader"
	"github.com/lgpu/lgpu/tenant/protocol"
	"github.com/lgpu/lgpu/tenant/region"
)

var headers = []cheader.Header{
	{
		File: "process/region_gen.h", Source: "./tenant/region", License: "Apache-2.0", Prefix: "LGPU_",
		About: "Layout of the region that an lgpu shares with its processes. Meaning and\n// units of every field: tenant/region/layout.go.",
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
		File: "daemon/link_gen.h", Source: "./tenant/region", License: "Apache-2.0", Prefix: "LGPU_LINK_",
		About: "What the interposer and the daemon say to each other. Meaning of every kind,\n// flag and field: tenant/protocol/protocol.go.",
		Constants: []cheader.Constant{
			{Name: "VERSION", Value: protocol.Version}, {Name: "LINGER", Value: protocol.Linger},
			{Name: "PATIENCE", Value: protocol.Patience},
			{Name: "BEAT", Value: protocol.Beat}, {Name: "SILENCE", Value: protocol.Silence},
			{Name: "FOREVER", Value: protocol.Forever}, {Name: "MAX_TEXT", Value: protocol.MaxText},
			{Name: "HELLO", Value: uint64(protocol.Hello)}, {Name: "GATE", Value: uint64(protocol.Gate)},
			{Name: "WANT", Value: uint64(protocol.Want)},
			{Name: "CLOSED", Value: uint64(protocol.Closed)}, {Name: "NEED", Value: uint64(protocol.Need)},
			{Name: "WELCOME", Value: uint64(protocol.Welcome)},
			{Name: "REFUSE", Value: uint64(protocol.Refuse)}, {Name: "FREE", Value: uint64(protocol.Free)},
			{Name: "OPEN", Value: uint64(protocol.Open)},
			{Name: "CLOSE", Value: uint64(protocol.Close)}, {Name: "SEEP", Value: uint64(protocol.Seep)},
			{Name: "MEMORY", Value: uint64(protocol.Memory)}, {Name: "GONE", Value: uint64(protocol.Gone)},
			{Name: "SLICE", Value: uint64(protocol.Slice)}, {Name: "SLICED", Value: uint64(protocol.Sliced)},
			{Name: "FLAG_VIEW", Value: uint64(protocol.FlagView)},
			{Name: "FLAG_RECONNECT", Value: uint64(protocol.FlagReconnect)},
			{Name: "FLAG_WANTED", Value: uint64(protocol.FlagWanted)},
			{Name: "FLAG_WAITING", Value: uint64(protocol.FlagWaiting)},
			{Name: "FLAG_HOST", Value: uint64(protocol.FlagHost)}, {Name: "FLAG_RUNNING", Value: uint64(protocol.FlagRunning)},
			{Name: "FLAG_REFUSED", Value: uint64(protocol.FlagRefused)},
			{Name: "FLAG_PATIENT", Value: uint64(protocol.FlagPatient)},
			{Name: "FLAG_RESIDENT", Value: uint64(protocol.FlagResident)},
			{Name: "FLAG_PINNED", Value: uint64(protocol.FlagPinned)},
			{Name: "FLAG_MORE", Value: uint64(protocol.FlagMore)},
			{Name: "FLAG_NOTED", Value: uint64(protocol.FlagNoted)},
			{Name: "FLAG_MOVING", Value: uint64(protocol.FlagMoving)},
			{Name: "FLAG_FIXED", Value: uint64(protocol.FlagFixed)},
			{Name: "FLAG_AS_OF", Value: uint64(protocol.FlagAsOf)},
			{Name: "KEEP", Value: uint64(protocol.Keep)}, {Name: "KEPT", Value: uint64(protocol.Kept)},
			{Name: "STORE", Value: uint64(protocol.Store)},
			{Name: "WHY_BUSY", Value: protocol.WhyBusy}, {Name: "WHY_CAPTURE", Value: protocol.WhyCapture},
			{Name: "WHY_FIXED", Value: protocol.WhyFixed}, {Name: "WHY_STORE", Value: protocol.WhyStore},
			{Name: "WHY_DRIVER", Value: protocol.WhyDriver}, {Name: "WHY_MEMORY", Value: protocol.WhyMemory},
			{Name: "WHY_BITS", Value: protocol.WhyBits},
			{Name: "FLAG_REJOIN", Value: uint64(protocol.FlagRejoin)},
			{Name: "HALT", Value: uint64(protocol.Halt)}, {Name: "HALTED", Value: uint64(protocol.Halted)},
			{Name: "PARK", Value: uint64(protocol.Park)}, {Name: "PARKED", Value: uint64(protocol.Parked)},
		},
		Types: []any{protocol.Message{}},
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
