// Package ibgda is the transport whose work requests the device posts itself: RC queue pairs in the mlx5 layout, in memory that
// the device writes, executed by a NIC (shmem/verbs), by the software HCA on the host or by the one on the GPU (shmem/hca).
//
// # Resources
//
// A PE has QueuesPerPE queue pairs to every PE, itself included; queue i to a PE is queues[i*PEs + pe] and is on NIC i modulo
// the number of NICs. Each has one collapsed completion queue. Work queues, completion queues, records and internal buffers
// are one contiguous block of memory per kind and NIC.
//
// # Who posts
//
// Where the device cannot reach the doorbell, or is told not to, it raises a word in host memory and a thread of the host
// (package proxy) writes the record and rings. That is the transport named proxy; nothing else differs.
//
// # Order of calls
//
// Open; Endpoints; Connect with what the other PEs' Endpoints gave; then, for each chunk of the heap, Register and Attach with
// what the others' Register gave, and Detach before the chunk goes; Close. These calls belong to one goroutine at a time.
package ibgda
