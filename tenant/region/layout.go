// Package region is the memory that an lgpu shares with the processes inside
// it: its limits, the counters that enforce them, and one record for each process.
//
// The Go types in this file are the layout's only source. liblgpu/process/region_gen.h
// is generated from them (go generate ./tenant/region) with a compiled check of every
// offset, so the two sides cannot drift.
//
// # Parts
//
// A region has two parts:
//
//	Limits   written by the authority, mapped read-only by tenants
//	Usage    counters and records, written by tenants
//
// From the daemon each comes as a sealed memory file. Without one they lie one
// after the other, at HAMiBase, in the file that also carries HAMi's region
// v1.2 for HAMi's monitor.
//
// # Trust
//
// A tenant can write anything into Usage. It hurts only itself: the authority
// takes nothing from there that raises a limit, and readers check every index.
//
// # Concurrency
//
// No lock lives in a region. Every shared number is one machine word, updated
// by compare-and-swap; a memory Counter is a pair updated by a 16-byte
// compare-and-swap, so that whoever finds a dead process's record can tell
// exactly which of its operations took effect (see Counter). That a client
// lives is known to the daemon, which gave it its index and watches
// the process; without a daemon the process holds a POSIX record lock on byte
// ClientLockOffset+index of the file, which no crash can leave behind.
package region

// Limits of the layout.
const (
	// Magic begins every region: "LGPUREG\x01", little-endian.
	Magic uint64 = 0x014745525550474c
	// Version of the layout. A reader refuses any other.
	Version uint32 = 3
	// MaxDevices is the number of devices one lgpu can span, as in HAMi.
	MaxDevices = 16
	// MaxClients is the number of processes that can use one lgpu at once.
	MaxClients = 1024
	// Windows is the length of the history of charged compute time.
	Windows = 16
	// WindowNanos is the time one entry of that history covers.
	WindowNanos = 100_000_000
	// LimitsBytes is the room for Limits: whole pages, so that it can be
	// mapped read-only on its own.
	LimitsBytes = 8192
	// HAMiBase is the base of a region in a file that begins with HAMi's
	// region v1.2 (2 008 953 bytes), rounded up to 2 MiB.
	HAMiBase = 2 << 20
	// ClientLockOffset is the file offset of the record-lock byte of client 0.
	// It lies after every mapped byte.
	ClientLockOffset = 1 << 40
	// NoLimit stands for "not limited" where a limit is in bytes. A limit of
	// zero means zero.
	NoLimit uint64 = 1<<64 - 1
	// FullCompute is a compute share of the whole device, in hundredths of a
	// percent.
	FullCompute uint32 = 10000
)

// Limits is what the authority (lgpu run, or the daemon) grants. Fields after
// Devices may change while clients run; each is read with one load.
type Limits struct {
	Magic   uint64
	Version uint32
	Devices uint32 // entries of Device in use
	// ID is drawn at random when the region is made. It tells incarnations of
	// one name apart and names the lgpu in a device's turn page.
	ID uint64
	// HostMemory is the limit on page-locked host memory, in bytes.
	HostMemory uint64
	// CreatedUnixNano is the wall-clock time of creation.
	CreatedUnixNano int64
	// Name is the lgpu's name, NUL-padded.
	Name   [64]byte
	Device [MaxDevices]DeviceLimits
}

// DeviceLimits is an lgpu's share of one device. Its index is the ordinal
// under which the tenant sees the device.
type DeviceLimits struct {
	UUID [16]byte
	// Memory is the limit in bytes, or NoLimit.
	Memory uint64
	// Granted is what of Memory may be used without asking the daemon for
	// more: less than Memory where a group's limit is less than the sum of
	// its members'. Whoever has added to the counter reads it again and takes
	// back what is over, so that after it is lowered the counter tells the truth.
	Granted uint64
	// Physical is the device's own memory in bytes.
	Physical uint64
	// Compute is the cap on the device's time, in hundredths of a percent,
	// 0..FullCompute. With 0 launches fail.
	Compute uint32
	// Units is the number of compute units the tenant is shown; 0 is all.
	Units uint32
	// Beat changes at least every link.Beat while a launch of the lgpu waits
	// for the daemon's leave, which shows that the daemon lives. 0: there is
	// no daemon, or one that does not say.
	Beat uint64
	// Overcommit is 1 if the lgpu's memory may leave this device (protocol: Keep). It never changes.
	Overcommit uint32
	// Instance is 1 if the device is a MIG instance, whose UUID the driver writes MIG-… and not GPU-…. It never changes. Until it
	// was there Overcommit had its bytes, which were 0.
	Instance uint32
}

// Counter is an amount of memory with the identity of the last operation that
// changed it. Both words change together by one 16-byte compare-and-swap, and
// before a process replaces Last it notes in the ledger of the client named there that this
// operation took effect (Ledger.Applied). So for every operation ever begun it
// stays decidable whether it happened, even if its process died at any
// instruction.
type Counter struct {
	Bytes uint64
	// Last is client index<<48 | sequence number of the last operation; 0
	// before the first (sequence numbers begin at 1).
	Last uint64
}

// Ledger is one client's account against one Counter. Record[Begun&1] is its
// newest operation; the client holds Before bytes, plus Delta if the operation
// took effect: if Counter.Last names it, or Applied >= Begun.
type Ledger struct {
	Begun   uint64
	Applied uint64
	Record  [2]Operation
}

// Operation is one change of a Counter by one client.
type Operation struct {
	Before int64 // bytes held before
	Delta  int64 // bytes added, negative for a release
}

// Window is the compute time charged in one span of WindowNanos.
type Window struct {
	Epoch uint64 // CLOCK_MONOTONIC / WindowNanos
	Busy  uint64 // ns
}

// DeviceUsage is what an lgpu uses of one device.
type DeviceUsage struct {
	Memory Counter
	// Peak is the highest value Memory.Bytes has had.
	Peak uint64
	// Context is the memory a context of this device takes beyond what calls
	// show, in bytes, as the first process measured it; 0 while unknown.
	Context uint64
	// Horizon is when compute time charged so far is paid for at the capped
	// rate, in CLOCK_MONOTONIC ns: a charge of d adds d/cap. The lgpu has
	// credit while Horizon is in the past (a token bucket in one word, known
	// as GCRA).
	Horizon uint64
	// Busy is the compute time charged since the region was made, in ns: the
	// time in which any process of the lgpu had work on the device.
	Busy uint64
	// Charged is up to when Busy counts, CLOCK_MONOTONIC ns.
	Charged uint64
	// Launches counts launches since the region was made.
	Launches uint64
	// Evicted is what has left the device for lack of room since the region was made, in bytes, and Clean the part of
	// it that was not copied, as it was zeros, or as the host's copy (liblgpu/arena/clean.c).
	Evicted uint64
	Clean   uint64
	_       [6]uint64
	History [Windows]Window
}

// Client states.
const (
	ClientFree uint32 = iota
	ClientLive
)

// Client is one process, known by its index. The record is its own while it lives;
// records never move.
type Client struct {
	State uint32
	PID   uint32 // in the process's own PID namespace
	// Start is the process's start time (field 22 of /proc/PID/stat), and
	// Namespace the inode of its PID namespace: with PID they name a process
	// for good, for those who see the same /proc.
	Start     uint64
	Namespace uint64
	Comm      [16]byte
	_         [5]uint64
	Host      Ledger
	Device    [MaxDevices]Ledger
	// Exported is what of each device the process has given away under descriptors and is charged for, in bytes.
	// It may outlive the process, and then stays charged as long as the device still has it. Released is the part
	// of it of which the process has neither handle nor mapping any more, so that the driver does not count it as
	// the process's.
	Exported [MaxDevices]uint64
	Released [MaxDevices]uint64
}

// Usage is the part of a region that tenants write.
type Usage struct {
	Host Counter // page-locked host memory
	// Boot tells the machine's starts apart, where a region can outlive one.
	Boot   uint64
	_      [5]uint64
	Device [MaxDevices]DeviceUsage
	Client [MaxClients]Client
}

// Turn pages: one file per device, shared by all capped lgpus of a runtime
// directory, through which processes take the device one at a time.
const (
	// TurnMagic begins every turn page: "LGPUTRN\x01", little-endian.
	TurnMagic uint64 = 0x014e52545550474c
	// MaxTurnEntries is the number of capped processes that can share a device.
	MaxTurnEntries = 512
)

// States of an entry; the word is a futex.
const (
	TurnIdle uint32 = iota
	TurnWaiting
	TurnGranted
)

// Turn is the shared page of one device. The owner of the turn runs; it hands
// over to the waiting lgpu whose last turn is longest ago, and among that one's
// processes likewise. An entry's process holds the
// record lock on byte ClientLockOffset+index of the file, so a dead owner is
// known as such and its turn is taken.
type Turn struct {
	Magic   uint64
	Version uint32
	// Entries is one more than the highest index ever taken.
	Entries uint32
	// Owner is grant number<<16 | index of an entry + 1; 0 when nobody has the turn.
	Owner uint64
	// Since is when Owner was set, CLOCK_MONOTONIC ns.
	Since uint64
	_     [4]uint64
	Entry [MaxTurnEntries]TurnEntry
}

// TurnEntry is one process in a Turn.
type TurnEntry struct {
	State uint32
	PID   uint32
	LGPU  uint64 // Limits.ID
	// Served is when this process last had the turn, CLOCK_MONOTONIC ns.
	Served uint64
	_      [5]uint64
}
