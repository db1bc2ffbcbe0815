package shmem

import (
	"github.com/lgpu/lgpu/shmem/kernels"
	"github.com/lgpu/lgpu/shmem/layout"
)

// strides are what a strided copy is given: n elements of size bytes, every destStride-th and every sourceStride-th.
type strides struct {
	dest, source             uint64
	destStride, sourceStride int64
	size                     int
	n                        uint64
	pe                       int
}

// span is how many bytes n elements with a stride cover.
func span(op string, stride int64, size int, n uint64) (uint64, error) {
	if stride < 1 || n > 1<<40 || stride > 1<<40/int64(max(1, n)) {
		return 0, fault(layout.StatusArgument, op, -1, "%d elements by a stride of %d", n, stride)
	}
	if n == 0 {
		return 0, nil
	}
	return ((n-1)*uint64(stride) + 1) * uint64(size), nil
}

// IPut copies n elements of 1, 2, 4 or 8 bytes from every sourceStride-th to every destStride-th of a PE's heap.
func (o *operations) IPut(dest, source uint64, destStride, sourceStride int64, size int, n uint64, pe int) error {
	a, err := o.strided("iput", kernels.StridedPut, &strides{dest, source, destStride, sourceStride, size, n, pe})
	if err != nil || a.bytes == 0 {
		return err
	}
	return o.runRMA("iput", kernels.StridedPut, a)
}

// IGet copies n elements of a PE's heap to local memory, which in a job with GPUs must be memory that the GPU reaches.
func (o *operations) IGet(dest, source uint64, destStride, sourceStride int64, size int, n uint64, pe int) error {
	a, err := o.strided("iget", kernels.StridedGet, &strides{dest, source, destStride, sourceStride, size, n, pe})
	if err != nil || a.bytes == 0 {
		return err
	}
	return o.runRMA("iget", kernels.StridedGet, a)
}

// strided checks a strided copy and returns what its kernel is given: no bytes where there is nothing left to do,
// because there are no elements or because the host's processor has copied them.
func (o *operations) strided(op string, what kernels.RMAOperation, s *strides) (with, error) {
	if err := width(op, s.size); err != nil {
		return with{}, err
	}
	heap, stride := s.dest, s.destStride
	if what == kernels.StridedGet {
		heap, stride = s.source, s.sourceStride
	}
	bytes, err := span(op, stride, s.size, s.n)
	if err != nil {
		return with{}, err
	}
	if _, err := span(op, s.destStride+s.sourceStride-stride, s.size, s.n); err != nil {
		return with{}, err
	}
	at, err := o.target(op, heap, bytes, s.pe)
	if err != nil || s.n == 0 {
		return with{}, err
	}
	if o.exec.plain() {
		return with{}, s.copy(op, what, at)
	}
	return with{dest: s.dest, source: s.source, bytes: s.n * uint64(s.size), destStride: s.destStride, srcStride: s.sourceStride,
		pe: uint32(s.pe), kind: unsigned(s.size)}, nil
}

// copy copies by the host's processor. at is where the PE's memory is mapped, or 0.
func (s *strides) copy(op string, what kernels.RMAOperation, at uint64) error {
	if at == 0 {
		return notMapped(op, s.pe)
	}
	dest, source, size := at, s.source, uint64(s.size)
	if what == kernels.StridedGet {
		dest, source = s.dest, at
	}
	return wrap(op, touch(func() {
		for i := range s.n {
			v := loadElement(source+i*uint64(s.sourceStride)*size, s.size)
			storeElement(dest+i*uint64(s.destStride)*size, v, s.size)
		}
	}))
}
