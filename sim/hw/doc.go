// Package hw is the hardware of the software GPU: a model that behaves like a device, so that what runs above it (a
// driver, limits, time slices) can be tested where there is no device. It has memory, page tables, compute units, copy
// engines and time; it has no driver API.
//
// # Model
//
//	Machine  the devices of one host, and the barrier that makes it safe to free memory
//	Device   memory, one compute engine, three movers, a clock
//	Memory   2 MiB frames of a memfd; a frame is touched when it is written and given back to the host when it is freed
//	Space    one address space: which addresses are mapped, to what, and whether they may be written
//	Channel  the work of one owner in one Space: grids submitted to the compute engine
//	Grid     a number of blocks with equal needs; blocks run on units, many at a time, in no promised order
//
// Every unit is given to the channels that may use it one after the other, each for at most one slice while others
// wait. So a channel that may use all units takes turns with the others on the whole device; channels that are confined
// to different units run at the same time, and where only some units are common, those alone are shared by time. A
// channel that runs out of work goes on at the next step, a quantum later at most, while others run beside it. Grids of
// one channel share its units. A unit issues one instruction a cycle, so that blocks that share a unit take as long as
// the sum of their cycles: concurrency hides nothing and invents nothing.
//
// # Slices
//
// A channel has the device's slice, or one of its own (Channel.SetSlice); what it has left of its turn when it is
// preempted is lost. A slice ends for nobody: while no other channel wants the unit it begins again when it has been
// used up. So a channel that gets work while another has the unit waits for what is left of that one's slice. Then the
// other is preempted, in the middle of its grids; its blocks stay where they are and go on later.
//
// Where the preempted channel could go on, a switch passes first (Config.Switch), in which nobody runs on the unit: its
// state is saved and the other's loaded. A channel that has nothing to run leaves nothing to be saved, and giving its
// unit on is free. A switch is in no channel's busy time. It is in the device's, as far as is known of the utilisation
// that NVML tells of a physical GPU: a device that is always wanted is never idle. The movers know neither slices nor
// switches.
//
// With a switch of 200 µs this is within some per cent of an H200, where slices of up to 100 µs or several channels
// that want the device all the time are concerned (slice_test.go). Beside longer slices an H200 lets most visitors in
// sooner than the model does, which keeps to the worst case.
//
// # Turns
//
// A device notes whose work it ran when (Device.Turns), as a physical GPU's driver logs context switches. A turn is the
// time of one channel from the end of a switch to it until another is switched to, or until it dies: what the device
// idles meanwhile belongs to it, a slice that begins again for the same channel ends nothing, and a switch belongs to
// nobody. This is about the compute engine only. While a channel is confined to a part of the units, channels run at the
// same time and there are no turns.
//
// # Time
//
// Device time is in nanoseconds and runs with the wall clock, except that it stands still when the host could not
// execute a step in the time the device would have needed. The device is then slower than its data sheet, never faster.
// A step executes up to one quantum ahead of the clock; results carry the device time at which they count, and
// code that shows them to a program waits for that time first (Clock.Wait).
// In virtual mode nothing waits, and device time is what the engines have reached.
//
// # Concurrency
//
// All methods may be called from any goroutine. Callbacks (Grid.Done, Move.Done) run on an engine's goroutine with no
// lock of this package locked, and may submit more work. Memory and host pages are freed only between steps: freeing
// waits for the step that runs, which is short.
package hw
