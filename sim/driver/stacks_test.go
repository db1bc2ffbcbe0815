package driver

import (
	"testing"

	"github.com/lgpu/lgpu/sim/wire"
)

// deep has kernels that need stacks of 4 KiB and of 64 KiB.
var deep = []byte(`.version 6.0
.target sm_70
.address_size 64
.visible .entry small() { .local .align 4 .b8 a[4096]; .reg .u64 %rd1; mov.u64 %rd1, a; st.local.u8 [%rd1], 1; ret; }
.visible .entry large() { .local .align 4 .b8 a[65536]; .reg .u64 %rd1; mov.u64 %rd1, a; st.local.u8 [%rd1], 1; ret; }
`)

// TestStacks: stacks take memory for every thread that the device can run, from the moment that the limit is raised or
// that a kernel needs them, and give it back when the limit is lowered.
func TestStacks(t *testing.T) {
	b := newBench(t, 1, 64<<20)
	c := b.connect()
	defer c.Close()
	units, _ := c.DeviceGetAttribute(c.call, wire.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0)
	threads, _ := c.DeviceGetAttribute(c.call, wire.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 0)
	all := uint64(units) * uint64(threads)
	first := c.free()
	small, large := c.kernel(deep, "small"), c.kernel(deep, "large")
	before := c.free()
	check := func(what string, stack, taken uint64) {
		t.Helper()
		limit, res := c.CtxGetLimit(c.call, wire.CU_LIMIT_STACK_SIZE)
		c.want(res, success)
		if limit != stack || before-c.free() != taken {
			t.Errorf("%s: the limit is %d and %d bytes are taken, want %d and %d", what, limit, before-c.free(), stack, taken)
		}
	}
	set := func(bytes uint64, want Result) {
		t.Helper()
		c.want(c.CtxSetLimit(c.call, wire.CU_LIMIT_STACK_SIZE, bytes), want)
	}
	set(2048, success)
	check("raised", 2048, all*1024)
	set(512, success)
	check("lowered", 512, 0)
	c.want(c.launch(small, shape(1, 1), 0), success)
	check("a kernel of 4 KiB", 4096, all*3072)
	c.sync()
	c.want(c.launch(small, shape(1, 1), 0), success)
	set(2048, success)
	check("lowered again", 2048, all*1024)
	// What does not fit changes nothing.
	p := c.alloc(c.free() - 2<<20)
	full := before - c.free()
	set(32<<10, errOutOfMemory)
	check("a limit that does not fit", 2048, full)
	c.want(c.launch(large, shape(1, 1), 0), errOutOfMemory)
	check("a kernel that does not fit", 2048, full)
	set(maxStack+1, errInvalidValue)
	c.want(c.MemFree(c.call, wire.CUdeviceptr(p)), success)
	check("freed", 2048, all*1024)
	// It goes with the context.
	c.want(c.DevicePrimaryCtxReset(c.call, 0), success)
	c.use(0)
	before = first
	check("another context", defaultStack, 0)
}
