package shmem

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/heap"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport"
)

// wishes are what a PE wants, in a hello. All are numbers so that agreeing is a maximum or minimum.
type wishes struct {
	Layout    uint32 // layout.Version
	Host      uint32 // 1: wants host memory, or can only have that
	Device    uint32 // 1: insists on device memory
	VMM       uint32
	MaxTeams  uint32
	CTAs      uint32 // on this PE's GPU; 0 without one
	Uniform   uint32 // 1: atomic operations on one PE go the same way from all
	_         uint32
	HeapMax   uint64
	Chunk     uint64
	Static    uint64
	Symmetric uint64
	Keep      uint64
	Timeout   uint64 // ns; all ones: for ever
}

// gpu says whether the PE that has these wishes has a GPU.
func (w wishes) gpu() bool { return w.CTAs > 0 }

// terms are what all PEs of a job have agreed on.
type terms struct {
	kind     transport.Kind // where the heaps lie
	vmm      bool           // they get memory by handles
	plain    bool           // no PE has a GPU
	heap     heapRange      // without its base, which each PE chooses
	static   uint64         // size of a heap that gets all its memory at once; 0: it grows
	keep     uint64         // unused memory that the heap keeps
	maxTeams int
	timeout  time.Duration // 0: for ever
	ctas     int           // of a collective kernel
	uniform  bool          // atomic operations on one PE go the same way from all
	reserved reserved
}

const helloMagic = 0x6c73686d656d0001 // of this protocol, version 1

// wishesOf are what a PE with this configuration and executor wants.
func wishesOf(c *Config, x *executor) (wishes, error) {
	w := wishes{Layout: layout.Version, HeapMax: c.HeapMax, Chunk: c.Chunk, Static: c.Static, Symmetric: c.Symmetric,
		Keep: c.Keep, MaxTeams: uint32(c.MaxTeams), Timeout: uint64(max(c.Timeout, 0))}
	if w.MaxTeams == 0 {
		w.MaxTeams = uint32(Defaults().MaxTeams)
	}
	if w.Timeout == 0 {
		w.Timeout = ^uint64(0)
	}
	w.Host = number(c.Memory == MemoryHost || x.plain())
	w.Device = number(c.Memory == MemoryDevice)
	w.VMM = number(x.job.self.VMM)
	w.Uniform = number(c.UniformAMO)
	if x.plain() {
		if w.HeapMax == 0 {
			var si unix.Sysinfo_t
			if err := unix.Sysinfo(&si); err != nil {
				return w, fmt.Errorf("ask for the machine's memory: %w", err)
			}
			w.HeapMax = si.Totalram * uint64(si.Unit)
		}
		return w, nil
	}
	units, err := x.d.DeviceAttribute(cuda.MultiprocessorCount, x.ctx.Device)
	if err != nil {
		return w, err
	}
	w.CTAs = uint32(min(max(1, units), layout.Channels))
	if c.MaxCTAs > 0 {
		w.CTAs = min(w.CTAs, uint32(c.MaxCTAs))
	}
	if w.HeapMax == 0 {
		w.HeapMax, err = x.d.DeviceMemory(x.ctx.Device)
	}
	return w, err
}

func number(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// hello tells all PEs about this one, learns about them, and agrees with them on what must be the same.
func (j *job) hello(ctx context.Context, w wishes) (terms, error) {
	mine := binary.LittleEndian.AppendUint64(nil, helloMagic)
	mine = j.self.Append(mine)
	mine, err := binary.Append(mine, binary.LittleEndian, &w)
	if err != nil {
		return terms{}, err
	}
	all, err := j.b.AllGather(ctx, mine)
	if err != nil {
		return terms{}, &known{err}
	}
	list := make([]wishes, len(all))
	for pe, text := range all {
		if len(text) < 8 || binary.LittleEndian.Uint64(text) != helloMagic {
			return terms{}, &known{fault(layout.StatusVersion, "init", pe, "it runs another version of lshmem")}
		}
		info, rest, err := transport.ParsePeerInfo(text[8:])
		if err == nil && int(info.PE) != pe {
			err = fmt.Errorf("it says that it is PE %d", info.PE)
		}
		if err == nil {
			_, err = binary.Decode(rest, binary.LittleEndian, &list[pe])
		}
		if err != nil {
			return terms{}, &known{fault(layout.StatusVersion, "init", pe, "%w", err)}
		}
		j.peers = append(j.peers, info)
	}
	t, err := agree(j.rank, j.peers, list)
	if err != nil {
		return t, &known{err}
	}
	j.timeout = t.timeout
	j.self.Kind, j.self.VMM = t.kind, t.vmm
	for i := range j.peers {
		j.peers[i].Kind, j.peers[i].VMM = t.kind, t.vmm
	}
	return t, nil
}

// agree derives the job's terms from all PEs' wishes: the same on every PE, since all see the same wishes. rank is the
// PE that asks, for errors.
func agree(rank int, peers []transport.PeerInfo, list []wishes) (terms, error) {
	all := wishes{MaxTeams: layout.MaxTeams, VMM: 1}
	for pe, w := range list {
		if w.Layout != layout.Version {
			return terms{}, fault(layout.StatusVersion, "init", pe, "its layout is %#x, that of PE %d %#x",
				w.Layout, rank, layout.Version)
		}
		all.Host, all.Device, all.Uniform = max(all.Host, w.Host), max(all.Device, w.Device), max(all.Uniform, w.Uniform)
		all.VMM, all.MaxTeams = min(all.VMM, w.VMM), min(all.MaxTeams, w.MaxTeams)
		all.HeapMax, all.Chunk = max(all.HeapMax, w.HeapMax), max(all.Chunk, w.Chunk)
		all.Static, all.Symmetric = max(all.Static, w.Static), max(all.Symmetric, w.Symmetric)
		all.Keep, all.Timeout = max(all.Keep, w.Keep), max(all.Timeout, w.Timeout)
	}
	// Collective operations are kernels where there are GPUs, and messages between processors where there are none: PEs
	// of the two sorts cannot take part in the same one.
	with := slices.IndexFunc(list, wishes.gpu)
	without := slices.IndexFunc(list, func(w wishes) bool { return !w.gpu() })
	if with >= 0 && without >= 0 {
		return terms{}, fault(layout.StatusSupport, "init", without,
			"PE %d has no GPU, PE %d has: set LSHMEM_DEVICE=none at all PEs", without, with)
	}
	if all.Host != 0 && all.Device != 0 {
		without := slices.IndexFunc(list, func(w wishes) bool { return w.Host != 0 })
		return terms{}, fault(layout.StatusSupport, "init", without,
			"the heap is to lie in device memory, but this PE has no GPU or wants host memory")
	}
	t := terms{kind: transport.Device, plain: with < 0, keep: all.Keep, maxTeams: int(all.MaxTeams),
		ctas: fewestCTAs(peers, list), uniform: all.Uniform != 0}
	if all.Host != 0 {
		t.kind = transport.Host
	}
	t.vmm = all.VMM != 0 && t.kind == transport.Device
	if all.Timeout != ^uint64(0) {
		t.timeout = time.Duration(all.Timeout)
	}
	t.reserved = reserve(peers, t.maxTeams, t.plain)
	t.sizeHeap(all)
	return t, nil
}

// fewestCTAs is how many CTAs of a collective kernel fit on every GPU. PEs that share a GPU share its units: kernels of
// one wait for those of another.
func fewestCTAs(peers []transport.PeerInfo, list []wishes) int {
	fewest := uint32(layout.Channels)
	for pe, w := range list {
		if !w.gpu() {
			continue
		}
		sharing := uint32(0)
		for _, q := range peers {
			if q.SameGPU(peers[pe]) {
				sharing++
			}
		}
		fewest = min(fewest, max(1, w.CTAs/sharing))
	}
	return int(fewest)
}

// sizeHeap sets the sizes of the heap. The library's own part and at least one chunk must fit.
func (t *terms) sizeHeap(all wishes) {
	t.static = all.Static
	if t.kind == transport.Device && !t.vmm && t.static == 0 {
		t.static = all.Symmetric
	}
	chunk := all.Chunk
	if chunk == 0 {
		chunk = min(max(heap.MinChunk, uint64(1)<<bits.Len64(all.HeapMax/4096)), 64<<20)
	}
	own := t.reserved.bytes
	bytes := roundUp(max(all.HeapMax, own+chunk, t.static+own), chunk)
	if t.static != 0 {
		t.static = roundUp(t.static+own, chunk)
		if t.kind == transport.Device && !t.vmm {
			bytes = t.static // an allocation is all there is
		}
	}
	t.heap = heapRange{heapBytes: bytes, chunk: chunk}
}

func roundUp(n, to uint64) uint64 { return (n + to - 1) / to * to }
