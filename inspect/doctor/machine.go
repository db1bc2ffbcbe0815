package doctor

import (
	"debug/elf"

	"github.com/lgpu/lgpu/gpu"
)

// Machine is what Look found out. Errors are findings too: a nil error means that the thing was tried and works.
type Machine struct {
	Version string // of this lgpu
	User    int    // effective user id

	Driver  Driver
	Nodes   []Node
	MPS     MPS
	Kernel  Kernel
	CGroup  CGroup
	Dmem    Dmem
	FUSE    FUSE
	Library Library
	Contain Contain
	CRIU    CRIU
	Host    Host
	Runtime Runtime
	Daemon  Daemon

	Container   string // what runs this container, "" outside of one
	ForeignPIDs bool   // this is not the machine's own PID namespace
	Environment []string
	LDPreload   string // contents of /etc/ld.so.preload
	Sim         error  // of starting a software GPU and asking it for its devices
	Programs    []Program
}

// Driver is NVIDIA's driver.
type Driver struct {
	Module  string // version of the kernel module, "" where none is loaded
	Version string // as NVML has it
	NVML    string // version of NVML
	Err     error  // of loading NVML; wraps nvidia.ErrNoDriver where there is none
	Devices []Device
}

// Mode is NVIDIA's compute mode.
type Mode int

// Compute modes, as NVML numbers them.
const (
	ModeDefault          Mode = 0
	ModeExclusiveThread  Mode = 1
	ModeProhibited       Mode = 2
	ModeExclusiveProcess Mode = 3
	ModeUnknown          Mode = -1
)

// Switch is a setting of a device.
type Switch int

// States of a Switch.
const (
	Unknown Switch = iota // the device has no such setting, or does not say
	Off
	On
)

// Device is one GPU, as far as its settings matter.
type Device struct {
	Index              int
	Name               string
	Err                error // it cannot be asked
	Persistence        Switch
	Compute            Mode
	MIG, MIGAfterReset Switch
	Minor              int // of /dev/nvidiaMINOR; -1 where the driver does not say
	UUID               gpu.UUID
	Switches           Switches
	About              *gpu.Description // nil: it could not be asked
}

// Switches says whether the driver's log of a device's context switches can be read.
type Switches struct {
	Err     error // of reading it
	OwnUser bool  // it has the programs of this user only
}

// Node is a device file.
type Node struct {
	Path string
	Err  error // fs.ErrNotExist, fs.ErrPermission for reading and writing …
}

// MPS is NVIDIA's multi-process service.
type MPS struct {
	Control string // path of nvidia-cuda-mps-control, "" if there is none
	Foreign string // control pipe of a daemon that lgpu did not start, "" if there is none
}

// Kernel is the result of trying each feature.
type Kernel struct {
	Release     string
	PIDFD       error // pidfd_open
	FutureWrite error // memfd with F_SEAL_FUTURE_WRITE
	PeerPIDFD   error // SO_PEERPIDFD
}

// CGroup says which hierarchies are mounted.
type CGroup struct {
	V2 string // where, "" if it is not
	V1 bool
}

// Dmem is what there is for bounds of device memory by the kernel (the controller dmem).
type Dmem struct {
	Regions []string // that drivers have made known, such as drm/0000:03:00.0/vram0
	Asked   string   // the folder that lgpud.conf names for lgpus' cgroups, "" if none
}

// FUSE is what the tree of limits needs to be seen as files.
type FUSE struct {
	Device error  // of opening /dev/fuse
	Mount  string // path of fusermount3, which mounts for users other than root
}

// Library is what lgpu puts into programs.
type Library struct {
	Interposer string // path of liblgpu.so
	Err        error  // of installing it
	Preload    error  // of finding it in a program started with LD_PRELOAD
	LibC       string // such as "glibc 2.36"
}

// Contain says whether programs can be contained (lgpu run --contain).
type Contain struct {
	Tried  bool
	Err    error  // of building a namespace
	Forbid string // the setting that forbids this user a namespace, "" where none is known
}

// Host is what copies of memory that has left its device need of the host.
type Host struct {
	Memory    uint64 // of the machine, bytes; 0 if it is not known
	Available uint64 // of that, without swapping
	Locked    uint64 // most page-locked memory of a process of this user (RLIMIT_MEMLOCK), bytes; math.MaxUint64 is no limit
	Huge      string // chosen word of shmem_enabled: always, within_size, advise, never …; "" if the kernel has none
}

// Runtime is the folder of sockets and state.
type Runtime struct {
	Dir  string
	Err  error // of using it
	Tree error // of looking at Dir/tree; syscall.ENOTCONN is a mount that lost its daemon
}

// Daemon is what answered at the daemon's socket.
type Daemon struct {
	Socket  string
	Version string
	PID     int
	// Budget and Copies are of host memory for copies of what has left devices: what they may take, and take.
	Budget, Copies uint64
	// Err is fs.ErrNotExist or syscall.ECONNREFUSED where none runs, fs.ErrPermission where this user may not ask.
	Err error
	// Shared says of each of its devices why lgpus take turns there, and cannot be guests beside each other.
	Shared []Shared
}

// Shared is how lgpus share a device.
type Shared struct {
	Device string // short UUID
	Turns  string // why they take turns; empty if they can be guests
}

// Program is an executable file to be run in an lgpu.
type Program struct {
	Path        string
	Err         error // of reading it
	Script      string
	Interpreter string // the dynamic loader; "" for a static program
	Machine     elf.Machine
	Setuid      bool // or setgid, or with file capabilities: the loader ignores LD_PRELOAD
}
