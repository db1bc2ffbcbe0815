package gpu

// Description is what a device is like. It stays the same while the device is there, but for what its links do.
type Description struct {
	Architecture string // such as Hopper
	Capability   string // compute capability, such as 9.0
	Driver       string // version
	// NUMA is the node of the machine's memory that is nearest to the device, -1 where the machine does not say.
	NUMA  int
	Links []Link    // to the other devices of the inventory
	MIG   []Profile // the instances that the device can be divided into
}

// Link is how two devices reach each other.
type Link struct {
	Peer UUID
	// Path is the best way that there is, in the words of nvidia-smi topo: NV, PIX, PXB, PHB, NODE, SYS, from near to far.
	Path string
	// NVLinks is how many links Path NV has, 0 for other paths.
	NVLinks int
}

// Profile is a size of MIG instances.
type Profile struct {
	Name   string // such as 1g.10gb
	ID     int    // the driver's number of it
	Memory uint64 // bytes
	Units  int    // compute units
	Count  int    // how many of them a device can have
	// Placements are the slices of the device's memory that an instance can begin at, each as many as Size.
	Placements []int
	Size       int
}
