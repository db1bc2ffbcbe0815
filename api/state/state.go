// Package state is the state of a machine's lgpus as one JSON document, which is the same wherever it is shown: lgpu
// ps, lgpu show and lgpu top with --json, and the page's /api/state. docs/json.md is its reference, and a test
// compares the two.
//
//	s, err := conn.Snapshot(ctx, &api.SnapshotRequest{})
//	…
//	data, err := json.Marshal(state.Of(s))
//
// What a file of the tree shows has the file's name and the file's unit: bytes, percent, µs. null is "no limit" or "not
// known". A user is a number and, for people, its name on the machine where the document is made (internal/users).
package state

import "time"

// Version is that of the document. It rises when a name goes or gets another meaning, not when one comes.
const Version = 1

// State is the state of everything at one time.
type State struct {
	Version int       `json:"version"`
	Time    time.Time `json:"time"`
	// Daemon is nil where none runs.
	Daemon  *Daemon     `json:"daemon"`
	Devices []Device    `json:"devices"`
	Groups  []Directory `json:"groups"`
	LGPUs   []Directory `json:"lgpus"`
}

// Daemon is the process that answered.
type Daemon struct {
	Version  string    `json:"version"`
	PID      int32     `json:"pid"`
	Started  time.Time `json:"started"`
	Dir      string    `json:"dir"`
	Tree     *string   `json:"tree"`
	Police   string    `json:"police"`
	Restarts uint64    `json:"restarts"`
	// HostBudget and HostCopies are of copies of memory that has left devices: what they may take of the host's memory,
	// and take; DiskCopies is what they take of disks.
	HostBudget uint64 `json:"host.budget"`
	HostCopies uint64 `json:"host_copies"`
	DiskCopies uint64 `json:"disk_copies"`
	IdleUsec   *int64 `json:"idle_usec"`
}

// Device is a physical GPU, a MIG instance, or a device of a software GPU.
type Device struct {
	UUID              string          `json:"uuid"`
	Index             string          `json:"index"`
	Name              string          `json:"name"`
	Key               string          `json:"key"`
	PCI               *string         `json:"pci"`
	Sim               *string         `json:"sim"`
	Parent            *string         `json:"parent"`
	Partitioned       bool            `json:"partitioned"`
	Mode              string          `json:"mode"`
	Fault             *string         `json:"fault"`
	NoGuests          *string         `json:"no_guests"`
	Units             *uint32         `json:"units"`
	MemoryCapacity    uint64          `json:"memory.capacity"`
	MemoryCurrent     uint64          `json:"memory.current"`
	Utilisation       *uint32         `json:"utilisation"`
	MemoryUtilisation *uint32         `json:"memory_utilisation"`
	PowerWatts        *float64        `json:"power_watts"`
	EnergyJoules      *float64        `json:"energy_joules"`
	EnergyOtherJoules *float64        `json:"energy_other_joules"`
	Temperature       *int32          `json:"temperature"`
	Processes         []DeviceProcess `json:"processes"`
	Sampled           *time.Time      `json:"sampled"`
	// Inventory is nil where the device could not be asked.
	Inventory *Inventory `json:"inventory"`
}

// Inventory is what a device is like.
type Inventory struct {
	Architecture      *string      `json:"architecture"`
	ComputeCapability *string      `json:"compute_capability"`
	Driver            *string      `json:"driver"`
	NUMA              *uint32      `json:"numa"`
	Links             []Link       `json:"links"`
	MIG               []MIGProfile `json:"mig"`
}

// Link is how a device reaches another.
type Link struct {
	Peer    string `json:"peer"`
	Path    string `json:"path"`
	NVLinks uint32 `json:"nvlinks"`
}

// MIGProfile is a size of MIG instances.
type MIGProfile struct {
	Name           string   `json:"name"`
	ID             uint32   `json:"id"`
	MemoryCapacity uint64   `json:"memory.capacity"`
	Units          uint32   `json:"units"`
	Count          uint32   `json:"count"`
	Placements     []uint32 `json:"placements"`
	Size           uint32   `json:"size"`
}

// DeviceProcess is a process that the driver has on a device.
type DeviceProcess struct {
	PID           int32   `json:"pid"`
	UID           uint32  `json:"uid"`
	User          string  `json:"user"`
	Command       string  `json:"command"`
	MemoryCurrent uint64  `json:"memory.current"`
	Utilisation   *uint32 `json:"utilisation"`
	// Path is nil for a process of no lgpu.
	Path *string `json:"path"`
}

// Directory is a group or an lgpu.
type Directory struct {
	Path string `json:"path"`
	// ID is 16 hexadecimal digits: programs' numbers may end at 2^53.
	ID               string     `json:"id"`
	Persistent       bool       `json:"persistent"`
	Created          *time.Time `json:"created"`
	State            string     `json:"state"`
	Gang             *string    `json:"gang"`
	CgroupPath       []string   `json:"cgroup.path"`
	HostMax          *uint64    `json:"host.max"`
	HostCurrent      uint64     `json:"host.current"`
	MemoryOvercommit bool       `json:"memory.overcommit"`
	MemorySuspend    bool       `json:"memory.suspend"`
	Devices          []Use      `json:"devices"`
	Processes        []Process  `json:"processes"`
	Launchers        []Launcher `json:"launchers"`
}

// Use is what a group or an lgpu may use and uses of one device.
type Use struct {
	UUID          string  `json:"uuid"`
	Key           string  `json:"key"`
	State         string  `json:"state"`
	MemoryCurrent uint64  `json:"memory.current"`
	MemoryPeak    uint64  `json:"memory.peak"`
	MemoryGranted *uint64 `json:"memory.granted"`
	// MemoryResident and MemoryEvicted are nil where nothing may leave the device.
	MemoryResident   *uint64 `json:"memory.resident"`
	MemoryEvicted    *uint64 `json:"memory.evicted"`
	ResidenceFailure *string `json:"residence_failure"`
	// ResidenceStat is nil likewise.
	ResidenceStat *Moved `json:"residence.stat"`
	ComputeStat   Stat   `json:"compute.stat"`
	// EnergyStat is nil where the device has no counter of energy.
	EnergyStat *Energy   `json:"energy.stat"`
	Requested  Requested `json:"requested"`
	Effective  Effective `json:"effective"`
}

// Stat is the device time that was used.
type Stat struct {
	BusyUsec  int64    `json:"busy_usec"`
	Launches  uint64   `json:"launches"`
	Asked     *float64 `json:"asked"`
	Delivered *float64 `json:"delivered"`
}

// Moved is what has left a device since the lgpu was made, in bytes: all, and what of it was not copied, as the copies still
// held.
type Moved struct {
	Evicted uint64 `json:"evicted"`
	Clean   uint64 `json:"clean"`
}

// Energy is what was used of a device's energy.
type Energy struct {
	Joules float64  `json:"joules"`
	Watts  *float64 `json:"watts"`
}

// Requested are the limits that were asked for.
type Requested struct {
	Lgpu         string   `json:"lgpu"`
	LgpuWeight   *uint32  `json:"lgpu.weight"`
	LgpuPriority *string  `json:"lgpu.priority"`
	ComputeMax   *float64 `json:"compute.max"`
	ComputeMin   *float64 `json:"compute.min"`
	MemoryMax    *uint64  `json:"memory.max"`
	MemoryHigh   *uint64  `json:"memory.high"`
}

// Effective are the limits that hold, those of the groups above included.
type Effective struct {
	LgpuEffective Bits     `json:"lgpu.effective"`
	LgpuWeight    uint32   `json:"lgpu.weight"`
	LgpuPriority  string   `json:"lgpu.priority"`
	ComputeMax    *float64 `json:"compute.max"`
	ComputeMin    float64  `json:"compute.min"`
	MemoryMax     *uint64  `json:"memory.max"`
}

// Bits are compute units.
type Bits struct {
	Count uint32 `json:"count"`
	// List is nil where units have no names.
	List *string `json:"list"`
}

// Process is one that uses an lgpu.
type Process struct {
	PID         int32      `json:"pid"`
	UID         uint32     `json:"uid"`
	User        string     `json:"user"`
	Command     string     `json:"command"`
	Since       *time.Time `json:"since"`
	HostCurrent uint64     `json:"host.current"`
	// MemoryCurrent is for each device of the lgpu, in their order.
	MemoryCurrent []uint64 `json:"memory.current"`
}

// Launcher is a process that is attached to an lgpu.
type Launcher struct {
	PID     int32  `json:"pid"`
	UID     uint32 `json:"uid"`
	User    string `json:"user"`
	Command string `json:"command"`
}
