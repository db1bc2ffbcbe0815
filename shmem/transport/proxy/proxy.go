// Package proxy posts for devices that cannot reach a NIC's doorbell: a device raises a word in host memory to the number of
// blocks that are ready, and a thread of the host writes the doorbell record and rings.
//
// A Poster is that thread for the queues of one PE. It looks at all words in turn, as long as any of them moves, and then
// ever more seldom, so that an idle PE costs little.
package proxy

// Word is one queue of a Poster.
type Word struct {
	// Posted is what the device raises: blocks since the queue was made, 8 bytes in host byte order.
	Posted []byte
	// Record is the send queue's word of the doorbell record, 4 bytes.
	Record []byte
	// Number is the queue pair's.
	Number uint32
	// Ring writes the doorbell.
	Ring func([8]byte)
}
