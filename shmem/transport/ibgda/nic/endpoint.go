package nic

// Endpoint is one side of a connection, as the other side needs it. It crosses processes: see ibgda's codec.
type Endpoint struct {
	Number uint32 // of the queue pair, 24 bits
	Link   Link
	LID    uint16
	MTU    uint16 // bytes
	GID    [16]byte
	// Peer is the PE that it is of. It does not cross: who receives an endpoint knows whose it is.
	Peer int
	// Software is how a software HCA is reached, in its own encoding: at most MaxSoftware bytes.
	Software []byte
}

// MaxSoftware is the longest Software of an Endpoint in bytes.
const MaxSoftware = 512
