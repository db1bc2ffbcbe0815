package driver

import "github.com/lgpu/lgpu/sim/wire"

// defaultStack is what every thread has as its stack, in bytes, as long as nothing asks for more. It is part of what a
// context takes.
const defaultStack = 1024

// maxStack is the largest stack that a thread can have, in bytes.
const maxStack = 512 << 10

// setStack gives every thread that the context's device can run at once a stack of so many bytes. What is above the
// default is taken from the device at once, and given back when the stacks become smaller.
func (c *context) setStack(bytes uint64) Result {
	before := c.limits[wire.CU_LIMIT_STACK_SIZE]
	if c.stacks != nil {
		c.stacks.release() // nobody can have it meanwhile: the driver is locked
		c.stacks = nil
	}
	if bytes > defaultStack {
		var res Result
		threads := uint64(c.p.unitCount(c.dev)) * uint64(c.dev.hw.Config.Limits.Threads)
		if c.stacks, res = c.p.newPhysical(c.dev, threads*(bytes-defaultStack)); res != success {
			if before < bytes { // there was room for those
				c.setStack(before)
			}
			return res
		}
	}
	c.limits[wire.CU_LIMIT_STACK_SIZE] = bytes
	return success
}

// deepen gives the context the stacks that a kernel needs. They stay.
func (c *context) deepen(f *function) Result {
	if need := uint64(f.kernel.LocalBytes); need > c.limits[wire.CU_LIMIT_STACK_SIZE] {
		return c.setStack(need)
	}
	return success
}
