package shmem

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/shmem/bootstrap"
	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/heap"
	"github.com/lgpu/lgpu/shmem/kernels"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport"
	"github.com/lgpu/lgpu/shmem/transport/ibgda"
	"github.com/lgpu/lgpu/shmem/transport/ibgda/nic"
	"github.com/lgpu/lgpu/shmem/transport/p2p"
)

// maxExtent is the most memory behind one driver handle.
const maxExtent = 2 << 30

// Init makes this process a PE of its job. All PEs call it. Its steps are few exchanges and few driver calls:
//
//	bootstrap; device; hello: who and where everybody is, and what they want; addresses of the heap; transports and what
//	they reach; row: the reachability matrix; network endpoints, if somebody needs them; first piece of heap; state; teams.
func Init(ctx context.Context, c Config) (_ *PE, err error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	p := &PE{c: c, log: c.Logger, b: c.Bootstrap, chunks: map[uint64]transport.Chunk{}, locals: map[uint64]uint64{},
		stop: make(chan struct{}), begun: time.Now()}
	if p.log == nil {
		p.log = quietLogger()
	}
	for _, w := range c.Warnings {
		p.log.Warn(w)
	}
	through := false
	defer func() {
		if !through && err == nil { // a panic, which goes on behind this: the others must not wait for this PE
			err = errors.New("a defect: it panicked")
			p.abort(err)
		}
		if err != nil {
			p.teardown()
			err = wrap("init", err)
		}
	}()
	last := p.begun
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"bootstrap", p.join}, {"device", p.openDevice}, {"hello", p.hello}, {"heap", p.openHeap}, {"transports", p.openTransports},
		{"network", p.connect}, {"memory", p.firstExtent}, {"state", p.openState}, {"barrier", p.meet},
	} {
		if err := step.do(ctx); err != nil {
			// The others must not wait for this PE until they time out.
			if !errors.As(err, new(*together)) {
				p.abort(err)
			}
			if errors.As(err, new(*Error)) {
				return nil, err // it says enough
			}
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
		now := time.Now()
		p.stats.Phases = append(p.stats.Phases, Phase{step.name, now.Sub(last)})
		last = now
	}
	p.stats.Init = last.Sub(p.begun)
	p.watching.Go(p.watch)
	p.log.Info("ready", "pe", p.rank, "pes", p.size, "memory", p.kind.String(), "init", p.stats.Init)
	through = true
	return p, nil
}

// abort ends the job because of what went wrong in Init.
func (p *PE) abort(err error) {
	if p.b != nil {
		p.b.Abort(1, fmt.Sprintf("init of PE %d: %v", p.rank, err))
	}
}

// together is an error that all PEs have, so that nobody needs to be told.
type together struct{ error }

func (t *together) Unwrap() error { return t.error }

func (p *PE) join(ctx context.Context) error {
	if p.b == nil {
		o, err := p.c.BootstrapOptions(nil)
		if err != nil {
			return err
		}
		b, err := bootstrap.FromEnv(ctx, o)
		if errors.Is(err, bootstrap.ErrNotSet) { // nobody started a job: this process is all of it
			var one []bootstrap.Bootstrap
			if one, err = bootstrap.Local(1, o); err == nil {
				b = one[0]
			}
		}
		if err != nil {
			return err
		}
		p.b, p.owns = b, true
	}
	p.rank, p.size = p.b.Rank(), p.b.Size()
	return nil
}

// openDevice finds the GPU and the context to work in.
func (p *PE) openDevice(context.Context) error {
	p.self = transport.ThisProcess()
	p.self.PE = uint32(p.rank)
	if p.c.NoGPU {
		return nil
	}
	d, err := cuda.Load()
	var n int
	if err == nil {
		n, err = d.DeviceCount()
	}
	none := err == nil && n == 0 || errors.Is(err, cuda.ErrNoLibrary) || cuda.Code(err) == cuda.NoDevice
	if err == nil && n == 0 {
		err = fmt.Errorf("%w: it has no device", cuda.ErrNoDriver)
	}
	if err != nil {
		// A machine without GPUs is one thing, a GPU or driver that does not start another: a PE that went on without it
		// would be far slower than what somebody asked for, and nobody would know why.
		if !none {
			return fmt.Errorf("the GPU cannot be used (LSHMEM_DEVICE=none at all PEs does without): %w", err)
		}
		if p.c.Memory == MemoryDevice || p.c.Device >= 0 {
			return err
		}
		p.log.Debug("no GPU", "pe", p.rank, "error", err)
		return nil
	}
	if p.c.Device >= n {
		return fault(layout.StatusArgument, "init", -1, "LSHMEM_DEVICE=%d: there are GPUs 0 to %d", p.c.Device, n-1)
	}
	p.d = d
	current, err := d.Current()
	if err != nil {
		return err
	}
	switch {
	case current != nil && p.c.Device < 0:
		p.ctx = current
	default:
		ordinal := p.c.Device
		if ordinal < 0 {
			ordinal = localRank(p.rank) % n
		}
		dev, err := d.DeviceGet(ordinal)
		if err != nil {
			return err
		}
		if current != nil && current.Device == dev {
			p.ctx = current
		} else if p.ctx, err = d.Primary(dev); err != nil {
			return err
		}
	}
	p.self.Ordinal = p.ctx.Device
	if p.self.GPU, err = d.DeviceUUID(p.ctx.Device); err != nil {
		return err
	}
	if p.self.PCI, err = d.DevicePCI(p.ctx.Device); err != nil {
		return err
	}
	vmm, err := d.DeviceAttribute(cuda.VirtualMemoryManagement, p.ctx.Device)
	if err != nil {
		return err
	}
	fds, err := d.DeviceAttribute(cuda.HandleTypePosixFileDescriptor, p.ctx.Device)
	if err != nil {
		fds = vmm // older drivers, which have both or none, do not know the attribute
	}
	for _, a := range []cuda.Attribute{cuda.CanUse64BitStreamMemOps, cuda.CanUse64BitStreamMemOpsV1} {
		can, err := d.DeviceAttribute(a, p.ctx.Device)
		p.memops = p.memops || err == nil && can != 0 && d.Has("cuStreamWriteValue64_v2")
	}
	p.self.VMM = vmm != 0 && fds != 0 && !p.c.DisableVMM
	return nil
}

// localRank is the PE's number on its node if a launcher says so, else its number.
func localRank(rank int) int {
	for _, name := range []string{"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"} {
		var n int
		if _, err := fmt.Sscanf(os.Getenv(name), "%d", &n); err == nil && n >= 0 {
			return n
		}
	}
	return rank
}

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

const helloMagic = 0x6c73686d656d0001 // of this protocol, version 1

// hello tells everybody about this PE, and agrees on what must be the same.
func (p *PE) hello(ctx context.Context) error {
	w := wishes{Layout: layout.Version, HeapMax: p.c.HeapMax, Chunk: p.c.Chunk, Static: p.c.Static, Symmetric: p.c.Symmetric, Keep: p.c.Keep,
		MaxTeams: uint32(p.c.MaxTeams), Timeout: uint64(max(p.c.Timeout, 0))}
	if w.MaxTeams == 0 {
		w.MaxTeams = uint32(Defaults().MaxTeams)
	}
	if w.Timeout == 0 {
		w.Timeout = ^uint64(0)
	}
	if p.c.Memory == MemoryHost || p.ctx == nil {
		w.Host = 1
	}
	if p.c.Memory == MemoryDevice {
		w.Device = 1
	}
	if p.self.VMM {
		w.VMM = 1
	}
	if p.c.UniformAMO {
		w.Uniform = 1
	}
	if p.ctx != nil {
		units, err := p.d.DeviceAttribute(cuda.MultiprocessorCount, p.ctx.Device)
		if err != nil {
			return err
		}
		w.CTAs = uint32(min(max(1, units), layout.Channels))
		if p.c.MaxCTAs > 0 {
			w.CTAs = min(w.CTAs, uint32(p.c.MaxCTAs))
		}
		if w.HeapMax == 0 {
			if w.HeapMax, err = p.d.DeviceMemory(p.ctx.Device); err != nil {
				return err
			}
		}
	} else if w.HeapMax == 0 {
		var si unix.Sysinfo_t
		if err := unix.Sysinfo(&si); err != nil {
			return fmt.Errorf("ask for the machine's memory: %w", err)
		}
		w.HeapMax = si.Totalram * uint64(si.Unit)
	}
	mine := binary.LittleEndian.AppendUint64(nil, helloMagic)
	mine = p.self.Append(mine)
	mine, err := binary.Append(mine, binary.LittleEndian, &w)
	if err != nil {
		return err
	}
	all, err := p.b.AllGather(ctx, mine)
	if err != nil {
		return &together{err}
	}
	list := make([]wishes, len(all))
	for pe, text := range all {
		if len(text) < 8 || binary.LittleEndian.Uint64(text) != helloMagic {
			return &together{fault(layout.StatusVersion, "init", pe, "it runs another version of lshmem")}
		}
		info, rest, err := transport.ParsePeerInfo(text[8:])
		if err == nil && int(info.PE) != pe {
			err = fmt.Errorf("it says that it is PE %d", info.PE)
		}
		if err == nil {
			_, err = binary.Decode(rest, binary.LittleEndian, &list[pe])
		}
		if err != nil {
			return &together{fault(layout.StatusVersion, "init", pe, "%w", err)}
		}
		p.peers = append(p.peers, info)
	}
	if err := p.agree(list); err != nil {
		return &together{err}
	}
	return nil
}

// agree settles what all have in common: the same on every PE, since all see the same wishes.
func (p *PE) agree(list []wishes) error {
	var all wishes
	all.MaxTeams, all.VMM, all.Timeout = layout.MaxTeams, 1, 0
	ctas := uint32(layout.Channels)
	for pe, w := range list {
		if w.Layout != layout.Version {
			return fault(layout.StatusVersion, "init", pe, "its layout is %#x, that of PE %d %#x", w.Layout, p.rank, layout.Version)
		}
		all.Host, all.Device = max(all.Host, w.Host), max(all.Device, w.Device)
		all.Uniform = max(all.Uniform, w.Uniform)
		all.VMM, all.MaxTeams = min(all.VMM, w.VMM), min(all.MaxTeams, w.MaxTeams)
		all.HeapMax, all.Chunk, all.Static, all.Symmetric = max(all.HeapMax, w.HeapMax), max(all.Chunk, w.Chunk), max(all.Static, w.Static), max(all.Symmetric, w.Symmetric)
		all.Keep, all.Timeout = max(all.Keep, w.Keep), max(all.Timeout, w.Timeout)
		if w.CTAs > 0 {
			// PEs that share a GPU share its units: kernels of one wait for those of another.
			sharing := uint32(0)
			for _, q := range p.peers {
				if q.HasGPU() && q.Host == p.peers[pe].Host && q.GPU == p.peers[pe].GPU {
					sharing++
				}
			}
			ctas = min(ctas, max(1, w.CTAs/sharing))
		}
	}
	// Collective calls are kernels where there are GPUs, mails between processors where there are none: they would never meet.
	gpu := func(w wishes) bool { return w.CTAs > 0 }
	if with, without := slices.IndexFunc(list, gpu), slices.IndexFunc(list, func(w wishes) bool { return !gpu(w) }); with >= 0 && without >= 0 {
		return fault(layout.StatusSupport, "init", without, "PE %d has no GPU, PE %d has: set LSHMEM_DEVICE=none at all PEs", without, with)
	}
	if all.Host != 0 && all.Device != 0 {
		without := slices.IndexFunc(list, func(w wishes) bool { return w.Host != 0 })
		return fault(layout.StatusSupport, "init", without, "the heap is to lie in device memory, but this PE has no GPU or wants host memory")
	}
	p.kind = transport.Device
	if all.Host != 0 {
		p.kind = transport.Host
	}
	vmm := all.VMM != 0 && p.kind == transport.Device
	p.self.Kind, p.self.VMM = p.kind, vmm
	for i := range p.peers {
		p.peers[i].Kind, p.peers[i].VMM = p.kind, vmm
	}
	p.uniform = all.Uniform != 0
	p.static, p.keep, p.maxTeams, p.ctas = all.Static, all.Keep, int(all.MaxTeams), int(ctas)
	if p.kind == transport.Device && !vmm && p.static == 0 {
		p.static = all.Symmetric
	}
	p.chunk = all.Chunk
	if p.chunk == 0 {
		p.chunk = min(max(heap.MinChunk, uint64(1)<<bits.Len64(all.HeapMax/4096)), 64<<20)
	}
	// The library's own part and at least one chunk must fit.
	own := p.planInternal()
	p.heapBytes = roundUp(max(all.HeapMax, own+p.chunk, p.static+own), p.chunk)
	if p.static != 0 {
		p.static = roundUp(p.static+own, p.chunk)
		if p.kind == transport.Device && !vmm {
			p.heapBytes = p.static // an allocation is all there is
		}
	}
	p.timeout = 0
	if all.Timeout != ^uint64(0) {
		p.timeout = time.Duration(all.Timeout)
	}
	return nil
}

func roundUp(n, to uint64) uint64 { return (n + to - 1) / to * to }

// openHeap reserves the heap's addresses.
func (p *PE) openHeap(context.Context) error {
	switch {
	case p.kind == transport.Host:
		p.mem = &hostMemory{ctx: p.ctx, chunk: p.chunk}
	case p.self.VMM:
		rdma, err := p.d.DeviceAttribute(cuda.GPUDirectRDMAWithVMMSupported, p.ctx.Device)
		m := &deviceMemory{ctx: p.ctx, chunk: p.chunk, prop: cuda.DeviceMemory(p.ctx.Device, err == nil && rdma != 0)}
		g, err := p.d.Granularity(&m.prop)
		if err != nil {
			return err
		}
		if p.chunk%g != 0 {
			return fmt.Errorf("the GPU maps memory in units of %d bytes; set LSHMEM_CHUNK to a multiple of it", g)
		}
		p.mem = m
	default:
		p.mem = &pinnedMemory{ctx: p.ctx}
	}
	var err error
	if p.heapBase, err = p.mem.reserve(p.heapBytes); err != nil {
		return fmt.Errorf("reserve %d bytes for the heap (LSHMEM_HEAP_MAX): %w", p.heapBytes, err)
	}
	p.heap, err = heap.New(p.heapBytes, p.chunk, min(max(p.chunk, maxExtent), p.heapBytes))
	return err
}

// openTransports sees what reaches whom, and exchanges it.
func (p *PE) openTransports(ctx context.Context) error {
	// Half a wait for a peer's descriptor, so that who has waited in vain can still tell the others in theirs, and is not taken
	// for the one that did not come.
	p.p2p = p2p.New(p2p.Config{Context: p.ctx, Self: p.self, HeapBytes: p.heapBytes, Timeout: p.timeout / 2})
	p.transports = []transport.Transport{p.p2p}
	caps := make([]transport.Capability, p.size)
	for pe := range caps {
		caps[pe] = p.p2p.Capability(p.self, p.peers[pe])
		if p.c.DisableP2P && pe != p.rank {
			caps[pe] &= transport.Map // the software HCA on a GPU still maps what it moves
		}
	}
	p.reach = transport.Reachability{caps}
	row := p.reach.Row()
	mine := binary.LittleEndian.AppendUint64(nil, p.heapBase)
	for _, bits := range row {
		mine = binary.LittleEndian.AppendUint32(mine, bits)
	}
	all, err := p.b.AllGather(ctx, mine)
	if err != nil {
		return &together{err}
	}
	p.internal.bases = make([]uint64, p.size)
	for pe, text := range all {
		if len(text) != len(mine) {
			return &together{fault(layout.StatusVersion, "init", pe, "%w: %d bytes of reachability", transport.ErrBlob, len(text))}
		}
		p.internal.bases[pe] = binary.LittleEndian.Uint64(text)
		bits := make([]uint32, p.size)
		for i := range bits {
			bits[i] = binary.LittleEndian.Uint32(text[8+4*i:])
		}
		p.matrix = append(p.matrix, bits)
	}
	return nil
}

// network says whether some PE needs more than p2p: the same answer at all PEs.
func (p *PE) network() bool {
	for _, row := range p.matrix {
		for _, bits := range row {
			if bits&3 != 3 {
				return true
			}
		}
	}
	return false
}

// connect opens the network transport if it is needed, chooses, and connects.
func (p *PE) connect(ctx context.Context) error {
	if err := p.allMapped(); err != nil {
		return &together{err}
	}
	if p.network() {
		if err := p.openNetwork(ctx); err != nil {
			return err
		}
	}
	p.choice = transport.Select(p.reach, p.size)
	p.sameWay()
	for j, t := range p.transports {
		used := make([]transport.Capability, p.size)
		chosen := false
		for pe := range used {
			if p.choice.RMA[pe] == j {
				used[pe] |= transport.RMA
			}
			if p.choice.AMO[pe] == j {
				used[pe] |= transport.AMO
			}
			if j == 0 && len(p.transports) > 1 {
				used[pe] |= p.reach[0][pe] & transport.Map
			}
			chosen = chosen || used[pe] != 0
		}
		blobs, err := t.Endpoints(p.peers, used)
		if err != nil {
			return err
		}
		if j > 0 { // mapping needs no blobs
			if blobs, err = p.b.AllToAll(ctx, blobs); err != nil {
				return &together{err}
			}
		}
		if err := t.Connect(blobs); err != nil {
			return err
		}
	}
	p.mapped, p.atomic = make([]uint64, p.size), make([]bool, p.size)
	if none := slices.Index(p.choice.RMA, transport.None); none >= 0 {
		return fault(layout.StatusSupport, "init", none, "PE %d cannot reach it: %s", p.rank, p.whyNot(none))
	}
	return nil
}

// allMapped refuses a job of PEs without GPUs of which some do not have others' memory mapped: there is no code of a processor
// that would use the network transport. It is the same answer at all PEs.
func (p *PE) allMapped() error {
	if !p.plain() {
		return nil
	}
	for from := range p.matrix {
		for to := range p.matrix[from] {
			if p.direct(from, to) {
				continue
			}
			why := apart(p.peers[from], p.peers[to])
			if why == "" {
				why = "LSHMEM_DISABLE_P2P"
			}
			return fault(layout.StatusSupport, "init", to, "its memory is not mapped at PE %d (%s), and PEs without a GPU need that", from, why)
		}
	}
	return nil
}

// sameWay takes mapped memory's atomic operations away where some PE has them by the network, if that is wanted.
func (p *PE) sameWay() {
	if !p.uniform || len(p.transports) < 2 {
		return
	}
	for pe := range p.size {
		all := true
		for _, row := range p.matrix {
			all = all && row[pe]&2 != 0
		}
		if !all && p.reach[1][pe]&transport.AMO == transport.AMO {
			p.choice.AMO[pe] = 1
		}
	}
}

// whyNot says why no transport reaches a PE.
func (p *PE) whyNot(pe int) string {
	q := p.peers[pe]
	network := "no network transport is available"
	switch {
	case len(p.networks) == 0:
	case p.networks[p.rank] != "":
		network += " here: " + p.networks[p.rank]
	case p.networks[pe] != "":
		network += " there: " + p.networks[pe]
	default:
		network = "the network transport, " + p.transports[1].Name() + ", does not reach it (LSHMEM_NIC=gpu: only PEs with a GPU of this machine)"
	}
	why := apart(p.self, q)
	switch {
	case q.Host == p.self.Host && p.c.DisableP2P:
		why = "LSHMEM_DISABLE_P2P is set"
	case why == "":
		why = "its GPU is not visible to this process or cannot be mapped"
	}
	return why + ", and " + network
}

// apart says what about two PEs' processes keeps memory of b from being mapped at a, "" if nothing does.
func apart(a, b transport.PeerInfo) string {
	switch {
	case a.Host != b.Host:
		return "it is on another machine"
	case a.UID != b.UID:
		return "it runs as another user"
	case a.Network != b.Network:
		return "it is in another network namespace, where memory cannot be passed to"
	}
	return ""
}

// openNetwork opens the network transport. One PE that has none makes it of no use to those that would talk to it, not to
// the others.
func (p *PE) openNetwork(ctx context.Context) error {
	t, err := p.networkTransport()
	if err != nil && !errors.Is(err, nic.ErrNoDevice) {
		return err
	}
	reason := "" // why there is none, told to all
	if err != nil {
		p.log.Info("no network transport", "pe", p.rank, "error", err)
		reason = err.Error()
		reason = strings.ToValidUTF8(reason[:min(len(reason), 500)], "")
	}
	all, err := p.b.AllGather(ctx, []byte(reason))
	if err != nil {
		if t != nil {
			err = errors.Join(err, t.Close())
		}
		return &together{err}
	}
	p.networks = make([]string, p.size)
	for pe, text := range all {
		p.networks[pe] = string(text)
	}
	if !slices.Contains(p.networks, "") {
		return nil
	}
	if t == nil {
		t = absent{p.size}
	}
	p.transports = append(p.transports, t)
	caps := make([]transport.Capability, p.size)
	for pe := range caps {
		if p.networks[pe] == "" {
			caps[pe] = t.Capability(p.self, p.peers[pe])
		}
	}
	p.reach = append(p.reach, caps)
	return nil
}

func (p *PE) networkTransport() (transport.Transport, error) {
	settings, _, err := p.c.network()
	if err != nil {
		return nil, err
	}
	if settings.NIC == ibgda.None {
		return nil, fmt.Errorf("%w: LSHMEM_NIC or LSHMEM_REMOTE_TRANSPORT is none", nic.ErrNoDevice)
	}
	c := ibgda.Config{Settings: settings, PE: p.rank, PEs: p.size, HeapBase: p.heapBase, HeapBytes: p.heapBytes,
		KeyShift: uint(bits.TrailingZeros64(p.chunk)), Place: ibgda.PlaceOf(p.self.PCI),
		Peer: func(pe int) uint64 {
			if pe == p.rank {
				return p.heapBase
			}
			base, _ := p.p2p.Address(pe)
			return base
		},
		Log: func(format string, args ...any) { p.log.Info(fmt.Sprintf(format, args...)) },
	}
	c.OneHost = true
	for pe, q := range p.peers {
		if pe < p.rank && q.Host == p.self.Host {
			c.Turn++
		}
		c.OneHost = c.OneHost && q.Host == p.self.Host && q.Network == p.self.Network
	}
	if p.ctx != nil {
		platform, err := ibgda.NewCUDA(p.ctx)
		if err != nil {
			return nil, err
		}
		c.Platform = platform
	} else {
		c.Platform = ibgda.NewProcessor()
	}
	t, err := ibgda.Open(c)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// absent stands for a network transport that this PE does not have, where others have one.
type absent struct{ pes int }

func (absent) Name() string { return "none" }
func (absent) Capability(_, _ transport.PeerInfo) transport.Capability {
	return 0
}
func (a absent) Endpoints([]transport.PeerInfo, []transport.Capability) ([][]byte, error) {
	return make([][]byte, a.pes), nil
}
func (absent) Connect([][]byte) error                   { return nil }
func (absent) Register(transport.Chunk) ([]byte, error) { return nil, nil }
func (absent) Attach(int, [][]byte) error               { return nil }
func (absent) Detach(int) error                         { return nil }
func (absent) State(*layout.State) error                { return nil }
func (absent) Close() error                             { return nil }

// firstExtent gives the heap its first memory: all of a static heap, or what the library itself needs.
func (p *PE) firstExtent(ctx context.Context) error {
	var plan *heap.Plan
	var err error
	if p.static != 0 {
		plan, err = p.heap.PlanStatic(p.static)
	} else {
		plan, err = p.heap.PlanGrow(p.internal.bytes, 0)
	}
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.grow(ctx, request{op: opInit, bytes: p.internal.bytes}, plan, 0); err != nil {
		return &together{err}
	}
	if p.static != 0 {
		if _, ok := p.heap.Allocate(p.internal.bytes, 0); !ok {
			return fmt.Errorf("a static heap of %d bytes has no room for %d of the library's own", p.static, p.internal.bytes)
		}
	}
	return nil
}

// openState makes what kernels see.
func (p *PE) openState(context.Context) error {
	for pe := range p.size {
		base, native := p.p2p.Address(pe)
		if pe == p.rank {
			base = p.heapBase
			native = p.reach[0][pe]&transport.Atomics != 0
		}
		if p.choice.RMA[pe] == 0 {
			p.mapped[pe], p.atomic[pe] = base, native && p.choice.AMO[pe] == 0
		} else {
			p.queued = true
		}
		p.queued = p.queued || p.choice.AMO[pe] > 0
	}
	var err error
	if p.tables, err = newTables(p.ctx, p.size, p.maxTeams); err != nil {
		return err
	}
	if err := p.openHot(); err != nil {
		return err
	}
	s := &layout.State{
		Version: layout.Version, PE: uint32(p.rank), PEs: uint32(p.size), HeapBase: p.heapBase, HeapBytes: p.heapBytes,
		Peers: p.tables.peers, Remote: p.tables.remote, KeyShift: uint32(bits.TrailingZeros64(p.chunk)), Teams: p.tables.teams,
		Control: p.controlAddr, TimeoutNanos: uint64(p.timeout),
		Self: p.tables.self,
	}
	for _, t := range p.transports {
		if err := t.State(s); err != nil {
			return err
		}
	}
	if s.KeyShift != uint32(bits.TrailingZeros64(p.chunk)) {
		return fmt.Errorf("the network transport wants keys of %d bytes, the heap's chunks are %d", uint64(1)<<s.KeyShift, p.chunk)
	}
	image := make([]byte, p.tables.bytes)
	for pe := range p.size {
		v := p.mapped[pe]
		if p.atomic[pe] {
			v |= layout.PeerAtomic
		}
		if pe < layout.InlinePeers {
			s.Peer[pe] = v
		}
		binary.LittleEndian.PutUint64(image[p.tables.peers-p.tables.base+uint64(pe)*8:], v)
		binary.LittleEndian.PutUint64(image[p.tables.remote-p.tables.base+uint64(pe)*8:], p.internal.bases[pe])
	}
	copy(image[p.tables.self-p.tables.base:], unsafe.Slice((*byte)(unsafe.Pointer(s)), unsafe.Sizeof(*s)))
	p.state = s
	p.hot.rma.State, p.hot.collective.State = *s, *s
	if err := p.openTeams(image); err != nil {
		return err
	}
	if err := p.write(p.tables.base, image); err != nil {
		return err
	}
	return p.zero(p.heapBase, p.internal.bytes)
}

// meet is the last step: nobody returns from Init before everybody's memory is ready.
func (p *PE) meet(ctx context.Context) error {
	if err := p.b.Barrier(ctx); err != nil {
		return &together{err}
	}
	return nil
}

// openHot makes the PE's stream, the control block and the memory for values.
func (p *PE) openHot() error {
	p.hot.functions = map[functionKey]uintptr{}
	p.hot.rma, p.hot.collective, p.hot.launch = new(kernels.RMA), new(kernels.Collective), new(cuda.Launch)
	const control = 4096
	var base uint64
	var err error
	if p.ctx == nil {
		base, err = p2p.AllocateHost(control + stageBytes)
	} else {
		err = p.ctx.Do(func() (err error) {
			if p.hot.stream, err = p.d.StreamCreate(cuda.StreamNonBlocking); err != nil {
				return err
			}
			base, err = p.d.HostAlloc(control + stageBytes)
			return err
		})
	}
	if err != nil {
		return err
	}
	clear(cuda.Bytes(base, control))
	if p.ctx != nil {
		p.hot.loader, p.hot.ready = acquireLoader(p.ctx.Handle), make(chan struct{})
		p.watching.Go(p.prepare)
	}
	p.controlAddr, p.control, p.hot.stage = base, hostPointer[layout.Control](base), base+control
	return nil
}

// Finalize leaves the job: all PEs call it. Work on streams must be done. After an error, and where the others are gone, it
// gives back what is this PE's alone.
func (p *PE) Finalize() error {
	if !p.closed.CompareAndSwap(false, true) {
		return fault(layout.StatusState, "finalize", -1, "already finalized")
	}
	var errs []error
	if p.ctx != nil && !p.resident() {
		// What still runs may use the heap. Work of a software HCA on the GPU never ends: there it is for the program to wait.
		errs = append(errs, p.ctx.Do(p.d.Synchronize))
	}
	if p.lost.Load() == nil {
		ctx, cancel := p.context()
		// Nobody uses this PE's memory behind the first barrier, nobody has it mapped behind the second (in teardown).
		errs = append(errs, p.b.Barrier(ctx))
		cancel()
	}
	if p.ctx != nil {
		p.hot.serial.Lock()
		errs = append(errs, p.ctx.Do(func() error { return p.d.StreamSynchronize(p.hot.stream) }))
		p.hot.serial.Unlock()
	}
	errs = append(errs, p.teardown())
	return wrap("finalize", errors.Join(errs...))
}

// resident says whether a kernel of the network transport runs on the GPU until that is closed.
func (p *PE) resident() bool {
	return slices.ContainsFunc(p.transports, func(t transport.Transport) bool {
		n, ok := t.(*ibgda.Transport)
		return ok && n.Kind() == ibgda.GPU
	})
}

// teardown gives everything back, whatever there is of it.
func (p *PE) teardown() error {
	p.closed.Store(true)
	close(p.stop)
	p.watching.Wait()
	var errs []error
	add := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	for id := range p.teams { // who is in a call of one leaves it first
		if t := p.teams[id].Load(); t != nil {
			add(p.end(t))
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range slices.Backward(p.transports) {
		for _, c := range p.chunks {
			add(t.Detach(c.Index))
		}
		add(t.Close())
	}
	// Memory that others still have mapped would stay until they let go; they do that first where they still can.
	if p.b != nil && p.lost.Load() == nil && len(p.chunks) > 0 {
		ctx, cancel := p.context()
		if err := p.b.Barrier(ctx); err != nil {
			p.log.Debug("not all PEs left together", "pe", p.rank, "error", err)
		}
		cancel()
	}
	for at, c := range p.chunks {
		add(p.mem.destroy(c))
		delete(p.chunks, at)
	}
	if p.mem != nil {
		add(p.mem.release())
	}
	add(p.tables.free())
	add(p.closeHot())
	if p.owns && p.b != nil {
		if err := p.b.Close(); err != nil && !errors.Is(err, bootstrap.ErrClosed) && p.lost.Load() == nil {
			add(err)
		}
	}
	if p.ctx != nil {
		add(p.ctx.Release())
	}
	return errors.Join(errs...)
}

func (p *PE) closeHot() error {
	p.hot.mu.Lock()
	defer p.hot.mu.Unlock()
	base := p.controlAddr
	if base == 0 {
		if p.hot.stream != 0 {
			return p.ctx.Do(func() error { return p.d.StreamDestroy(p.hot.stream) })
		}
		return nil
	}
	// The last look at the control block is past: errors that come now say "after Finalize".
	p.controlAddr = 0
	p.control = &layout.Control{Status: atomic.LoadUint32(&p.control.Status)}
	if p.ctx == nil {
		return p2p.ReleaseHost(base, 4096+stageBytes)
	}
	return p.ctx.Do(func() error {
		var errs []error
		clear(p.hot.functions)
		errs = append(errs, p.hot.loader.release(p.d))
		return errors.Join(append(errs, p.d.StreamDestroy(p.hot.stream), p.d.HostFree(base))...)
	})
}
