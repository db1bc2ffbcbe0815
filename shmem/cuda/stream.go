package cuda

import "unsafe"

// StreamNonBlocking is the flag of streams that do not wait for the null stream.
const StreamNonBlocking = 1

// streams are the calls about streams, events and graphs.
type streams struct{ *library }

// StreamCreate makes a stream in the current context.
func (q *streams) StreamCreate(flags uint32) (uintptr, error) {
	var s uintptr
	err := q.call(cuStreamCreate, uintptr(unsafe.Pointer(&s)), uintptr(flags))
	return s, err
}

// StreamDestroy destroys a stream; its work goes on.
func (q *streams) StreamDestroy(s uintptr) error { return q.call(cuStreamDestroy, s) }

// StreamSynchronize waits for a stream's work.
func (q *streams) StreamSynchronize(s uintptr) error {
	return q.quick(cuStreamSynchronize, s)
}

// StreamQuery says whether a stream's work is done.
func (q *streams) StreamQuery(s uintptr) (bool, error) {
	return q.done(cuStreamQuery, s)
}

// StreamWaitEvent makes a stream's further work wait for an event.
func (q *streams) StreamWaitEvent(s, event uintptr) error {
	return q.call(cuStreamWaitEvent, s, event, 0)
}

// WriteValue64 writes a word in the order of a stream, after a fence for what came before.
func (q *streams) WriteValue64(s uintptr, address, value uint64) error {
	return q.quick(cuStreamWriteValue64, s, uintptr(address), uintptr(value), 0)
}

// WriteValue32 writes a half word in the order of a stream.
func (q *streams) WriteValue32(s uintptr, address uint64, value uint32) error {
	return q.quick(cuStreamWriteValue32, s, uintptr(address), uintptr(value), 0)
}

// Conditions of WaitValue64. Reached compares cyclically: the difference, as a signed number, is not negative.
const (
	WaitReached = 0
	WaitEqual   = 1
	WaitAnd     = 2
)

// WaitValue64 holds a stream until a word meets a condition. Nothing but that ends it.
func (q *streams) WaitValue64(s uintptr, address, value uint64, condition uint32) error {
	return q.quick(cuStreamWaitValue64, s, uintptr(address), uintptr(value), uintptr(condition))
}

// done makes a call that asks whether work is done.
func (q *streams) done(i int, handle uintptr) (bool, error) {
	switch r := q.result(i, handle); r {
	case Success:
		return true, nil
	case NotReady:
		return false, nil
	default:
		return false, q.fail(i, r)
	}
}

// EventWithoutTiming is the flag of events that only order work.
const EventWithoutTiming = 2

// EventCreate makes an event in the current context.
func (q *streams) EventCreate(flags uint32) (uintptr, error) {
	var e uintptr
	err := q.call(cuEventCreate, uintptr(unsafe.Pointer(&e)), uintptr(flags))
	return e, err
}

// EventRecord puts an event after a stream's work so far.
func (q *streams) EventRecord(e, s uintptr) error { return q.call(cuEventRecord, e, s) }

// EventQuery says whether the work before an event is done.
func (q *streams) EventQuery(e uintptr) (bool, error) {
	return q.done(cuEventQuery, e)
}

// EventSynchronize waits for the work before an event.
func (q *streams) EventSynchronize(e uintptr) error { return q.call(cuEventSynchronize, e) }

// EventDestroy destroys an event.
func (q *streams) EventDestroy(e uintptr) error { return q.call(cuEventDestroy, e) }

// Modes of capture.
const (
	CaptureGlobal      = 0
	CaptureThreadLocal = 1
	CaptureRelaxed     = 2
)

// BeginCapture records a stream's work instead of doing it.
func (q *streams) BeginCapture(s uintptr, mode uint32) error {
	return q.call(cuStreamBeginCapture, s, uintptr(mode))
}

// EndCapture returns the graph of what was recorded.
func (q *streams) EndCapture(s uintptr) (uintptr, error) {
	var g uintptr
	err := q.call(cuStreamEndCapture, s, uintptr(unsafe.Pointer(&g)))
	return g, err
}

// GraphInstantiate makes a graph ready to run.
func (q *streams) GraphInstantiate(graph uintptr) (uintptr, error) {
	var x uintptr
	err := q.call(cuGraphInstantiate, uintptr(unsafe.Pointer(&x)), graph, 0)
	return x, err
}

// GraphLaunch runs a graph in the order of a stream.
func (q *streams) GraphLaunch(exec, s uintptr) error { return q.call(cuGraphLaunch, exec, s) }

// GraphDestroy and GraphExecDestroy free a graph and its executable form.
func (q *streams) GraphDestroy(graph uintptr) error { return q.call(cuGraphDestroy, graph) }

// GraphExecDestroy frees a graph's executable form.
func (q *streams) GraphExecDestroy(exec uintptr) error { return q.call(cuGraphExecDestroy, exec) }

// ExchangeCaptureMode sets how the calling thread's calls relate to captures, and returns the previous mode. The
// goroutine must be bound to its thread.
func (q *streams) ExchangeCaptureMode(mode uint32) (uint32, error) {
	m := mode
	err := q.call(cuThreadExchangeStreamCaptureMode, uintptr(unsafe.Pointer(&m)))
	return m, err
}
