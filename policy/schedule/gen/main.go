// Command gen writes the C header of the policy's constants that the interposer goes by where there is no daemon.
package main

import (
	"log"
	"os"

	"github.com/lgpu/lgpu/internal/cheader"
	"github.com/lgpu/lgpu/policy/schedule"
)

var headers = []cheader.Header{{
	File: "alone/policy_gen.h", Source: "./policy/schedule", License: "Apache-2.0", Prefix: "LGPU_POLICY_",
	About: "Times of the policy, in ns. Their meaning: policy/schedule/defaults.go, and schedule.Options.",
	Constants: []cheader.Constant{
		{Name: "SLICE", Value: schedule.DefaultSlice}, {Name: "QUANTUM", Value: schedule.DefaultQuantum},
		{Name: "BURST", Value: schedule.DefaultBurst}, {Name: "PROCESS_TURN", Value: schedule.ProcessTurn},
	},
}}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: gen FOLDER")
	}
	if err := cheader.Write(os.Args[1], headers); err != nil {
		log.Fatal(err)
	}
}
