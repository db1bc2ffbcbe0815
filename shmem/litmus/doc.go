// Package litmus runs lshmem's device header as CPU code, on real threads and under the sanitizers, against the
// software adapter at its most unhelpful: work scattered, doorbells lost, completions late, counters about to wrap. The
// model next door proves the protocol; this shows that the code follows it.
//
// testdata/litmus.cc is the program; a Go test compiles it, shares memory with it, and is its network adapter.
// gpu/litmus.cu is the program for real GPUs.
package litmus
