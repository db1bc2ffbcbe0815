package wire

import (
	"errors"
	"os"
)

// ErrGone is returned when the program that memory or a function belongs to has ended.
var ErrGone = errors.New("wire: the program is gone")

// Lifetime are the notices that a Driver gets about its process.
type Lifetime interface {
	// ThreadExit says that the thread with this number (Call.Thread) makes no more calls.
	ThreadExit(thread uint64)
	// Close says that the process has ended, however it did. No call is running any more and none follows. Everything
	// the process held is to be freed.
	Close()
}

// Peer is the process on the other side.
type Peer struct {
	PID, UID, GID int // as the kernel gave them (SO_PEERCRED), in this process's namespaces
	Host          Host
}

// Host is what the hardware may ask of a program outside of its calls; the program's service thread serves one request
// at a time. Methods may be called concurrently and block until served; they return ErrGone when the program has ended.
type Host interface {
	// Invoke runs a function of the program. For HostFunction fn is called with a, for StreamCallback with a (the
	// stream), b (a CUresult) and c (the user's pointer). After ParkService nothing may be asked until the program has
	// been unlocked or has connected anew.
	Invoke(kind InvokeKind, fn, a, b, c HostAddr) error
	// ReadHost and WriteHost copy from and to the program's memory. A stray address is the program's segmentation
	// fault.
	ReadHost(addr HostAddr, p []byte) error
	WriteHost(addr HostAddr, p []byte) error
	// Gone is closed when the program has ended: calls that wait for it return then.
	Gone() <-chan struct{}
}

// InvokeKind is the kind of function that Host.Invoke calls.
type InvokeKind uint64

// The kinds of function.
const (
	HostFunction   InvokeKind = 1 // void fn(void *userData)
	StreamCallback InvokeKind = 2 // void fn(CUstream, CUresult, void *userData)
	ParkService    InvokeKind = 3 // no function: the service thread answers, and then waits until the program is unlocked
)

// Call is one call in progress. It belongs to the method it is given to and must not be used after that returns.
type Call struct {
	// Context is the calling thread's current context as the client has it, 0 for none. It is not validated.
	Context CUcontext
	// Thread tells the threads of one process apart; it is never reused within a process.
	Thread uint64
	// PerThread is set when a call without a stream parameter was made in its per-thread-default-stream form.
	PerThread bool

	memory   memory
	received *os.File
	sent     *os.File
	gone     <-chan struct{}
}

// memory reaches the program's memory while its thread waits.
type memory interface {
	read(addr HostAddr, p []byte) error
	write(addr HostAddr, p []byte) error
	print(pieces []byte) error
}

// NewCall returns a call outside of any connection, for tests of a Driver. host serves ReadHost and WriteHost and says
// when the program is gone; it may be nil.
func NewCall(ctx CUcontext, thread uint64, host Host) *Call {
	c := &Call{Context: ctx, Thread: thread}
	if host != nil {
		c.memory, c.gone = hostMemory{host}, host.Gone()
	}
	return c
}

type hostMemory struct{ h Host }

func (m hostMemory) read(addr HostAddr, p []byte) error { return m.h.ReadHost(addr, p) }
func (m hostMemory) print(pieces []byte) error {
	if o, ok := m.h.(interface{ Print([]byte) error }); ok {
		return o.Print(pieces)
	}
	return ErrGone
}
func (m hostMemory) write(addr HostAddr, p []byte) error { return m.h.WriteHost(addr, p) }

// ReadHost copies from the program's memory, with the calling thread's help. A stray address is the program's own
// segmentation fault, as with the real driver. The error is ErrGone.
func (c *Call) ReadHost(addr HostAddr, p []byte) error {
	if c.memory == nil {
		return ErrGone
	}
	return c.memory.read(addr, p)
}

// WriteHost copies into the program's memory, with the calling thread's help. The error is ErrGone.
func (c *Call) WriteHost(addr HostAddr, p []byte) error {
	if c.memory == nil {
		return ErrGone
	}
	return c.memory.write(addr, p)
}

// Print writes pieces of text, as package ptx makes them, to the program's standard output, with the calling thread's
// help. The error is ErrGone.
func (c *Call) Print(pieces []byte) error {
	if c.memory == nil {
		return ErrGone
	}
	return c.memory.print(pieces)
}

// Gone is closed when the program has ended: a call that waits for something else stops then and returns any error.
// It is nil, which blocks for ever, for a call made by NewCall without a host.
func (c *Call) Gone() <-chan struct{} { return c.gone }

// TakeFile returns the descriptor that came with the call, and the caller owns it then; nil if none came.
func (c *Call) TakeFile() *os.File {
	f := c.received
	c.received = nil
	return f
}

// SetFile gives the call a descriptor as if it had come with it, for tests of a Driver.
func (c *Call) SetFile(f *os.File) { c.received = f }

// GiveFile sends a descriptor with the reply and closes f when it is sent. It is not sent with an error.
func (c *Call) GiveFile(f *os.File) {
	if c.sent != nil {
		c.sent.Close()
	}
	c.sent = f
}

// GivenFile returns what GiveFile was given, and the caller owns it then, for tests of a Driver.
func (c *Call) GivenFile() *os.File {
	f := c.sent
	c.sent = nil
	return f
}

// release closes descriptors that no call has received.
func (c *Call) release() {
	if c.received != nil {
		c.received.Close()
		c.received = nil
	}
	if c.sent != nil {
		c.sent.Close()
		c.sent = nil
	}
}
