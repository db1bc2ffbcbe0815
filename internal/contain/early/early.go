// Package early makes a process that was started to become a contained program (contain.Plan) that program, before it
// initialises what lgpu has beside: the stage needs a small part of it, and a program waits for each contained start.
// Importing it is all:
//
//	import _ "github.com/lgpu/lgpu/internal/contain/early"
//
// Go initialises packages in the order of their paths once those that they import are; so this one is before net, gRPC,
// Prometheus, and all that imports one of them. It would be right in any order.
package early

import (
	"os"

	"github.com/lgpu/lgpu/internal/contain"
)

func init() {
	if !contain.Staged() {
		return
	}
	if contain.Stage() != nil { // who started it has been told
		os.Exit(1)
	}
	os.Exit(0)
}
