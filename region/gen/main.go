// Command gen writes the C headers of the types that the interposer shares with others: region.h from package region and
// link_gen.h from package link.
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
		File: "region.h", Source: "./region", Prefix: "LGPU_",
		About: "Layout of the region that an lgpu shares with its processes. Meaning and\n// units of every field: region/layout.go.",
		Constants: []cheader.Constant{
			{"MAGIC", region.Magic}, {"VERSION", uint64(region.Version)}, {"MAX_DEVICES", region.MaxDevices},
			{"MAX_CLIENTS", region.MaxClients}, {"WINDOWS", region.Windows}, {"WINDOW_NANOS", region.WindowNanos},
			{"LIMITS_BYTES", region.LimitsBytes}, {"HAMI_BASE", region.HAMiBase},
			{"CLIENT_LOCK_OFFSET", region.ClientLockOffset},
			{"NO_LIMIT", region.NoLimit}, {"FULL_COMPUTE", uint64(region.FullCompute)},
			{"CLIENT_FREE", uint64(region.ClientFree)}, {"CLIENT_LIVE", uint64(region.ClientLive)},
			{"TURN_MAGIC", region.TurnMagic}, {"MAX_SEATS", region.MaxSeats},
			{"SEAT_IDLE", uint64(region.SeatIdle)}, {"SEAT_WAITING", uint64(region.SeatWaiting)},
			{"SEAT_GRANTED", uint64(region.SeatGranted)},
		},
		Types: []any{
			region.DeviceLimits{}, region.Limits{}, region.Counter{}, region.Operation{}, region.Ledger{},
			region.Window{}, region.DeviceUsage{}, region.Client{}, region.Usage{}, region.Seat{}, region.Turn{},
		},
		Align: map[string]uint64{"lgpu_counter": 16},
	},
	{
		File: "link_gen.h", Source: "./region", Prefix: "LGPU_LINK_",
		About: "What the interposer and the daemon say to each other. Meaning of every kind,\n// flag and field: link/link.go.",
		Constants: []cheader.Constant{
			{"VERSION", link.Version}, {"LINGER", link.Linger}, {"FOREVER", link.Forever}, {"MAX_TEXT", link.MaxText},
			{"HELLO", uint64(link.Hello)}, {"GATE", uint64(link.Gate)}, {"WANT", uint64(link.Want)},
			{"CLOSED", uint64(link.Closed)}, {"NEED", uint64(link.Need)}, {"WELCOME", uint64(link.Welcome)},
			{"REFUSE", uint64(link.Refuse)}, {"FREE", uint64(link.Free)}, {"OPEN", uint64(link.Open)},
			{"CLOSE", uint64(link.Close)}, {"SEEP", uint64(link.Seep)}, {"MEMORY", uint64(link.Memory)},
			{"FLAG_VIEW", uint64(link.FlagView)}, {"FLAG_RECONNECT", uint64(link.FlagReconnect)},
			{"FLAG_WANTED", uint64(link.FlagWanted)}, {"FLAG_WAITING", uint64(link.FlagWaiting)},
			{"FLAG_HOST", uint64(link.FlagHost)}, {"FLAG_RUNNING", uint64(link.FlagRunning)},
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
