// hash.cu: a hash of pages of device memory, by which the mover knows which of them are as they were. clean.c says what
// for, and how likely it is that two pages have one hash.
//
// Keys are random. A thread adds up the products of its words of the page with the keys of their places, and a block those
// of its threads' sums with keys of the threads. Of each product, the lower and the upper half are added up by themselves.
// There are two such sums, with keys of their own.
typedef unsigned long long u64;

#define THREADS 256
#define WORDS 1024 // of a thread: a page has THREADS * WORDS
#define SUMS 2

struct alignas(16) pair { u64 a, b; };
struct sum { u64 low, high; };

// The keys, which the host writes.
extern "C" {
__attribute__((constant)) pair lgpu_hash_words[WORDS];            // of each sum
__attribute__((device)) u64 lgpu_hash_threads[SUMS][2][THREADS]; // of each sum, and half of it
}

static __attribute__((device)) inline void add(sum &s, u64 key, u64 word)
{
	s.low += key * word;
	s.high += __nvvm_mulhi_ull(key, word);
}

// lgpu_hash writes the hashes of as many pages as it has blocks.
extern "C" __attribute__((global, launch_bounds(THREADS))) void lgpu_hash(const u64 *pages, u64 (*hashes)[SUMS * 2])
{
	__attribute__((shared)) static u64 part[SUMS * 2][THREADS];
	unsigned thread = __nvvm_read_ptx_sreg_tid_x(), block = __nvvm_read_ptx_sreg_ctaid_x();
	auto *page = reinterpret_cast<const pair __attribute__((address_space(1))) *>(pages[block]);
	sum words[SUMS] = {};
#pragma unroll 4
	for (unsigned i = 0; i < WORDS / 2; i++) {
		u64 first = page[i * THREADS + thread].a, second = page[i * THREADS + thread].b;
		pair one = lgpu_hash_words[2 * i], two = lgpu_hash_words[2 * i + 1];
		add(words[0], one.a, first);
		add(words[1], one.b, first);
		add(words[0], two.a, second);
		add(words[1], two.b, second);
	}
	for (unsigned i = 0; i < SUMS; i++) {
		sum s = {};
		add(s, lgpu_hash_threads[i][0][thread], words[i].low);
		add(s, lgpu_hash_threads[i][1][thread], words[i].high);
		part[2 * i][thread] = s.low;
		part[2 * i + 1][thread] = s.high;
	}
	for (unsigned half = THREADS / 2; half > 0; half /= 2) {
		__syncthreads();
		for (unsigned i = 0; i < SUMS * 2 && thread < half; i++)
			part[i][thread] += part[i][thread + half];
	}
	__syncthreads();
	if (thread < SUMS * 2)
		hashes[block][thread] = part[thread][0];
}
