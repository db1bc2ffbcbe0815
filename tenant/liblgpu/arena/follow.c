// SPDX-License-Identifier: Apache-2.0

// Which frees come before what a stream does next, since it waits for events or since one of the two is a default stream.
//
// Frees are numbered. Of a stream is noted up to which number the frees of other streams come before its next work; of an
// event, what was so of its stream when the event was recorded, and of the stream itself. A stream that waits for an event
// knows from then on what the event does.
//
// All of it is a hint. What is not noted, or was forgotten since there is room for a few streams and events only, keeps
// memory from being used again a little longer. What is wrong, since an event was recorded where we do not see it (by a
// graph, by another process), costs a wait: whoever is given another stream's memory is made to wait for the free.
#include <string.h>

#include "arena/parts.h"
#include "base/futex.h"
#include "residence/residence.h"

#define KNOWN 8
#define STREAMS 256
#define EVENTS 1024

// Up to which free of which streams.
struct known {
	struct {
		uint64_t stream, until; // until 0: nothing
	} of[KNOWN];
};

static struct stream {
	uint64_t id;
	CUcontext context; // NULL: no stream
	enum lgpu_stream_kind kind;
	struct known known;
} streams[STREAMS];

static struct event {
	CUevent handle;
	struct known known;
} events[EVENTS];

static uint64_t frees; // so far

void lgpu_follows_forget(void)
{
	memset(streams, 0, sizeof streams);
	memset(events, 0, sizeof events);
}

// ---- what is known

// learn notes that frees of a stream up to a number come before. What is oldest makes room.
static void learn(struct known *k, uint64_t stream, uint64_t until)
{
	int least = 0;
	for (int i = 0; i < KNOWN; i++) {
		if (k->of[i].until != 0 && k->of[i].stream == stream) {
			k->of[i].until = k->of[i].until > until ? k->of[i].until : until;
			return;
		}
		least = k->of[i].until < k->of[least].until ? i : least;
	}
	if (k->of[least].until < until) {
		k->of[least].stream = stream;
		k->of[least].until = until;
	}
}

static void learn_all(struct known *k, const struct known *from)
{
	for (int i = 0; i < KNOWN; i++)
		if (from->of[i].until != 0)
			learn(k, from->of[i].stream, from->of[i].until);
}

static uint64_t until(const struct known *k, uint64_t stream)
{
	for (int i = 0; i < KNOWN; i++)
		if (k->of[i].until != 0 && k->of[i].stream == stream)
			return k->of[i].until;
	return 0;
}

// ---- streams

static struct stream *find(const struct lgpu_stream_key *key)
{
	struct stream *s = &streams[key->id % STREAMS];
	return s->context == key->context && s->context != NULL && s->id == key->id ? s : NULL;
}

enum lgpu_stream_kind lgpu_follow_kind(const struct lgpu_stream_key *key)
{
	const struct stream *s = find(key);
	return s != NULL ? s->kind : LGPU_STREAM_UNKNOWN;
}

enum lgpu_stream_kind lgpu_stream_kind(CUstream stream)
{
	unsigned int flags = CU_STREAM_NON_BLOCKING;
	if (stream == NULL || stream == CU_STREAM_LEGACY)
		return LGPU_STREAM_LEGACY;
	LGPU_REAL(cuStreamGetFlags)(stream, &flags);
	return (flags & CU_STREAM_NON_BLOCKING) != 0 ? LGPU_STREAM_APART : LGPU_STREAM_BLOCKING;
}

// noted returns the note of a stream, and makes it in the place of another one's if need be.
static struct stream *noted(const struct lgpu_stream_key *key, enum lgpu_stream_kind kind)
{
	struct stream *s = &streams[key->id % STREAMS];
	if (find(key) == NULL)
		*s = (struct stream){.id = key->id, .context = key->context, .kind = kind};
	return s;
}

// catch_up has the legacy default stream of a context know the frees so far of the streams that it always waits for, and
// those know what it does.
static void catch_up(struct stream *s)
{
	for (int i = 0; s->kind != LGPU_STREAM_APART && i < STREAMS; i++) {
		if (streams[i].context != s->context)
			continue;
		if (s->kind == LGPU_STREAM_LEGACY && streams[i].kind == LGPU_STREAM_BLOCKING)
			learn(&s->known, streams[i].id, frees);
		else if (s->kind == LGPU_STREAM_BLOCKING && streams[i].kind == LGPU_STREAM_LEGACY)
			learn_all(&s->known, &streams[i].known);
	}
}

void lgpu_follow_look(const struct lgpu_stream_key *key, enum lgpu_stream_kind kind) { catch_up(noted(key, kind)); }

uint64_t lgpu_follow_freed(const struct lgpu_stream_key *key, enum lgpu_stream_kind kind)
{
	catch_up(noted(key, kind));
	return ++frees;
}

uint64_t lgpu_follow_until(const struct lgpu_stream_key *key, enum lgpu_stream_kind kind, const struct lgpu_stream_key *of)
{
	const struct stream *theirs = find(of), *mine = find(key);
	uint64_t most = mine != NULL ? until(&mine->known, of->id) : 0;
	if (theirs == NULL || of->context != key->context)
		return most;
	// One of the two always waits for the other.
	bool both = (kind == LGPU_STREAM_LEGACY && theirs->kind == LGPU_STREAM_BLOCKING) ||
		    (kind == LGPU_STREAM_BLOCKING && theirs->kind == LGPU_STREAM_LEGACY);
	return both ? UINT64_MAX : most;
}

// ---- events

static struct event *event_of(CUevent handle)
{
	uint64_t hash = (uint64_t)(uintptr_t)handle * UINT64_C(0x9E3779B97F4A7C15);
	return &events[hash >> 54];
}
_Static_assert(EVENTS == 1 << 10, "a hash is ten bits");

// watches reports whether there is anything that streams could be given of each other: memory that is parked, outside of
// captures, whose events mean something else.
static bool watches(void) { return lgpu_arena_parked() && lgpu_attached() != NULL && !lgpu_residence_captures(); }

void lgpu_arena_event_recorded(CUevent handle, CUstream stream)
{
	struct lgpu_stream_key key;
	if (!watches() || lgpu_stream_key(stream, &key) != CUDA_SUCCESS)
		return;
	lgpu_lock(&lgpu_arena_lock);
	struct event *e = event_of(handle);
	*e = (struct event){.handle = handle};
	struct stream *s = find(&key);
	if (s != NULL) {
		catch_up(s);
		learn_all(&e->known, &s->known);
	}
	learn(&e->known, key.id, frees);
	lgpu_unlock(&lgpu_arena_lock);
}

void lgpu_arena_stream_waits(CUstream stream, CUevent handle)
{
	struct lgpu_stream_key key;
	if (!watches() || lgpu_stream_key(stream, &key) != CUDA_SUCCESS)
		return;
	enum lgpu_stream_kind kind = lgpu_stream_kind(stream);
	lgpu_lock(&lgpu_arena_lock);
	const struct event *e = event_of(handle);
	if (e->handle == handle)
		learn_all(&noted(&key, kind)->known, &e->known);
	lgpu_unlock(&lgpu_arena_lock);
}
