package driver

import (
	"github.com/lgpu/lgpu/sim/hw"
	"github.com/lgpu/lgpu/sim/ptx"
	"github.com/lgpu/lgpu/sim/wire"
)

// Limits of a block, as those of compute capability 9.0.
const (
	maxThreads       = 1024
	maxBlockZ        = 64
	maxGridX         = 1<<31 - 1
	maxGridYZ        = 65535
	sharedDefault    = 48 << 10  // bytes of shared memory of a block
	sharedOptIn      = 227 << 10 // for kernels that ask for more
	sharedReserved   = 1 << 10   // bytes that the system takes of every block
	registersPerWarp = 256       // registers are given out in such portions

	registersPerBlock = 65536
)

// kernelOp is the op of a launch.
type kernelOp struct {
	fn          *function
	grid, block [3]uint32
	shared      uint32
	params      []byte
	cooperative bool
	priority    *int32 // nil: the stream's
	stream      int    // priority of the stream that it was launched on
	attrs       []wire.CUlaunchAttribute
	kern        uint64 // CUkernel that the program gave, for a graph's node
}

// ptxProgram makes the blocks of a grid for the compute engine.
type ptxProgram struct{ grid *ptx.Grid }

func (p ptxProgram) Block(i int64) (hw.Block, error) { return ptxBlock{p.grid.Block(i)}, nil }

type ptxBlock struct{ b *ptx.Block }

func (b ptxBlock) Run(at hw.At, cycles int64) (int64, bool, error) {
	return b.b.Run(ptx.At{SM: at.Unit, SMs: at.Units, Cycle: at.Cycle, Nanos: int64(at.Time), NanosPerCycle: at.NanosPerCycle}, cycles)
}

// needs is what a block of k takes of a unit.
func needs(k *ptx.Kernel, threads int, dynamic int) hw.Needs {
	warps := (threads + 31) / 32
	return hw.Needs{
		Threads:   warps * 32,
		Registers: warps * int(roundUp(uint64(max(k.Regs, 1)*32), registersPerWarp)),
		Shared:    int(roundUp(uint64(k.SharedBytes+dynamic+sharedReserved), 128)),
	}
}

// blockThreads is how many threads a block of k has at most, by what the source says and by its registers.
func blockThreads(k *ptx.Kernel) int {
	n := maxThreads
	if k.MaxThreads > 0 {
		n = min(n, k.MaxThreads)
	}
	perWarp := needs(k, 32, 0).Registers
	return min(n, registersPerBlock/perWarp*32)
}

// check says whether the launch is one that the device can do, as the real driver would.
func (o *kernelOp) check() Result {
	threads := uint64(o.block[0]) * uint64(o.block[1]) * uint64(o.block[2])
	for i, n := range o.grid {
		if n == 0 || i == 0 && n > maxGridX || i > 0 && n > maxGridYZ {
			return errInvalidValue
		}
	}
	if threads == 0 || o.block[0] > maxThreads || o.block[1] > maxThreads || o.block[2] > maxBlockZ || threads > maxThreads {
		return errInvalidValue
	}
	k := o.fn.kernel
	if uint64(o.shared) > uint64(o.fn.maxDynamic) {
		return errInvalidValue
	}
	if r := k.ReqNTID; r[0] != 0 && (uint32(r[0]) != o.block[0] || uint32(max(r[1], 1)) != o.block[1] || uint32(max(r[2], 1)) != o.block[2]) {
		return errInvalidValue
	}
	if threads > uint64(blockThreads(k)) {
		return errLaunchOutOfResources
	}
	if len(o.params) < k.ParamBytes {
		return errInvalidValue
	}
	dev := o.fn.module.ctx.dev
	per, units := dev.hw.Config.Limits.PerUnit(needs(k, int(threads), int(o.shared))), o.fn.module.ctx.units
	if per == 0 || units == 0 {
		return errLaunchOutOfResources
	}
	if o.cooperative {
		blocks := uint64(o.grid[0]) * uint64(o.grid[1]) * uint64(o.grid[2])
		if blocks > uint64(per*units) {
			return errCooperativeTooLarge
		}
	}
	return success
}

// attributes takes the attributes of a launch in.
func (o *kernelOp) attributes(attrs []wire.CUlaunchAttribute) Result {
	for _, a := range attrs {
		switch a.Id {
		case wire.CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
			o.cooperative = uint32(a.Value[0]) != 0
		case wire.CU_LAUNCH_ATTRIBUTE_PRIORITY:
			v := int32(clampPriority(int(int32(a.Value[0]))))
			o.priority = &v
		case wire.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
			// A cluster of one block is what every launch is; more needs hardware that is not there.
			x, y, z := uint32(a.Value[0]), uint32(a.Value[0]>>32), uint32(a.Value[1])
			if x > 1 || y > 1 || z > 1 {
				return errInvalidClusterSize
			}
		case wire.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT, wire.CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT,
			wire.CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
			return errNotSupported
		case wire.CU_LAUNCH_ATTRIBUTE_IGNORE, wire.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
			wire.CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, wire.CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
			wire.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, wire.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP,
			wire.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, wire.CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
			wire.CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION, wire.CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING:
			// Hints: what they ask for has no meaning here.
		default:
			return errInvalidValue
		}
		o.attrs = append(o.attrs, a)
	}
	return success
}

func (o *kernelOp) begin(d *Driver, w *work, at hw.Time) {
	c := w.ctx
	threads := int(o.block[0] * o.block[1] * o.block[2])
	g, err := o.fn.module.image.NewGrid(ptx.Launch{
		Kernel: o.fn.kernel, Grid: o.grid, Block: o.block, SharedDynamic: o.shared, Params: o.params, Cooperative: o.cooperative, ID: d.id(),
		Print: c.output.print,
	}, c.space)
	if err == nil {
		priority := o.stream
		if o.priority != nil {
			priority = int(*o.priority)
		}
		err = c.channel.Submit(&hw.Grid{
			Program: ptxProgram{g}, Blocks: g.Blocks(), Needs: needs(o.fn.kernel, threads, int(o.shared)), Priority: -priority, Ready: at,
			Done: func(end hw.Time, err error) { d.ended(w, c, end, err) },
		})
	}
	if err != nil {
		d.log.Warn("launch", "process", c.p.pid, "kernel", o.fn.kernel.Name, "error", err)
		c.fail(err)
	}
}

// launch checks a launch and puts it on a stream.
func (s *stream) launch(o *kernelOp) Result {
	if o.fn.module.ctx != s.ctx {
		return errInvalidHandle
	}
	if res := o.check(); res != success {
		return res
	}
	if s.capture == nil {
		if res := s.ctx.deepen(o.fn); res != success {
			return res
		}
	}
	s.ctx.prints = s.ctx.prints || o.fn.module.parsed.Prints
	o.stream = s.priority
	_, res := s.submit(o)
	return res
}

// occupancy is how many blocks of f fit on one unit.
func (f *function) occupancy(threads int, dynamic uint64) int {
	if threads > blockThreads(f.kernel) || dynamic > uint64(f.maxDynamic) {
		return 0
	}
	return f.module.ctx.dev.hw.Config.Limits.PerUnit(needs(f.kernel, threads, int(dynamic)))
}
