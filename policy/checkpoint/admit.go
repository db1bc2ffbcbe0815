package checkpoint

import (
	"errors"
	"fmt"

	"github.com/lgpu/lgpu/internal/units"
)

// Hindrance is something that a program has and that does not fit into an image, since others have a part in it or the
// driver cannot give it up.
type Hindrance int

// The hindrances.
const (
	Oversubscribed Hindrance = iota // managed memory beyond the device's
	MPS
	MIG
	IPC           // memory or events given to other processes, or theirs
	Imported      // handles of memory from other processes
	SymmetricHeap // a PE of an lshmem job
	Multicast
	IOURing
	OpenFile    // a file, pipe or socket whose other end is not the program's
	Socket      // of the network, which neither leads out nor can be written here
	Contained   // in a mount namespace that nobody makes anew
	Namespace   // in a namespace of another kind
	Session     // of which the PID namespace knows nothing
	Traced      // by a debugger
	DeviceFiles // open in a process that does not use CUDA
	hindrances
)

var hindranceTexts = [hindrances]struct{ what, advice string }{
	Oversubscribed: {"has managed memory beyond its device's", "let it use no more than there is"},
	MPS:            {"is a client of MPS", "start it without --spatial"},
	MIG:            {"is on a MIG instance", "give it a whole GPU"},
	IPC:            {"shares memory or events by CUDA IPC", "end the processes that it shares them with"},
	Imported:       {"has memory handles of another process", "end the process that they come from"},
	SymmetricHeap:  {"is a PE of an lshmem job", "checkpoint at a point where the job has ended"},
	Multicast:      {"has multicast objects", "let it use none (NCCL_NVLS_ENABLE=0)"},
	IOURing:        {"uses io_uring", "let it use none"},
	OpenFile:       {"has a file, pipe or socket that leads out of it", "close it"},
	Contained:      {"is in a mount namespace of its own", "start it as root, or with lgpu run --contain=off"},
	Namespace:      {"is in a namespace of its own", "start it outside of containers"},
	Session:        {"is in a session that its PID namespace does not know", "start it with: setsid lgpu run"},
	Traced:         {"is traced by another process", "end that, such as a debugger"},
	Socket: {"has a socket of a network (TCP, UDP and others), of which CRIU before 4.2 makes no image with this kernel",
		"install CRIU 4.2 or newer"},
	DeviceFiles: {"has devices open, but not for CUDA, as workers have that are forked after their parent has begun to use a GPU",
		"start such workers by spawn or forkserver, or before that"},
}

// String says what a program has or is.
func (h Hindrance) String() string {
	if h < 0 || h >= hindrances {
		return fmt.Sprintf("hindrance %d", int(h))
	}
	return hindranceTexts[h].what
}

// Found is a hindrance of a process.
type Found struct {
	Process   int
	Hindrance Hindrance
	Name      string // of what it is, such as a path; may be empty
}

// Room is what a move takes of something, in bytes, and what there is of it.
type Room struct {
	Of           string // such as "host memory"
	Needed, Free uint64
}

// ErrRefused is wrapped by what stands in the way of a move that has not begun.
var ErrRefused = errors.New("refused")

// Admit says all that stands in the way of a move, before anything is locked; nil if nothing does. threads are those of the
// numbers given for processes that are threads, of which a driver would take hold as well.
func Admit(threads []int, found []Found, rooms []Room) error {
	var why []error
	for _, id := range threads {
		why = append(why, fmt.Errorf("%w: %d is a thread; name its process", ErrRefused, id))
	}
	for _, f := range found {
		name := ""
		if f.Name != "" {
			name = " (" + f.Name + ")"
		}
		advice := "there is no way"
		if f.Hindrance >= 0 && f.Hindrance < hindrances {
			advice = hindranceTexts[f.Hindrance].advice
		}
		why = append(why, fmt.Errorf("%w: process %d %s%s; %s", ErrRefused, f.Process, f.Hindrance, name, advice))
	}
	for _, r := range rooms {
		if r.Needed > r.Free {
			why = append(why, fmt.Errorf("%w: it takes %s of %s, and %s is free; make room for %s more", ErrRefused,
				units.FormatSize(r.Needed), r.Of, units.FormatSize(r.Free), units.FormatSize(r.Needed-r.Free)))
		}
	}
	return errors.Join(why...)
}
