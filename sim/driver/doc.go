// Package driver is the CUDA driver of the software GPU: contexts, memory, modules, streams, events and graphs of the
// connected processes, with the error codes and argument checks of the real one. The devices underneath are package hw.
//
// # Model
//
//	Driver   one for a machine; connects processes
//	Process  one connected client; owns contexts, allocations and handles, and implements the protocol's calls
//	context  an address space and a channel of one device, streams, modules
//	op       something a stream or a graph node does: a kernel, a copy, a fill, a host function, ...
//	work     an op that has been submitted: runs when the works it depends on have ended
//	stream   the tail of a chain of works; order between streams is nothing but more dependencies
//	graph    ops with edges; a launch turns them into works
//
// A kernel's fault ends everything its process has on that device: every call answers it until the process ends.
//
// Handles are numbers that the driver chooses; the kind of object is part of them, so that a stream given for an event
// is an error and not an accident. Device addresses are unique within a process. Host memory that devices reach is
// mapped on both sides at the client's address, so that pointers mean the same to the program and to its kernels.
//
// # Checkpoints
//
// A process that has no work can be written to an image in its program's memory and read from there by another Driver
// (image.go, save.go, load.go; the calls are in freeze.go). A new field of an object belongs into its record there, unless
// it follows from others: a test knows all fields.
//
// # Locks
//
// One lock, Driver.mu, guards all state of this package. The protocol's calls lock it; everything else expects it
// locked. There are two more: a context's output.mu guards what its kernels print and is locked last; Process.printing
// orders the output on its way to the program, and is locked first and until the program has printed. Order: Driver.mu
// before any lock of package hw. Callbacks of hw come with nothing locked and lock Driver.mu. Nothing waits for a
// device, a client or a file while Driver.mu is locked; wait unlocks it for that time.
package driver
