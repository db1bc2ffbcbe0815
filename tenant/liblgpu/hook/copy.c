// SPDX-License-Identifier: Apache-2.0

// Whether copies and memsets stay within allocations. A box reaches from its first byte to its last one; what lies behind the
// last row, up to the pitch, is not looked at.
#include "hook/copy.h"

bool lgpu_copy_within_row(CUdeviceptr at, size_t count, size_t size)
{
	size_t bytes;
	return __builtin_mul_overflow(count, size, &bytes) || lgpu_arena_holds(at, bytes);
}

// One side of a copy of a box, in bytes and rows.
struct side {
	CUmemorytype type;
	CUdeviceptr at;
	size_t x, y, z, pitch, height; // where it begins in what has such rows and slices
};

// within reports whether so many bytes of rows of slices are of one allocation.
static bool within(const struct side *s, size_t width, size_t rows, size_t slices)
{
	size_t slice, begin, end, part;
	if ((s->type != CU_MEMORYTYPE_DEVICE && s->type != CU_MEMORYTYPE_UNIFIED) || width == 0 || rows == 0 || slices == 0)
		return true;
	bool wild = __builtin_mul_overflow(s->pitch, s->height, &slice) || __builtin_mul_overflow(s->z, slice, &begin) ||
		    __builtin_mul_overflow(s->y, s->pitch, &part) || __builtin_add_overflow(begin, part, &begin) ||
		    __builtin_add_overflow(begin, s->x, &begin) || __builtin_mul_overflow(slices - 1, slice, &end) ||
		    __builtin_mul_overflow(rows - 1, s->pitch, &part) || __builtin_add_overflow(end, part, &end) ||
		    __builtin_add_overflow(end, width, &end);
	return wild || lgpu_arena_holds(s->at + begin, end);
}

bool lgpu_copy_within_rows(CUdeviceptr at, size_t pitch, size_t count, size_t size, size_t rows)
{
	size_t width;
	struct side s = {.type = CU_MEMORYTYPE_DEVICE, .at = at, .pitch = pitch};
	return __builtin_mul_overflow(count, size, &width) || within(&s, width, rows, 1);
}

bool lgpu_copy_within_2d(const CUDA_MEMCPY2D *c)
{
	if (c == NULL)
		return true;
	struct side src = {c->srcMemoryType, c->srcDevice, c->srcXInBytes, c->srcY, 0, c->srcPitch, 0};
	struct side dst = {c->dstMemoryType, c->dstDevice, c->dstXInBytes, c->dstY, 0, c->dstPitch, 0};
	return within(&src, c->WidthInBytes, c->Height, 1) && within(&dst, c->WidthInBytes, c->Height, 1);
}

// BOX checks a copy of either structure for boxes in three dimensions.
#define BOX(c)                                                                                                      \
	({                                                                                                          \
		struct side src_ = {(c)->srcMemoryType, (c)->srcDevice, (c)->srcXInBytes, (c)->srcY, (c)->srcZ,     \
				    (c)->srcPitch, (c)->srcHeight};                                                 \
		struct side dst_ = {(c)->dstMemoryType, (c)->dstDevice, (c)->dstXInBytes, (c)->dstY, (c)->dstZ,     \
				    (c)->dstPitch, (c)->dstHeight};                                                 \
		within(&src_, (c)->WidthInBytes, (c)->Height, (c)->Depth) &&                                        \
			within(&dst_, (c)->WidthInBytes, (c)->Height, (c)->Depth);                                  \
	})

bool lgpu_copy_within_3d(const CUDA_MEMCPY3D *c) { return c == NULL || BOX(c); }
bool lgpu_copy_within_peer(const CUDA_MEMCPY3D_PEER *c) { return c == NULL || BOX(c); }
