// Command gen writes the C header of the policy's constants that the interposer goes by where there is no daemon.
package main

import (
	"log"
	"os"

	"github.com/lgpu/lgpu/cheader"
	"github.com/lgpu/lgpu/share"
)

var headers = []cheader.Header{{
	File: "alone/policy_gen.h", Source: "./share", License: "Apache-2.0", Prefix: "LGPU_POLICY_",
	About: "Times of the policy, in ns. Their meaning: share/defaults.go and share.Options.",
	Constants: []cheader.Constant{
		{Name: "SLICE", Value: share.DefaultSlice}, {Name: "QUANTUM", Value: share.DefaultQuantum},
		{Name: "BURST", Value: share.DefaultBurst}, {Name: "PROCESS_TURN", Value: share.ProcessTurn},
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
