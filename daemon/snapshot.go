package daemon

import (
	"time"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/limits"
)

// Snapshot is the state of the daemon at one moment: plain values that nobody changes afterwards.
type Snapshot struct {
	At          time.Time
	Daemon      Info
	Devices     []Device    // in the order of their index, software GPUs last
	Directories []Directory // parents before children, children by name; the first is the root
}

// Info says who answers.
type Info struct {
	Version  string
	PID      int
	Started  time.Time
	Dir      string // runtime folder
	Tree     string // where the tree of limits is mounted; empty if it is not
	Police   Policy
	Restarts uint64        // how often a daemon took over the state of one before
	Idle     time.Duration // how long it stays without use; 0 is for ever
	// HostBudget and HostCopies are bytes of host memory that copies of memory that has left devices may take, and take;
	// DiskCopies is what others take of disks.
	HostBudget, HostCopies, DiskCopies uint64

	// NotReady is why it does not serve programs: it has only begun, is about to end, or cannot write its state; empty if
	// it does.
	NotReady string
}

// Device is one device that the daemon manages.
type Device struct {
	gpu.Device        // its Key() is how lgpu files name it
	Mode       string // temporal or spatial
	Sim        string // shape of the software GPU; empty for hardware
	Healthy    bool
	Fault      string // what is wrong when not Healthy
	NoGuests   string // why no lgpu is a guest beside the one that has it; empty if they are

	MemoryUsed        uint64  // bytes, as the driver says: everybody's
	Utilisation       int     // percent of the last sample in which a kernel ran; -1 where the driver does not say
	MemoryUtilisation int     // percent of the last sample in which memory was moved; -1 where the driver does not say
	Power             *uint32 // milliwatts; nil where the driver does not say, as the next two
	Energy            *uint64 // millijoules since the driver's counter began
	Temperature       *int32  // °C
	// OtherEnergy is what went to no lgpu since the daemon first saw the device, in millijoules; nil where it has no
	// counter.
	OtherEnergy *uint64
	// About is what the device is like; nil where it could not be asked.
	About     *gpu.Description
	Processes []DeviceProcess
	Sampled   time.Time // when the driver was asked for these
}

// DeviceProcess is a process that the driver has on a device.
type DeviceProcess struct {
	PID         int
	UID         uint32
	Comm        string
	Memory      uint64 // bytes, as the driver says
	Utilisation int    // percent; -1 where the driver does not say
	Path        string // of the lgpu that it is a client of; empty for a stranger
}

// Kinds of directories.
const (
	KindGroup = "group" // may have children
	KindLgpu  = "lgpu"  // has or had processes; a leaf
)

// States of an lgpu, and of an lgpu on one device.
const (
	StateIdle     = "idle"     // nothing to do
	StateWaiting  = "waiting"  // has work and waits for its turn
	StateRunning  = "running"  // may use the device
	StateDraining = "draining" // its turn is over, its work not yet
	// Its memory has to leave the device, and has not yet; or has, as far as it can.
	StateSuspending = "suspending"
	StateSuspended  = "suspended"
	// Its programs have left the device wholly.
	StateReleased = "released"
	// Where not all memory fits: it has left the device for others, and it has no work; it is to be next, and its memory is
	// loaded ahead; its turn has come, and its memory comes; it cannot come back, as more stays there than leaves room for it.
	StateEvicted = "evicted"
	StateNext    = "next"
	StateMoving  = "moving"
	StateUnfit   = "unfit"
)

// States are all of them: what says more of what goes on comes later.
var States = []string{
	StateIdle, StateEvicted, StateSuspended, StateReleased, StateSuspending, StateWaiting, StateUnfit, StateNext, StateMoving,
	StateDraining, StateRunning,
}

// Directory is one of the tree: a group, or an lgpu.
type Directory struct {
	Path       string // from the root "/"
	Name       string // last part of Path; empty for the root
	ID         uint64
	Kind       string
	Persistent bool // stays without launcher and client
	UID, GID   uint32
	Created    time.Time
	State      string // the busiest of its Devices
	Gang       string // lgpus with the same gang name are scheduled together
	Cgroups    []string
	HostMax    limits.Bytes // of page-locked host memory, as asked for
	HostUsed   uint64
	// Overcommit and Suspend are its own memory.overcommit and memory.suspend.
	Overcommit, Suspend bool
	Devices             []DeviceUse
	Clients             []Client
	Launchers           []Launcher
}

// DeviceUse is what a group or an lgpu may use and uses of one device. For a group the used amounts are sums over its
// subtree.
type DeviceUse struct {
	Device    gpu.UUID
	Key       string // how lgpu files name the device
	Requested limits.Limits
	Effective limits.Effective
	Named     bool // the units have names: Effective.Bits says which

	MemoryUsed    uint64       // bytes
	MemoryPeak    uint64       // bytes, the most it ever held
	MemoryGranted limits.Bytes // that it may use now without asking the daemon
	Busy          time.Duration
	Launches      uint64
	Asked         uint32 // share of device time it is entitled to now, in hundredths of a percent
	Delivered     uint32 // share of device time over the last second, in hundredths of a percent
	Measured      bool   // Asked and Delivered are known, of a group those of all below it
	State         string
	Energy        *uint64 // millijoules since it was created; nil where the device has no counter
	Power         *uint32 // milliwatts, of the last seconds; nil likewise
	// Resident and Evicted are what of MemoryUsed is on the device, and what has left it; nil where nothing may. Of a
	// group, they are of the lgpus below it that have them.
	Resident, Evicted *uint64
	// Moved is what has left the device since the lgpu was made; nil likewise.
	Moved *Moved
	// ResidenceFailure is why memory that should leave the device, or come back, does not; empty if all is well.
	ResidenceFailure string
}

// Moved is how many bytes have left a device for lack of room, and how many of them were not copied, since the copy that
// there was still held. A tenant may write anything there; it tells of nobody but itself.
type Moved struct{ Evicted, Clean uint64 }

// Client is a process that uses an lgpu.
type Client struct {
	PID    int
	UID    uint32
	Comm   string
	Since  time.Time // when it registered
	Index  int       // its client index in the lgpu
	Linked bool      // it has a connection now; one that has not is about to find this daemon
	Host   uint64    // bytes of page-locked host memory
	Memory []uint64  // bytes, for each of the Directory's Devices
}

// Launcher is a process that holds an lgpu, such as lgpu run.
type Launcher struct {
	PID  int
	UID  uint32
	Comm string
}
