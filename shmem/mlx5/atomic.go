package mlx5

import "encoding/binary"

// Modifiers of the control segment, as Entry.Modifier has them.
const (
	ModifierAtomic4 = ModAtomic4 >> 24
	ModifierAtomic8 = ModAtomic8 >> 24
)

// Atomic is an atomic operation on 4 or 8 bytes: what its segments say, the plain forms turned into the masked ones.
type Atomic struct {
	Bytes int  // 4 or 8
	Swap  bool // compare and swap, else fetch and add

	Add uint64
	// Boundary has a bit set at the highest bit of every field that is added by itself: no carry leaves such a bit. The
	// highest bit of all needs none.
	Boundary uint64

	Operand     uint64 // what is swapped in, where SwapMask has ones
	Compare     uint64 // with what, where CompareMask has ones
	SwapMask    uint64
	CompareMask uint64
}

// Apply is what the operation makes of an old value.
func (a *Atomic) Apply(old uint64) uint64 {
	if a.Swap {
		if (old^a.Compare)&a.CompareMask != 0 {
			return old
		}
		return old&^a.SwapMask | a.Operand&a.SwapMask
	}
	boundary := a.Boundary
	sum := (old &^ boundary) + (a.Add &^ boundary)
	sum ^= (old ^ a.Add) & boundary
	if a.Bytes == 4 {
		sum &= 1<<32 - 1
	}
	return sum
}

func (a *Atomic) parse(b []byte, opcode, modifier uint8, strict Strictness) (used int, err error) {
	masked := opcode == OpMaskedSwap || opcode == OpMaskedAdd
	switch {
	case !masked && modifier == 0, masked && modifier == ModifierAtomic8:
		a.Bytes = 8
	case masked && modifier == ModifierAtomic4:
		a.Bytes = 4
	default:
		return 0, ErrModifier
	}
	a.Swap = opcode == OpMaskedSwap || opcode == OpCompareSwap
	used = SegmentBytes
	if opcode == OpMaskedSwap && a.Bytes == 8 {
		used = 2 * SegmentBytes
	}
	if len(b) < used {
		return 0, ErrSegments
	}
	u32 := func(at int) uint64 { return uint64(binary.BigEndian.Uint32(b[at:])) }
	u64 := func(at int) uint64 { return binary.BigEndian.Uint64(b[at:]) }
	switch {
	case opcode == OpFetchAdd:
		a.Add = u64(0)
		if strict&StrictReserved != 0 && u64(8) != 0 {
			return 0, ErrReserved
		}
	case opcode == OpCompareSwap:
		a.Operand, a.Compare, a.SwapMask, a.CompareMask = u64(0), u64(8), ^uint64(0), ^uint64(0)
	case opcode == OpMaskedAdd && a.Bytes == 4:
		a.Add, a.Boundary = u32(0), u32(4)
		if strict&StrictReserved != 0 && u64(8) != 0 {
			return 0, ErrReserved
		}
	case opcode == OpMaskedAdd:
		a.Add, a.Boundary = u64(0), u64(8)
	case a.Bytes == 4:
		a.Operand, a.Compare, a.SwapMask, a.CompareMask = u32(0), u32(4), u32(8), u32(12)
	default:
		a.Operand, a.Compare, a.SwapMask, a.CompareMask = u64(0), u64(8), u64(16), u64(24)
	}
	return used, nil
}

func (a *Atomic) append(dst []byte, opcode, modifier uint8) ([]byte, error) {
	masked := opcode == OpMaskedSwap || opcode == OpMaskedAdd
	bytes := 8
	switch {
	case !masked && modifier == 0, masked && modifier == ModifierAtomic8:
	case masked && modifier == ModifierAtomic4:
		bytes = 4
	default:
		return dst, ErrModifier
	}
	if bytes == 4 && (a.Add|a.Boundary|a.Operand|a.Compare|a.SwapMask|a.CompareMask)>>32 != 0 {
		return dst, ErrRange
	}
	u32 := func(values ...uint64) {
		for _, v := range values {
			dst = binary.BigEndian.AppendUint32(dst, uint32(v))
		}
	}
	u64 := func(values ...uint64) {
		for _, v := range values {
			dst = binary.BigEndian.AppendUint64(dst, v)
		}
	}
	switch {
	case opcode == OpFetchAdd:
		u64(a.Add, 0)
	case opcode == OpCompareSwap:
		u64(a.Operand, a.Compare)
	case opcode == OpMaskedAdd && bytes == 4:
		u32(a.Add, a.Boundary, 0, 0)
	case opcode == OpMaskedAdd:
		u64(a.Add, a.Boundary)
	case bytes == 4:
		u32(a.Operand, a.Compare, a.SwapMask, a.CompareMask)
	default:
		u64(a.Operand, a.Compare, a.SwapMask, a.CompareMask)
	}
	return dst, nil
}
