// Package wire is the protocol between a program's libcuda.so.1 and libnvidia-ml.so.1 (sim/client, in C) and the
// hardware process: who may say what, how it is encoded, and where each call is answered. Most of it is generated from
// tenant/abi/cuda.tsv and calls.txt; the driver's semantics are implementations of Driver and Management.
//
//	err := wire.Serve(ctx, listener, wire.Handler{NewDriver: driver.NewClient, Management: hardware})
//
// # Channels
//
// Every thread of a program that makes a call has a channel of its own: one connection of a Unix stream socket and one
// shared memory file with a ring in each direction. A connection opens with
//
//	client: hello   magic u32, kind u32, protocol u64, token [16]byte, thread u64
//	server: welcome magic u32, status i32 (a CUresult), protocol u64, token [16]byte, pid u64,
//	        and the memory file's descriptor
//
// kind is 1 for a process's first channel, its service channel, whose welcome carries a new token; 2 for a calling
// thread's, which must bring that token and come from the same process (SO_PEERCRED); 3 for a management channel. The
// memory file is the server's, sealed at its size:
//
//	0x0000  request ring: tail u64 (client), head u64 at +64 (server), sleeping u32 at +128 (server)
//	0x0400  reply ring:   tail u64 (server), head u64 at +64 (client), sleeping u32 at +128 (client)
//	0x1000  request records, 128 KiB
//	0x21000 reply records, 128 KiB
//	0x41000 bulk data, 1 MiB
//
// Tails and heads count bytes and never wrap; a record lies at its count modulo the ring's size. A record is
//
//	size u32 (a multiple of 8, with this header), op u32, then its payload
//
// and never crosses the ring's end: a record with op Pad fills the rest. A side that has published a record writes one
// byte to the socket if, and only if, the other side's "sleeping" is set: that is the doorbell. The other side sets it,
// looks at the ring once more, and then waits for the socket. The end of the socket's stream is the end of the other
// side: a client then answers every call with CUDA_ERROR_DEVICE_UNAVAILABLE, a server closes the process's Driver.
//
// # Calls
//
// A request's payload is context u64 (the thread's current context), flags u64 (bit 0: the per-thread default stream;
// bit 1: a descriptor comes over the socket, before the record is published), and then each parameter by its kind, all
// little-endian and padded to 8 bytes:
//
//	value, address, handle   8 bytes, sign-extended
//	structure                its bytes as C lays it out
//	string, array            u64 length in bytes, then the bytes; or length | 1<<63, then the address they are at
//	room for an array        the address it goes to (its capacity is a parameter of its own)
//
// A reply (op Reply) is result i64, flags u64 (bit 1: a descriptor follows over the socket), and then each result in
// the same encoding. Before it answers, the server may ask the waiting thread for its program's memory, up to the size
// of the bulk area at a time:
//
//	Fetch address u64, length u64   the client copies into the bulk area and sends Done
//	Store address u64, length u64   the client copies from the bulk area and sends Done
//	Print length u64                the client writes the pieces of text in the bulk area (ptx.PieceText and so on) to its
//	                                standard output and sends Done
//
// So pageable memory of a program is reached by the program itself, in the call, and a stray address faults there as it
// does with the real driver. Over the service channel the server asks for the same at any time, and also for
//
//	Invoke function u64, kind u64, a u64, b u64   run a host function (HostFunction) or a stream callback (StreamCallback),
//	                                              or wait until unlocked (ParkService)
//
// each of which the service thread answers with Done.
//
// # Trust
//
// A client is hostile: lengths, counts, handles, ring positions and descriptors are checked before use, a record is
// copied out of shared memory before it is decoded, and a client that breaks the protocol loses the connection, as if
// its process had been killed. What a tenant can reach is its own Driver.
package wire

//go:generate go run ./gen

// Environment is the variable that names the socket of the hardware process.
const Environment = "LGPU_SIM"

// Operations of records that are no calls. Calls are numbered from 0 in the order of calls.txt.
const (
	opReply uint32 = 0xffff0000 + iota
	opFetch
	opStore
	opInvoke
	opDone
	opPad
	opPrint
)

// Kinds of channel.
const (
	kindService    = 1
	kindThread     = 2
	kindManagement = 3
)

// The shared memory of a channel, in bytes.
const (
	magic        = 0x7570676c // "lgpu"
	ringSize     = 128 << 10
	bulkSize     = 1 << 20
	requestCtl   = 0
	replyCtl     = 0x400
	requestStart = 0x1000
	replyStart   = requestStart + ringSize
	bulkStart    = replyStart + ringSize
	channelSize  = bulkStart + bulkSize
	maxRecord    = 64 << 10 // of a record with its header; what is larger goes by Fetch and Store
)

// maxArray bounds an array or a string that a client sends: no call of the driver needs more. Images of modules are the
// largest.
const maxArray = 256 << 20
