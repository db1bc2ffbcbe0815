// Package device holds the tests of lshmem's device code, the headers in shmem/include: that all compilers take them,
// that the PTX has the instructions and scopes that are meant, what the load and store path does on real threads and
// under ThreadSanitizer, and the bytes of every work request. The protocol of the queues under load, against the
// software adapter, is tested in shmem/litmus.
package device
