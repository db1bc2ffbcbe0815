// SPDX-License-Identifier: Apache-2.0

// accounts.h: what this process has allocated, by address or handle.
#ifndef LGPU_ACCOUNTS_H
#define LGPU_ACCOUNTS_H

#include <stdbool.h>
#include <stdint.h>

// Addresses and handles of different kinds may have the same value.
enum lgpu_kind {
	LGPU_KIND_MEMORY = 1, // device address
	LGPU_KIND_HOST,       // page-locked host address
	LGPU_KIND_ARRAY,
	LGPU_KIND_MIPMAP,
	LGPU_KIND_HANDLE,  // of cuMemCreate; bytes is how often it was given out, object what it is
	LGPU_KIND_MAPPING, // cuMemMap: address; bytes is its length, object what is mapped
	LGPU_KIND_MODULE,
	LGPU_KIND_LIBRARY, // with large variables; bytes is what they take in each context that uses it
	LGPU_KIND_KERNEL,  // of such a library, which is its context
	LGPU_KIND_STACK,   // a function or kernel that needs a large stack, of so many bytes
	LGPU_KIND_GRAPH, // an executable graph that allocates
	LGPU_KIND_CAPTURE, // the stream, or the thread of a per-thread stream, on which a capture has begun
	LGPU_KIND_KINDS,
};

struct lgpu_object;

struct lgpu_entry {
	uint64_t key;
	uint64_t bytes;
	void *context;              // whose end frees it; NULL: none's
	struct lgpu_object *object; // for handles and mappings
	int32_t device;             // index in the limits
	uint16_t kind;              // 0: free
	uint16_t launched;          // of a graph: the trim before which it was launched last (hook/graph.c)
};

// lgpu_accounts_put notes an allocation. False: no memory for the note. Only
// this call allocates; giving back never does. An entry of the same kind and key
// is replaced; where replaced is not NULL it is stored there, else its kind is 0.
bool lgpu_accounts_put(const struct lgpu_entry *entry, struct lgpu_entry *replaced);
// lgpu_accounts_take removes an entry and stores it. False: there is none.
bool lgpu_accounts_take(enum lgpu_kind kind, uint64_t key, struct lgpu_entry *entry);
// lgpu_accounts_restore puts an entry back that was just taken. False: there is
// a newer one by now, which stays.
bool lgpu_accounts_restore(const struct lgpu_entry *entry);
// lgpu_accounts_get stores a copy of an entry.
bool lgpu_accounts_get(enum lgpu_kind kind, uint64_t key, struct lgpu_entry *entry);
// lgpu_accounts_sweep removes all entries of a context and calls fn for each.
void lgpu_accounts_sweep(void *context, void (*fn)(const struct lgpu_entry *, void *), void *arg);
// lgpu_accounts_around stores the mapping that covers address.
bool lgpu_accounts_around(uint64_t address, struct lgpu_entry *entry);
// lgpu_accounts_after stores where the first mapping in (address, end) begins.
bool lgpu_accounts_after(uint64_t address, uint64_t end, uint64_t *next);
// lgpu_accounts_reset forgets everything: a forked child has nothing.
void lgpu_accounts_reset(void);

#endif
