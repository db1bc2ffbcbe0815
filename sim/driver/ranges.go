package driver

import (
	"slices"
	"sort"
)

// ranges is a set of values that each own addresses, none in common.
type ranges[T any] struct {
	list []span[T]
}

type span[T any] struct {
	base, size uint64
	value      T
}

func (r *ranges[T]) index(addr uint64) int {
	return sort.Search(len(r.list), func(i int) bool { return r.list[i].base+r.list[i].size > addr })
}

// add puts in a range; false if it meets another.
func (r *ranges[T]) add(base, size uint64, v T) bool {
	i := r.index(base)
	if i < len(r.list) && r.list[i].base < base+size {
		return false
	}
	r.list = slices.Insert(r.list, i, span[T]{base, size, v})
	return true
}

// find is the value that owns addr.
func (r *ranges[T]) find(addr uint64) (v T, ok bool) {
	i := r.index(addr)
	if i == len(r.list) || r.list[i].base > addr {
		return v, false
	}
	return r.list[i].value, true
}

// remove takes out the range that begins at base.
func (r *ranges[T]) remove(base uint64) {
	if i := r.index(base); i < len(r.list) && r.list[i].base == base {
		r.list = slices.Delete(r.list, i, i+1)
	}
}

// all are the values in order of address.
func (r *ranges[T]) all() []T {
	out := make([]T, len(r.list))
	for i, s := range r.list {
		out[i] = s.value
	}
	return out
}

// begins reports whether a range begins at base.
func (r *ranges[T]) begins(base uint64) bool { return r.start(base) == base && base != 0 }

// start is where the range that owns addr begins; 0 where there is none.
func (r *ranges[T]) start(addr uint64) uint64 {
	i := r.index(addr)
	if i == len(r.list) || r.list[i].base > addr {
		return 0
	}
	return r.list[i].base
}

// any reports whether a range meets [base, base+size).
func (r *ranges[T]) any(base, size uint64) bool {
	i := r.index(base)
	return i < len(r.list) && r.list[i].base < base+size
}

// within are the values whose ranges begin in [base, base+size).
func (r *ranges[T]) within(base, size uint64) (out []T) {
	for i := r.index(base); i < len(r.list) && r.list[i].base < base+size; i++ {
		out = append(out, r.list[i].value)
	}
	return out
}
