package daemon

import (
	"log/slog"
	"os/exec"
	"time"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/limits"
)

// Config says how a daemon works. The zero value is a daemon of this machine's GPUs in the user's runtime folder that
// never leaves by itself.
type Config struct {
	// Dir is the runtime folder: sockets, lock and mount are there. The default is rundir.Dir.
	Dir string
	// State is the file that survives the daemon; the default is state.db in Dir.
	State string
	// Version is what Snapshot shows as the daemon's version.
	Version string
	// Log is where the daemon says what happens; the default discards it.
	Log *slog.Logger
	// SimCommand becomes the hardware of a software GPU (sim.StartOptions.Command). Without it an Attach with a
	// shape joins hardware that is running already, or fails.
	SimCommand []string
	// Inventories are the sources of devices beside software GPUs; nil is the GPUs of NVIDIA's driver, where there is
	// one. The daemon closes them.
	Inventories []gpu.Inventory
	// Mount says whether the tree of limits is mounted at tree in Dir; the default is MountAuto.
	Mount Mount
	// Police says what happens to processes that use what is not theirs; the default is PoliceReport.
	Police Policy
	// PolicePeriod is the time between two looks at the devices; the default is one second.
	PolicePeriod time.Duration
	// StopGrace is the time between SIGTERM and SIGKILL where Police stops processes; the default is 5 s.
	StopGrace time.Duration
	// Idle ends Run after so long without lgpu in use, client or user of the API; 0 is never.
	Idle time.Duration
	// Reattach is how long temporary lgpus of launchers and clients that were there before a restart are kept for them
	// to come back; the default is 10 s.
	Reattach time.Duration
	// Slice is the wished length of a slice where several lgpus share a device, 2 to 50 ms; 0 is the policy's default.
	Slice time.Duration
	// NoGuests keeps lgpus from using a device beside the one that has it, also where the hardware could do that.
	NoGuests bool
	// Rights say who may do and see what. Their Owner is this process's user, whatever it says here, and what their quota
	// leaves out is limits.DefaultQuota's.
	Rights limits.Rights
	// Containers says how lgpus are offered to container runtimes; the zero value is not at all.
	Containers Containers
	// Places are where users' programs run who do not say where.
	Places Places
	// Patience is how long a client may take to do what it was told about resident memory, before that is reported, and
	// with PoliceStop and beyond its process ended; the default is a minute.
	Patience time.Duration
	// Copies is the folder for what has left devices and finds no room in host memory; the default is copies beside State.
	// It is created.
	Copies string
	// Dmem is the folder of the cgroups by which the kernel bounds the device memory of lgpus, such as /sys/fs/cgroup/lgpu;
	// empty: it does not. Launchers are moved into them.
	Dmem string
	// Claim has the daemon manage a device of the machine only while an lgpu of its own uses it, and give it to none while
	// a system daemon runs or another daemon that claims has it.
	Claim bool
	// System is the socket of the system's daemon, for Claim.
	System string
	// CheckpointHelper makes the command of a process that calls the checkpoint API of the driver (checkpoint/driver), for
	// the software GPU at a socket, or with "" for the machine's devices; nil: there is none, and no lgpu can be released.
	CheckpointHelper func(sim string) (*exec.Cmd, error)
}

// Mount says whether the tree of limits is shown as a file system.
type Mount string

// Ways to mount. A mount that fails is an event with MountAuto and ends the daemon's start with MountOn.
const (
	MountAuto Mount = "auto"
	MountOn   Mount = "on"
	MountOff  Mount = "off"
)

// Policy is what the daemon does about processes that use what is not theirs. Each includes the one before.
type Policy string

// Policies. None ever stops the daemon, its parent or process 1.
const (
	PoliceReport        Policy = "report"         // events, log and metrics only
	PoliceStop          Policy = "stop"           // stops clients of an lgpu that holds more than its limit
	PoliceStopStrangers Policy = "stop-strangers" // also processes on a managed device that belong to no lgpu
)
