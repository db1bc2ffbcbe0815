package hca

import "context"

// Fabric is how devices reach each other: NewLocal, NewTCP, or Join of several.
type Fabric interface {
	// attach makes the device reachable and says under which address; it may be asked for one.
	attach(d *Device, address string) (string, error)
	// detach ends that, and everything that others have running on the device.
	detach(d *Device)
	// dial makes a connection between a queue and the endpoint at the other side; errNotHere when the address is not
	// one of this fabric.
	dial(ctx context.Context, q *Queue, remote Endpoint) (link, error)
}

// link carries a queue's requests to the other side. The engine's goroutine uses it.
type link interface {
	// submit begins a part of a work request, or says that there is no room now. A part that was begun ends with a call
	// of work.partDone, at once or by another goroutine.
	submit(p part) bool
	// flush sends what was begun.
	flush()
	// close ends the connection. No part ends after it has returned.
	close()
}
