package cuda

import "unsafe"

// StreamNonBlocking is the flag of streams that do not wait for the null stream.
const StreamNonBlocking = 1

// StreamCreate makes a stream in the current context.
func (d *Driver) StreamCreate(flags uint32) (uintptr, error) {
	var s uintptr
	err := d.call(cuStreamCreate, uintptr(unsafe.Pointer(&s)), uintptr(flags))
	return s, err
}

// StreamCreatePriority makes a stream with a priority; lower numbers go first.
func (d *Driver) StreamCreatePriority(flags uint32, priority int) (uintptr, error) {
	var s uintptr
	err := d.call(cuStreamCreateWithPriority, uintptr(unsafe.Pointer(&s)), uintptr(flags), uintptr(priority))
	return s, err
}

// StreamDestroy destroys a stream; its work goes on.
func (d *Driver) StreamDestroy(s uintptr) error { return d.call(cuStreamDestroy, s) }

// StreamSynchronize waits for a stream's work.
func (d *Driver) StreamSynchronize(s uintptr) error {
	if r := d.result(cuStreamSynchronize, s); r != Success {
		return d.fail(cuStreamSynchronize, r)
	}
	return nil
}

// StreamQuery says whether a stream's work is done.
func (d *Driver) StreamQuery(s uintptr) (bool, error) {
	switch r := d.result(cuStreamQuery, s); r {
	case Success:
		return true, nil
	case NotReady:
		return false, nil
	default:
		return false, d.fail(cuStreamQuery, r)
	}
}

// StreamWaitEvent makes a stream's further work wait for an event.
func (d *Driver) StreamWaitEvent(s, event uintptr) error {
	return d.call(cuStreamWaitEvent, s, event, 0)
}

// Capturing says whether a stream's work is being captured into a graph.
func (d *Driver) Capturing(s uintptr) (bool, error) {
	var status int32
	err := d.call(cuStreamIsCapturing, s, uintptr(unsafe.Pointer(&status)))
	return status != 0, err
}

// WriteValue64 writes a word in the order of a stream, after a fence for what came before.
func (d *Driver) WriteValue64(s uintptr, address, value uint64) error {
	if r := d.result(cuStreamWriteValue64, s, uintptr(address), uintptr(value), 0); r != Success {
		return d.fail(cuStreamWriteValue64, r)
	}
	return nil
}

// WriteValue32 writes a half word in the order of a stream.
func (d *Driver) WriteValue32(s uintptr, address uint64, value uint32) error {
	if r := d.result(cuStreamWriteValue32, s, uintptr(address), uintptr(value), 0); r != Success {
		return d.fail(cuStreamWriteValue32, r)
	}
	return nil
}

// Conditions of WaitValue64. Reached compares cyclically: the difference, as a signed number, is not negative.
const (
	WaitReached = 0
	WaitEqual   = 1
	WaitAnd     = 2
)

// WaitValue64 holds a stream until a word meets a condition. Nothing but that ends it.
func (d *Driver) WaitValue64(s uintptr, address, value uint64, condition uint32) error {
	if r := d.result(cuStreamWaitValue64, s, uintptr(address), uintptr(value), uintptr(condition)); r != Success {
		return d.fail(cuStreamWaitValue64, r)
	}
	return nil
}

// EventWithoutTiming is the flag of events that only order work.
const EventWithoutTiming = 2

// EventCreate makes an event in the current context.
func (d *Driver) EventCreate(flags uint32) (uintptr, error) {
	var e uintptr
	err := d.call(cuEventCreate, uintptr(unsafe.Pointer(&e)), uintptr(flags))
	return e, err
}

// EventRecord puts an event behind a stream's work so far.
func (d *Driver) EventRecord(e, s uintptr) error { return d.call(cuEventRecord, e, s) }

// EventQuery says whether the work before an event is done.
func (d *Driver) EventQuery(e uintptr) (bool, error) {
	switch r := d.result(cuEventQuery, e); r {
	case Success:
		return true, nil
	case NotReady:
		return false, nil
	default:
		return false, d.fail(cuEventQuery, r)
	}
}

// EventSynchronize waits for the work before an event.
func (d *Driver) EventSynchronize(e uintptr) error { return d.call(cuEventSynchronize, e) }

// EventElapsed is the time between two events in milliseconds.
func (d *Driver) EventElapsed(from, to uintptr) (float32, error) {
	var ms float32
	err := d.call(cuEventElapsedTime, uintptr(unsafe.Pointer(&ms)), from, to)
	return ms, err
}

// EventDestroy destroys an event.
func (d *Driver) EventDestroy(e uintptr) error { return d.call(cuEventDestroy, e) }

// Modes of capture.
const (
	CaptureGlobal      = 0
	CaptureThreadLocal = 1
	CaptureRelaxed     = 2
)

// BeginCapture records a stream's work instead of doing it.
func (d *Driver) BeginCapture(s uintptr, mode uint32) error {
	return d.call(cuStreamBeginCapture, s, uintptr(mode))
}

// EndCapture returns the graph of what was recorded.
func (d *Driver) EndCapture(s uintptr) (uintptr, error) {
	var g uintptr
	err := d.call(cuStreamEndCapture, s, uintptr(unsafe.Pointer(&g)))
	return g, err
}

// GraphInstantiate makes a graph ready to run.
func (d *Driver) GraphInstantiate(graph uintptr) (uintptr, error) {
	var x uintptr
	err := d.call(cuGraphInstantiate, uintptr(unsafe.Pointer(&x)), graph, 0)
	return x, err
}

// GraphLaunch runs a graph in the order of a stream.
func (d *Driver) GraphLaunch(exec, s uintptr) error { return d.call(cuGraphLaunch, exec, s) }

// GraphDestroy and GraphExecDestroy free a graph and its executable form.
func (d *Driver) GraphDestroy(graph uintptr) error { return d.call(cuGraphDestroy, graph) }

// GraphExecDestroy frees a graph's executable form.
func (d *Driver) GraphExecDestroy(exec uintptr) error { return d.call(cuGraphExecDestroy, exec) }

// ExchangeCaptureMode sets how the calling thread's calls relate to captures, and returns what it was. The goroutine must be
// bound to its thread.
func (d *Driver) ExchangeCaptureMode(mode uint32) (uint32, error) {
	m := mode
	err := d.call(cuThreadExchangeStreamCaptureMode, uintptr(unsafe.Pointer(&m)))
	return m, err
}
