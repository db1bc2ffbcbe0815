package model

// A NIC reports the low bits of a counter that the device keeps in full. These two functions are the device's
// arithmetic, for any width, so that a small one can be tried in full: 16 bits on the wire, 4 in the model, 8 in the
// brute-force proof.

// Pending says whether, by a completion whose first block is wc, the count idx is not yet complete. It is right exactly
// while
// -(2^bits-1-n) <= idx - completed <= n.
func Pending(idx, wc uint64, bits uint, n uint64) bool {
	return (idx-wc-2)&(1<<bits-1) < n
}

// Consumed is the full counter of completed blocks that the completion wc means for a poller that waited for idx, which
// is complete.
func Consumed(idx, wc uint64, bits uint) uint64 {
	mask := uint64(1)<<bits - 1
	c := (wc + 1) & mask
	full := idx&^mask | c
	if idx&mask > c {
		full += mask + 1
	}
	return full
}
