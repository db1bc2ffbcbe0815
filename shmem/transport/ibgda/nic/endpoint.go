package nic

// Endpoint is one side of a connection, as the other side needs it. It crosses processes: see ibgda's codec.
type Endpoint struct {
	Number  uint32 // of the queue pair, 24 bits
	Link    Link
	Port    uint8
	LID     uint16
	MTU     uint16 // bytes
	GID     [16]byte
	Address string // of a software HCA, at most MaxAddress bytes
}

// MaxAddress is the longest Address of an Endpoint in bytes.
const MaxAddress = 255
