// Package shmem is symmetric memory between the PEs of a job, normally one process for each GPU. Every PE allocates the
// same things in its heap, and then reads, writes and signals in the heaps of the others: from the host, on streams,
// and from inside kernels (lshmem.cuh, with the State that a kernel gets as a parameter).
//
//	pe, err := shmem.Init(ctx, config)      // ConfigFrom(os.Environ())
//	defer pe.Finalize()
//	a, err := pe.Malloc(1 << 20)            // all PEs, the same size
//	err = pe.PutOnStream(a, source, n, 1, stream)
//	err = pe.BarrierOnStream(layout.TeamWorld, stream)
//
// # Addresses
//
// All addresses are numbers: those of device or host memory of this process. Where a call takes a PE, an address in the
// heap means the same offset in the heap of that PE.
//
// # Collective calls
//
// All PEs call Init, Malloc and its variants, Free, RegisterSymmetric and Finalize, in the same order, with the same
// sizes. The package checks this: if one PE asks for something else, or cannot do it, all PEs get an error and nothing
// has changed. Calls that make or end a team are made by all PEs of its parent or, for TeamCreate, by all members. If a
// member does not make the call in time, or a collective operation between PEs without GPUs fails in that way, the job
// ends for all.
//
// # Errors
//
// Every error is an *Error with a layout.Status*. No call waits longer than Config.Timeout. When a PE dies, waits end
// everywhere, also in kernels, and every call returns an error with StatusPeer that names the PE. After that only
// Finalize is useful.
//
// # Concurrency
//
// Any goroutine may call a PE's methods at any time. Collective calls must be in the same order on all PEs. That order
// holds among the blocking operations of one team, which run one after the other. Operations of different teams, and
// calls that are not collective, run concurrently with them, so that one goroutine's call may be what another's call
// waits for. Operations of several teams that move data at the same time on one GPU must fit on it together:
// Config.MaxCTAs. OnStream calls return when the work is queued, allocate nothing, and may be captured into CUDA
// graphs, which stay valid until Finalize. A process may have any number of PEs, of one job or of several.
//
// # Inside
//
// A PE is put together from parts, each a type with its own state and lock; the PE's methods are those of its parts:
//
//	job               who the PEs are, how they agree, and how the job ends
//	executor          the GPU, or the host's processor, that carries work out; its launcher starts kernels
//	routes            which transport reaches which PE, and where the heaps of the others are mapped here
//	symmetricHeap     the heap: allocation, growth, addresses
//	buffers           registered memory outside of the heap
//	operations        blocking calls with one PE: put, get, atomic operations, signals, waits
//	streamOperations  the same in the order of a stream
//	teams             groups of PEs; mailboxes carry their agreements
//	collectives       operations of all members of a team
//
// Each part uses only parts above it in this list. Locks are taken in this order: mailboxes.mu, team.blocking,
// symmetricHeap.mu, buffers.mu, routes.mu, executor.own.mu, buffers.tableMu, launcher.mu.
package shmem
