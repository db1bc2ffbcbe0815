// SPDX-License-Identifier: Apache-2.0

// parts.h: what the files of this module share.
#ifndef LGPU_ARENA_PARTS_H
#define LGPU_ARENA_PARTS_H

#include "arena/arena.h"
#include "arena/units.h"
#include "memory/memory.h"

#define LGPU_INFLIGHT 32 // pieces that move at once
#define LGPU_LANES 2     // streams that copy

struct lgpu_owner;

enum lgpu_block_state {
	LGPU_BLOCK_FREE, // an address range that nothing is mapped at
	LGPU_BLOCK_LIVE,
	LGPU_BLOCK_ENDING, // being freed
};

enum lgpu_use {
	LGPU_USE_WHOLE,  // one allocation
	LGPU_USE_UNITS,  // several, cut from it
	LGPU_USE_HANDLE, // a handle of the program's; no address of the range is known to it
};

// A block's memory moves in pieces, each with a handle of its own, so that a level can be met to within one, and a newer
// one is heard between two. There are at most so many, all but the last of one size.
#define LGPU_PIECES 64
#define LGPU_PIECE_ORDER 6 // the smallest pieces of a block that has several are LGPU_PAGE << 6

struct lgpu_piece {
	CUmemGenericAllocationHandle handle;
	bool out;       // the bytes are in the store, and nowhere else
	uint32_t fresh; // the shutting in which they came from there; as long as it lasts nobody has changed them
};

struct lgpu_copy;
struct lgpu_block;

// A piece of a block.
struct lgpu_part {
	struct lgpu_block *block;
	uint32_t piece;
};

// A block is an address range, for ever, and the physical memory that is mapped there now. What is behind a handle of
// the program's is mapped where the program says; the range serves to copy it where it has no such mapping. Such a block
// is one piece.
struct lgpu_block {
	uint64_t base;
	uint64_t view;      // where the bytes can be copied; base, but for handles
	uint64_t bytes;     // of physical memory; a multiple of LGPU_PAGE
	uint64_t requested; // of a whole allocation
	uint64_t id;        // of the block, and of a whole allocation
	uint64_t piece;     // bytes of a piece; the last may have fewer
	uint32_t pieces;
	struct lgpu_piece one, *many; // the pieces: of a block with several, many, which is kept with the range
	struct lgpu_copy *copy;       // of each page, what is in the store; NULL: nothing is
	struct lgpu_owner *owner;
	struct lgpu_block *next, *prev; // of the owner; next, too, of free ranges of a size
	struct lgpu_chunk *chunk;       // kept when the range is used for something else
	uint8_t state;                  // enum lgpu_block_state
	uint32_t grain;                 // bytes of a unit, where it is cut
	uint8_t order;                  // the range has LGPU_PAGE << order bytes
	uint8_t use;                    // enum lgpu_use
	bool fixed;                     // they stay on the device: others know the physical memory
	bool sync;                      // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
	bool windowed;                  // of a handle: it is mapped at base, too
	struct lgpu_handle *program;    // of a handle
};

static inline struct lgpu_piece *lgpu_piece(struct lgpu_block *b, uint32_t i) { return b->pieces == 1 ? &b->one : &b->many[i]; }
static inline uint64_t lgpu_piece_bytes(const struct lgpu_block *b, uint32_t i)
{
	return i + 1 < b->pieces ? b->piece : b->bytes - i * b->piece;
}

#define LGPU_ORDINALS 64

// A place of the program's at which a handle of its own is mapped.
struct lgpu_mapping {
	struct lgpu_mapping *next; // of the handle
	struct lgpu_block *block;
	uint64_t base, bytes, offset;
	uint64_t id;
	bool sync;                     // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
	uint8_t access[LGPU_ORDINALS]; // enum CUmemAccess_flags, by the driver's ordinal
};

// What is known of a handle of the program's.
struct lgpu_handle {
	CUmemAllocationProp prop; // as the program asked for it
	struct lgpu_mapping *mappings;
};

// The kernel that hashes pages, in a context (clean.c).
struct lgpu_hasher {
	CUmodule module;
	CUfunction function;
	CUstream stream; // NULL: it is not there
	void *exchange;  // host memory that the device writes to
	CUdeviceptr at;  // the same
	uint32_t tried;  // the shutting in which it was tried last to load it
};

// Who has memory here: a context of the program, the handles of a device, or a pool.
struct lgpu_owner {
	struct lgpu_owner *next;
	CUcontext context; // in which memory is copied; where it is lasting, any of the device, or NULL
	bool lasting;      // what it has does not end with the context
	CUdevice ordinal; // of the driver
	int device;       // index in the limits
	struct lgpu_block *blocks;
	struct lgpu_bins bins;
	uint32_t empty;           // chunks of which nothing is taken
	uint32_t version;         // of the peers
	struct lgpu_block *late;  // freed while a stream was captured (lgpu_block.next is the owner's; this is by prev)
	struct lgpu_unit *late_units;
	uint32_t peers;
	struct {
		CUcontext context;
		CUdevice ordinal;
	} peer[LGPU_MAX_DEVICES];
	struct lgpu_arena_pool *pool;  // it is a pool's
	uint8_t access[LGPU_ORDINALS]; // of a pool: enum CUmemAccess_flags, by the driver's ordinal
	// The mover's. On the way out one stream alone leaves gaps between two copies; on the way in two are no faster.
	CUstream stream[LGPU_LANES];
	CUevent event[LGPU_INFLIGHT][LGPU_LANES];
	uint32_t turn; // of the streams
	struct lgpu_hasher hasher;
};

// The lock of all blocks and owners. The driver is called without it, unless said otherwise.
extern uint32_t lgpu_arena_lock;
extern struct lgpu_owner *lgpu_owners;

// lgpu_arena_own reports whether there is anything in a list, whose head the caller has loaded, that is this process's. A
// forked child has copies of its parent's lists, and of locks that nobody may hold any more, until it is a client itself.
static inline bool lgpu_arena_own(const void *head) { return head != NULL && lgpu_attached() != NULL; }

// ---- address ranges (ranges.c); the caller has the lock

// lgpu_range_take returns a free range of at least bytes; NULL: there is none, and lgpu_range_more makes some, for which
// the caller must not have the lock.
struct lgpu_block *lgpu_range_take(uint64_t bytes);
CUresult lgpu_range_more(uint64_t bytes);
void lgpu_range_give(struct lgpu_block *b);
// lgpu_range_find returns the range that has an address, or NULL.
struct lgpu_block *lgpu_range_find(uint64_t address);
// lgpu_ranges_meet reports whether [from, end) has addresses of any range, free ones too.
bool lgpu_ranges_meet(uint64_t from, uint64_t end);
void lgpu_ranges_reset(void);

// ---- blocks (arena.c)

// lgpu_block_new returns a block of an owner with an address range and no memory, or NULL; lgpu_block_drop gives the range
// back. lgpu_block_link adds it to what the owner has, lgpu_block_unlink takes it out; for both the caller has the lock.
struct lgpu_block *lgpu_block_new(struct lgpu_owner *o, uint64_t bytes, enum lgpu_use use, CUresult *r);
void lgpu_block_drop(struct lgpu_block *b);
void lgpu_block_link(struct lgpu_block *b);
void lgpu_block_unlink(struct lgpu_block *b);
// lgpu_block_cut makes a block and adds it to bins, in units of so many bytes.
CUresult lgpu_block_cut(struct lgpu_owner *o, uint64_t bytes, uint32_t grain, struct lgpu_bins *bins);
// lgpu_block_unmake ends a block that nobody finds any more.
CUresult lgpu_block_unmake(struct lgpu_block *b);
// lgpu_owner_grant sets what a device may do with an owner's memory. The caller has the lock, so that no block comes or goes.
CUresult lgpu_owner_grant(struct lgpu_owner *o, CUdevice ordinal, CUmemAccess_flags flags);
// lgpu_owner_unequip ends what the mover has made in a context that another one will take the place of. The caller has the
// lock.
void lgpu_owner_unequip(struct lgpu_owner *o);
// lgpu_arena_drain waits for all work of a context.
CUresult lgpu_arena_drain(CUcontext context);
// lgpu_unit_address is where a unit of a block begins.
uint64_t lgpu_unit_address(const struct lgpu_unit *u);
// lgpu_piece_map gives a piece of a block physical memory; nobody may end the block meanwhile. lgpu_piece_unmap takes it
// away again.
CUresult lgpu_piece_map(struct lgpu_block *b, uint32_t i);
CUresult lgpu_piece_unmap(struct lgpu_block *b, uint32_t i);
// lgpu_block_view makes a view of a block that is on its device.
CUresult lgpu_block_view(struct lgpu_block *b);
// lgpu_block_fix keeps a block on its device from now on. The caller has the lock, inside a touch.
void lgpu_block_fix(struct lgpu_block *b);
// lgpu_arena_moved counts bytes of a device that have left it (or, negative, are back), lgpu_arena_has those that can.
void lgpu_arena_moved(int device, int64_t bytes);
void lgpu_arena_has(int device, int64_t bytes);
uint64_t lgpu_arena_id(void);

// ---- handles of the program's (handles.c)

CUresult lgpu_handle_map(struct lgpu_block *b);
CUresult lgpu_handle_unmap(struct lgpu_block *b);
CUresult lgpu_handle_view(struct lgpu_block *b);
void lgpu_handles_forget(void);

// ---- the order of streams (order.c); the caller has the lock, unless said otherwise

// A stream, among all that there ever were.
struct lgpu_stream_key {
	uint64_t id;
	CUcontext context;
};
// lgpu_stream_key asks the driver for it, without the lock.
CUresult lgpu_stream_key(CUstream stream, struct lgpu_stream_key *key);

// What was freed on one stream. lgpu_queue_find looks in a list, and lgpu_queue_make adds to it; NULL: no memory.
// lgpu_queue_drop ends one that is empty.
struct lgpu_queue;
struct lgpu_queue *lgpu_queue_find(struct lgpu_queue *list, const struct lgpu_stream_key *key);
struct lgpu_queue *lgpu_queue_make(struct lgpu_queue **list, const struct lgpu_stream_key *key);
struct lgpu_queue *lgpu_queue_next(const struct lgpu_queue *q);
const struct lgpu_stream_key *lgpu_queue_key(const struct lgpu_queue *q);
bool lgpu_queue_empty(const struct lgpu_queue *q);
void lgpu_queue_drop(struct lgpu_queue **list, struct lgpu_queue *q, bool context_lives);
// lgpu_queue_pin keeps one from being dropped while the caller is without the lock (1), until it is unpinned (-1).
void lgpu_queue_pin(struct lgpu_queue *q, int more);
// lgpu_queues_end notes the end of a stream, or of all (NULL), and drops what is empty of those that have ended.
void lgpu_queues_end(struct lgpu_queue **list, const struct lgpu_stream_key *key);

// A mark lies behind a free in its stream: an event. lgpu_mark_spare returns one of a queue, or NULL; then
// lgpu_mark_make makes one, without the lock. lgpu_mark_record puts it into its stream, lgpu_mark_follow has another
// stream wait for it, both without the lock. lgpu_mark_drop gives it back to the queue.
struct lgpu_mark;
struct lgpu_mark *lgpu_mark_spare(struct lgpu_queue *q);
struct lgpu_mark *lgpu_mark_make(CUcontext context);
CUresult lgpu_mark_record(struct lgpu_mark *m, CUstream stream);
CUresult lgpu_mark_follow(const struct lgpu_mark *m, CUstream stream);
bool lgpu_mark_passed(const struct lgpu_mark *m);
void lgpu_mark_drop(struct lgpu_queue *q, struct lgpu_mark *m);
// lgpu_mark_end ends one that is no queue's, without the lock.
void lgpu_mark_end(struct lgpu_mark *m, bool context_lives);

// A run that was freed: it may only be used behind its mark. The number is the free's (follow.c).
struct lgpu_freed {
	struct lgpu_unit *unit;
	struct lgpu_mark *mark;
	uint64_t number;
};
// lgpu_queue_add adds one. False: no memory. lgpu_queue_take takes one of count units, of the frees up to a number, whose mark
// the caller drops. lgpu_queue_passed takes the oldest if its mark is passed, or all is; NULL: it is not, or there is none.
// The driver is asked with the lock.
bool lgpu_queue_add(struct lgpu_queue *q, const struct lgpu_freed *f);
bool lgpu_queue_take(struct lgpu_queue *q, bool pages, uint32_t count, uint64_t until, struct lgpu_freed *f);
struct lgpu_unit *lgpu_queue_passed(struct lgpu_queue *q, bool all);
// lgpu_arena_parked reports whether any queue has anything. It is for any thread, without the lock.
bool lgpu_arena_parked(void);
void lgpu_queues_forget(void);

// ---- which frees come before what a stream does (follow.c); the caller has the lock, unless said otherwise

enum lgpu_stream_kind {
	LGPU_STREAM_UNKNOWN,
	LGPU_STREAM_APART,    // waits for no default stream
	LGPU_STREAM_BLOCKING, // waits for the legacy default stream of its context, which waits for it
	LGPU_STREAM_LEGACY,   // that one
};
// lgpu_stream_kind asks the driver, without the lock. lgpu_follow_kind says what was noted of a stream.
enum lgpu_stream_kind lgpu_stream_kind(CUstream stream);
enum lgpu_stream_kind lgpu_follow_kind(const struct lgpu_stream_key *key);
// lgpu_follow_freed notes a free on a stream, and returns its number. lgpu_follow_until is the number up to which frees of
// another stream come before what a stream does next, after lgpu_follow_look has been called for it; 0: none is known to.
void lgpu_follow_look(const struct lgpu_stream_key *key, enum lgpu_stream_kind kind);
uint64_t lgpu_follow_freed(const struct lgpu_stream_key *key, enum lgpu_stream_kind kind);
uint64_t lgpu_follow_until(const struct lgpu_stream_key *key, enum lgpu_stream_kind kind, const struct lgpu_stream_key *of);
void lgpu_follows_forget(void);

// ---- frees (free.c)

// lgpu_arena_leave_context is called when a context has ended, before its owner is no more.
void lgpu_arena_leave_context(CUcontext context);
void lgpu_arena_frees_forget(void);

// ---- legacy IPC (share.c)

// lgpu_arena_unshare is called when an allocation ends, by its id, lgpu_arena_unshare_all when all of an owner's do. The
// caller has the lock.
void lgpu_arena_unshare(uint64_t id);
void lgpu_arena_unshare_all(const struct lgpu_owner *o);
// lgpu_shares_meet reports whether [from, end) has addresses at which another process's memory is opened. The caller has
// the lock.
bool lgpu_shares_meet(uint64_t from, uint64_t end);
void lgpu_arena_shares_forget(void);

// ---- pools (pool.c)

// lgpu_pool_place completes what is known of an address in a pool's memory.
void lgpu_pool_place(const struct lgpu_owner *o, struct lgpu_arena_place *place);
void lgpu_arena_pools_context_ended(CUcontext context);
void lgpu_arena_pools_forget(void);

// ---- levels (level.c)

// What the mover and those who wait for a level know of a device.
struct lgpu_level {
	uint64_t value;    // that may be resident
	uint32_t number;   // of levels that there have been
	uint64_t waiting;  // bytes that are charged, and wait for a level
	uint64_t said;     // the last Kept, or what has become resident since
	uint64_t answered; // serial of the last Keep that was answered
	uint64_t asked;    // the last Need
	uint32_t refusals;
	uint64_t refused;  // what was refused last
};
extern struct lgpu_level lgpu_levels[LGPU_MAX_DEVICES];

// lgpu_level_total is what this process holds of a device, resident or not; lgpu_level_resident is what is resident, and
// lgpu_level_excess how much of that is more than the level.
uint64_t lgpu_level_total(const struct lgpu_state *s, int device);
uint64_t lgpu_level_resident(const struct lgpu_state *s, int device);
uint64_t lgpu_level_excess(const struct lgpu_state *s, int device);
// lgpu_level_set sets what may be resident, and wakes those who wait for it.
void lgpu_level_set(int device, uint64_t value);
void lgpu_level_refuse(int device, uint64_t value);
// lgpu_level_need asks for what everything takes, if that is more than the level and has not been asked for since.
void lgpu_level_need(const struct lgpu_state *s, int device);
// lgpu_level_wait waits until bytes, which are charged already, may be resident. False: that will never be.
bool lgpu_level_wait(struct lgpu_state *s, int device, uint64_t bytes);
// lgpu_level_fixed says what this process has of a device that cannot leave it, and returns whether it may stay there: also
// true where no daemon says anything in time. lgpu_level_fixed_answer is the daemon's answer. lgpu_level_fixed_again only says
// it, to a new daemon.
bool lgpu_level_fixed(int device);
void lgpu_level_fixed_again(int device);
void lgpu_level_fixed_answer(uint64_t id, bool refused);
// lgpu_level_kept answers a Keep. why is 0 where it is met.
void lgpu_level_kept(const struct lgpu_state *s, int device, uint64_t serial, uint64_t why);
// lgpu_level_moving tells the daemon what is resident while the move of a Keep goes on, if that is much more or less than it
// knows. True: it has been told.
bool lgpu_level_moving(const struct lgpu_state *s, int device, uint64_t keep);
void lgpu_levels_lost(void);
void lgpu_levels_found(void);
void lgpu_levels_reset(void);

// ---- files on disks (disk.c)

struct lgpu_disk {
	int fd; // + 1; 0: none
	char *buffers;
};
// lgpu_disk_open makes a file one that is read and written without the kernel's page cache, if it can be.
void lgpu_disk_open(struct lgpu_disk *d, int fd);
// lgpu_disk_copy copies device memory to the file, or from it if in, on a stream of the current context, and waits.
// CUDA_ERROR_OPERATING_SYSTEM: the file could not be read or written.
CUresult lgpu_disk_copy(struct lgpu_disk *d, uint64_t offset, CUdeviceptr at, uint64_t bytes, bool in, CUstream stream);
// lgpu_disk_rest gives back what only copies need.
void lgpu_disk_rest(struct lgpu_disk *d);

// ---- the store (store.c); all but told, message and forget is for the mover's thread, while the lock is shut

#define LGPU_HASH_WORDS 4

// What the store has of a page of a block.
struct lgpu_copy {
	uint32_t place; // of the page in the store; 0: none
	bool whole;     // the copy is there, as the page was when it left last
	bool clean;     // and the page on the device is the same: it need not be copied again
	bool zero;      // the page was all zeros when it left last, and was not copied: there is no copy then
	bool hashed;    // hash is that of the copy, or of the page that is being copied
	uint64_t hash[LGPU_HASH_WORDS];
};

// lgpu_store_room is how much more could leave a device: what has room in the store beside what is away.
uint64_t lgpu_store_room(int device);
// lgpu_store_place gives all pages of a piece their places; false: there are too few. lgpu_store_unplace takes those of a
// piece back that is on the device.
bool lgpu_store_place(struct lgpu_block *b, uint32_t i);
void lgpu_store_unplace(struct lgpu_block *b, uint32_t i);
// lgpu_store_forget takes all places of a block back, which ends.
void lgpu_store_forget(struct lgpu_block *b);
// lgpu_store_copy copies the pages of a piece to their places, but for those that are clean, or from there if back, on the
// streams of its owner, whose context is current. What of the places is not registered yet is so before it is copied,
// while what is before it is on its way. lgpu_store_copied is called when the copies out have ended well.
CUresult lgpu_store_copy(struct lgpu_block *b, uint32_t i, bool back);
// lgpu_store_copied returns the bytes that were not copied.
uint64_t lgpu_store_copied(struct lgpu_block *b, uint32_t i);
// lgpu_store_rest gives back what only copies need.
void lgpu_store_rest(int device);
// lgpu_store_pin registers the next piece of a store with the driver, if there is one. True: there may be more.
bool lgpu_store_pin(int device);
// lgpu_store_map maps what the daemon has given.
void lgpu_store_map(const struct lgpu_state *s, int device);
// lgpu_store_fd is the descriptor of a store's memory file, or of its other one, or -1.
int lgpu_store_fd(int device, bool memory);
// lgpu_store_context_ends is called before a context ends: what was registered in it is so no more.
void lgpu_store_context_ends(CUcontext context);
void lgpu_stores_reset(void);

// ---- what has not changed (clean.c)

// lgpu_clean_configure reads whether the program wants everything copied.
void lgpu_clean_configure(void);
// lgpu_clean_begins is called when so many bytes begin to leave a device, lgpu_clean_ended when they have, so many of them by
// a copy.
void lgpu_clean_begins(int device, uint64_t leaving);
void lgpu_clean_ended(int device, uint64_t copied, int64_t nanos);
// lgpu_clean_load loads the kernel in the current context, which is an owner's. True: it is there now, and was not before.
bool lgpu_clean_load(struct lgpu_owner *o);
// lgpu_clean_ban takes it away from all contexts of a device, for good: the memory that it takes is needed.
void lgpu_clean_ban(int device);
// lgpu_clean_look notes which pages of pieces, which have places, are as their copies are. All are one owner's, whose context
// is current, and are on the device in their views. The lock is shut.
void lgpu_clean_look(struct lgpu_owner *o, const struct lgpu_part *part, size_t count);
// lgpu_clean_end ends what there is in the current context.
void lgpu_clean_end(struct lgpu_hasher *h);
void lgpu_clean_reset(void);

// ---- moving (move.c)

// lgpu_move_out moves memory of a device out until its level holds, nothing can leave any more, or there is a newer Keep.
// Not 0: why it ended before. *told is set to the least that the daemon has heard to be resident meanwhile, if it has heard
// anything: there may not be more again before it says so.
uint64_t lgpu_move_out(const struct lgpu_state *s, int device, uint64_t *told);
// lgpu_move_in brings memory back as far as a level has room, until there is a newer Keep; with rises, a Keep that only raises
// the level of the device is obeyed meanwhile. Not 0: why more cannot come now.
uint64_t lgpu_move_in(const struct lgpu_state *s, int device, uint64_t level, bool rises);

// ---- the mover (mover.c)

// lgpu_mover_newer says whether a Keep has come that nobody has looked at; it ends what an older one has begun.
bool lgpu_mover_newer(void);
// lgpu_mover_raised obeys a Keep that nobody has looked at, if it only has more of a device be resident, and stores its level.
// False: there is none such.
bool lgpu_mover_raised(int device, uint64_t *level);
// lgpu_mover_keep is the serial of the Keep that was looked at last.
uint64_t lgpu_mover_keep(int device);
// lgpu_mover_shutting is the number of the shutting that the mover has the lock shut for, or had last.
uint32_t lgpu_mover_shutting(void);

// lgpu_mover_start starts its thread, lgpu_mover_wake has it look.
bool lgpu_mover_start(void);
void lgpu_mover_wake(void);
void lgpu_mover_reset(void);

#endif
