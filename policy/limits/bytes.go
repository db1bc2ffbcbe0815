package limits

import (
	"encoding/json"
	"math"
	"strconv"

	"github.com/lgpu/lgpu/internal/units"
)

// Bytes is a limit on an amount of memory. The zero value is no limit, which is more than any amount; a limit of 0
// bytes is AtMost(0).
type Bytes struct {
	most    uint64 // 0 without a limit, so that == compares
	limited bool
}

// AtMost is a limit of n bytes.
func AtMost(n uint64) Bytes { return Bytes{n, true} }

// Limit returns the number of bytes, and whether there is a limit at all.
func (b Bytes) Limit() (n uint64, limited bool) { return b.most, b.limited }

// Or returns the number of bytes, or n where there is no limit.
func (b Bytes) Or(n uint64) uint64 {
	if b.limited {
		return b.most
	}
	return n
}

// Least returns the lower of two limits.
func (b Bytes) Least(other Bytes) Bytes {
	if !b.limited || other.limited && other.most < b.most {
		return other
	}
	return b
}

// Plus adds two limits: their sum has none if one of them has none.
func (b Bytes) Plus(other Bytes) Bytes {
	if !b.limited || !other.limited {
		return Bytes{}
	}
	return AtMost(b.most + min(other.most, math.MaxUint64-b.most))
}

// Pointer returns the number of bytes for messages, in which nil is no limit.
func (b Bytes) Pointer() *uint64 {
	if !b.limited {
		return nil
	}
	return &b.most
}

// FromPointer is the opposite of Pointer.
func FromPointer(p *uint64) Bytes {
	if p == nil {
		return Bytes{}
	}
	return AtMost(*p)
}

// String is what files show: bytes without a unit, or max.
func (b Bytes) String() string {
	if !b.limited {
		return wordMax
	}
	return strconv.FormatUint(b.most, 10)
}

// Size is the limit for people, such as 8 GiB or max.
func (b Bytes) Size() string {
	if !b.limited {
		return wordMax
	}
	return units.FormatSize(b.most)
}

// MarshalJSON writes a number, or null for no limit.
func (b Bytes) MarshalJSON() ([]byte, error) { return json.Marshal(b.Pointer()) }

// UnmarshalJSON reads what MarshalJSON writes.
func (b *Bytes) UnmarshalJSON(data []byte) error {
	var p *uint64
	if err := json.Unmarshal(data, &p); err != nil {
		return err
	}
	*b = FromPointer(p)
	return nil
}
