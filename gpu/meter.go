package gpu

// Turn is a time in which a device's hardware ran the work of one process, from one context switch to the next. A
// process that has no work is switched away from as soon as another one has some; while nobody else has, its turn goes on.
type Turn struct {
	PID        int   // as in Process
	Start, End int64 // ns of the device's clock
	// Unfinished: the turn had not ended when it was read, at End. It is there again the next time, with the same Start.
	Unfinished bool
}

// Meter says whose work a device ran when, as the hardware itself has noted it: nothing that a program claims or does
// changes that. One goroutine at a time may use it.
type Meter interface {
	// Turns appends to turns those that have ended since the call before, in order, and then the one that has not ended,
	// if it is known. Turns between which nothing was switched, and those of a Meter that is new, are not known. After
	// an error the Meter is of no use any more.
	Turns(turns []Turn) ([]Turn, error)
	// Close ends the use of the driver.
	Close() error
}
