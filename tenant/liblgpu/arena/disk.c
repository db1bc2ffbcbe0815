// SPDX-License-Identifier: Apache-2.0

// Copies between a device and a file on a disk, by way of two buffers: while one is read or written, the driver copies
// the other. The kernel keeps no copy of its own (O_DIRECT), where the file system can do that.
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "arena/parts.h"
#include "base/futex.h"

#define BUFFER (UINT64_C(16) << 20)

void lgpu_disk_open(struct lgpu_disk *d, int fd)
{
	int flags = fcntl(fd, F_GETFL);
	if (flags >= 0)
		(void)fcntl(fd, F_SETFL, flags | O_DIRECT);
	__atomic_store_n(&d->fd, fd + 1, __ATOMIC_RELEASE);
}

void lgpu_disk_rest(struct lgpu_disk *d)
{
	if (d->buffers != NULL)
		lgpu_pages_free(d->buffers, 2 * BUFFER);
	d->buffers = NULL;
}

// transfer reads or writes all of a buffer.
static bool transfer(const struct lgpu_disk *d, char *data, uint64_t offset, uint64_t bytes, bool read)
{
	for (uint64_t done = 0; done < bytes;) {
		off_t at = (off_t)(offset + done);
		ssize_t n = read ? pread(d->fd - 1, data + done, bytes - done, at) : pwrite(d->fd - 1, data + done, bytes - done, at);
		if (n > 0) {
			done += (uint64_t)n;
		} else if (n == 0 || errno != EINTR) {
			lgpu_log(LGPU_LOG_ERROR, "cannot %s the file with memory that has left the device: %s", read ? "read" : "write",
				 n == 0 ? "it has come to its end" : strerror(errno));
			return false;
		}
	}
	return true;
}

static CUresult out(const struct lgpu_disk *d, uint64_t offset, CUdeviceptr at, uint64_t bytes, CUstream stream)
{
	uint64_t next = bytes < BUFFER ? bytes : BUFFER, n = 0;
	CUresult r = LGPU_REAL(cuMemcpyDtoHAsync_v2)(d->buffers, at, next, stream);
	for (uint64_t done = 0, turn = 0; done < bytes && r == CUDA_SUCCESS; done += n, turn++) {
		uint64_t rest = bytes - done - next;
		n = next;
		next = rest < BUFFER ? rest : BUFFER;
		r = LGPU_REAL(cuStreamSynchronize)(stream);
		if (r == CUDA_SUCCESS && next != 0)
			r = LGPU_REAL(cuMemcpyDtoHAsync_v2)(d->buffers + (turn + 1) % 2 * BUFFER, at + done + n, next, stream);
		if (r == CUDA_SUCCESS && !transfer(d, d->buffers + turn % 2 * BUFFER, offset + done, n, false))
			r = CUDA_ERROR_OPERATING_SYSTEM;
	}
	return r;
}

static CUresult back(const struct lgpu_disk *d, uint64_t offset, CUdeviceptr at, uint64_t bytes, CUstream stream)
{
	CUresult r = CUDA_SUCCESS;
	for (uint64_t done = 0, n, turn = 0; done < bytes && r == CUDA_SUCCESS; done += n, turn++) {
		char *buffer = d->buffers + turn % 2 * BUFFER;
		n = bytes - done < BUFFER ? bytes - done : BUFFER;
		bool read = transfer(d, buffer, offset + done, n, true);
		r = LGPU_REAL(cuStreamSynchronize)(stream); // the other buffer is free
		if (r == CUDA_SUCCESS)
			r = read ? LGPU_REAL(cuMemcpyHtoDAsync_v2)(at + done, buffer, n, stream) : CUDA_ERROR_OPERATING_SYSTEM;
	}
	return r;
}

CUresult lgpu_disk_copy(struct lgpu_disk *d, uint64_t offset, CUdeviceptr at, uint64_t bytes, bool in, CUstream stream)
{
	if (d->buffers == NULL)
		d->buffers = lgpu_pages(2 * BUFFER);
	if (d->buffers == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = in ? back(d, offset, at, bytes, stream) : out(d, offset, at, bytes, stream);
	CUresult last = LGPU_REAL(cuStreamSynchronize)(stream); // nobody uses the buffers any more
	return r != CUDA_SUCCESS ? r : last;
}
