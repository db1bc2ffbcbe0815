// Code generated from package region by go generate ./region; DO NOT EDIT.

// Layout of the region that an lgpu shares with its processes. Meaning and
// units of every field: region/layout.go.
#ifndef LGPU_REGION_H
#define LGPU_REGION_H

#include <stddef.h>
#include <stdint.h>

#define LGPU_MAGIC UINT64_C(0x14745525550474c)
#define LGPU_VERSION UINT64_C(0x1)
#define LGPU_MAX_DEVICES UINT64_C(0x10)
#define LGPU_MAX_CLIENTS UINT64_C(0x400)
#define LGPU_WINDOWS UINT64_C(0x10)
#define LGPU_WINDOW_NANOS UINT64_C(0x5f5e100)
#define LGPU_LIMITS_BYTES UINT64_C(0x2000)
#define LGPU_HAMI_BASE UINT64_C(0x200000)
#define LGPU_CLIENT_LOCK_OFFSET UINT64_C(0x10000000000)
#define LGPU_LAUNCHER_LOCK_OFFSET UINT64_C(0xffffffffff)
#define LGPU_NO_LIMIT UINT64_C(0xffffffffffffffff)
#define LGPU_FULL_COMPUTE UINT64_C(0x2710)
#define LGPU_CLIENT_FREE UINT64_C(0x0)
#define LGPU_CLIENT_LIVE UINT64_C(0x1)
#define LGPU_TURN_MAGIC UINT64_C(0x14e52545550474c)
#define LGPU_MAX_SEATS UINT64_C(0x200)
#define LGPU_SEAT_IDLE UINT64_C(0x0)
#define LGPU_SEAT_WAITING UINT64_C(0x1)
#define LGPU_SEAT_GRANTED UINT64_C(0x2)

struct lgpu_device_limits {
	uint8_t uuid[16];
	uint64_t memory;
	uint64_t physical;
	uint32_t compute;
	uint32_t units;
	uint64_t reserved5[3];
};
_Static_assert(sizeof(struct lgpu_device_limits) == 64, "lgpu_device_limits");
_Static_assert(offsetof(struct lgpu_device_limits, uuid) == 0, "UUID");
_Static_assert(offsetof(struct lgpu_device_limits, memory) == 16, "Memory");
_Static_assert(offsetof(struct lgpu_device_limits, physical) == 24, "Physical");
_Static_assert(offsetof(struct lgpu_device_limits, compute) == 32, "Compute");
_Static_assert(offsetof(struct lgpu_device_limits, units) == 36, "Units");

struct lgpu_limits {
	uint64_t magic;
	uint32_t version;
	uint32_t devices;
	uint64_t id;
	uint64_t host_memory;
	int64_t created_unix_nano;
	uint8_t name[64];
	struct lgpu_device_limits device[16];
};
_Static_assert(sizeof(struct lgpu_limits) == 1128, "lgpu_limits");
_Static_assert(offsetof(struct lgpu_limits, magic) == 0, "Magic");
_Static_assert(offsetof(struct lgpu_limits, version) == 8, "Version");
_Static_assert(offsetof(struct lgpu_limits, devices) == 12, "Devices");
_Static_assert(offsetof(struct lgpu_limits, id) == 16, "ID");
_Static_assert(offsetof(struct lgpu_limits, host_memory) == 24, "HostMemory");
_Static_assert(offsetof(struct lgpu_limits, created_unix_nano) == 32, "CreatedUnixNano");
_Static_assert(offsetof(struct lgpu_limits, name) == 40, "Name");
_Static_assert(offsetof(struct lgpu_limits, device) == 104, "Device");

struct lgpu_counter {
	uint64_t bytes;
	uint64_t last;
} __attribute__((aligned(16)));
_Static_assert(sizeof(struct lgpu_counter) == 16, "lgpu_counter");
_Static_assert(offsetof(struct lgpu_counter, bytes) == 0, "Bytes");
_Static_assert(offsetof(struct lgpu_counter, last) == 8, "Last");

struct lgpu_operation {
	int64_t before;
	int64_t delta;
};
_Static_assert(sizeof(struct lgpu_operation) == 16, "lgpu_operation");
_Static_assert(offsetof(struct lgpu_operation, before) == 0, "Before");
_Static_assert(offsetof(struct lgpu_operation, delta) == 8, "Delta");

struct lgpu_ledger {
	uint64_t begun;
	uint64_t applied;
	struct lgpu_operation record[2];
};
_Static_assert(sizeof(struct lgpu_ledger) == 48, "lgpu_ledger");
_Static_assert(offsetof(struct lgpu_ledger, begun) == 0, "Begun");
_Static_assert(offsetof(struct lgpu_ledger, applied) == 8, "Applied");
_Static_assert(offsetof(struct lgpu_ledger, record) == 16, "Record");

struct lgpu_window {
	uint64_t epoch;
	uint64_t busy;
};
_Static_assert(sizeof(struct lgpu_window) == 16, "lgpu_window");
_Static_assert(offsetof(struct lgpu_window, epoch) == 0, "Epoch");
_Static_assert(offsetof(struct lgpu_window, busy) == 8, "Busy");

struct lgpu_device_usage {
	struct lgpu_counter memory;
	uint64_t peak;
	uint64_t context;
	uint64_t horizon;
	uint64_t busy;
	uint64_t launches;
	uint64_t reserved6[9];
	struct lgpu_window history[16];
};
_Static_assert(sizeof(struct lgpu_device_usage) == 384, "lgpu_device_usage");
_Static_assert(offsetof(struct lgpu_device_usage, memory) == 0, "Memory");
_Static_assert(offsetof(struct lgpu_device_usage, peak) == 16, "Peak");
_Static_assert(offsetof(struct lgpu_device_usage, context) == 24, "Context");
_Static_assert(offsetof(struct lgpu_device_usage, horizon) == 32, "Horizon");
_Static_assert(offsetof(struct lgpu_device_usage, busy) == 40, "Busy");
_Static_assert(offsetof(struct lgpu_device_usage, launches) == 48, "Launches");
_Static_assert(offsetof(struct lgpu_device_usage, history) == 128, "History");

struct lgpu_client {
	uint32_t state;
	uint32_t pid;
	uint64_t start;
	uint64_t namespace;
	uint8_t comm[16];
	uint64_t reserved5[5];
	struct lgpu_ledger host;
	struct lgpu_ledger device[16];
};
_Static_assert(sizeof(struct lgpu_client) == 896, "lgpu_client");
_Static_assert(offsetof(struct lgpu_client, state) == 0, "State");
_Static_assert(offsetof(struct lgpu_client, pid) == 4, "PID");
_Static_assert(offsetof(struct lgpu_client, start) == 8, "Start");
_Static_assert(offsetof(struct lgpu_client, namespace) == 16, "Namespace");
_Static_assert(offsetof(struct lgpu_client, comm) == 24, "Comm");
_Static_assert(offsetof(struct lgpu_client, host) == 80, "Host");
_Static_assert(offsetof(struct lgpu_client, device) == 128, "Device");

struct lgpu_usage {
	struct lgpu_counter host;
	uint64_t boot;
	uint64_t reserved2[5];
	struct lgpu_device_usage device[16];
	struct lgpu_client client[1024];
};
_Static_assert(sizeof(struct lgpu_usage) == 923712, "lgpu_usage");
_Static_assert(offsetof(struct lgpu_usage, host) == 0, "Host");
_Static_assert(offsetof(struct lgpu_usage, boot) == 16, "Boot");
_Static_assert(offsetof(struct lgpu_usage, device) == 64, "Device");
_Static_assert(offsetof(struct lgpu_usage, client) == 6208, "Client");

struct lgpu_seat {
	uint32_t state;
	uint32_t pid;
	uint64_t lgpu;
	uint64_t served;
	uint64_t reserved4[5];
};
_Static_assert(sizeof(struct lgpu_seat) == 64, "lgpu_seat");
_Static_assert(offsetof(struct lgpu_seat, state) == 0, "State");
_Static_assert(offsetof(struct lgpu_seat, pid) == 4, "PID");
_Static_assert(offsetof(struct lgpu_seat, lgpu) == 8, "LGPU");
_Static_assert(offsetof(struct lgpu_seat, served) == 16, "Served");

struct lgpu_turn {
	uint64_t magic;
	uint32_t version;
	uint32_t seats;
	uint64_t owner;
	uint64_t since;
	uint64_t reserved5[4];
	struct lgpu_seat seat[512];
};
_Static_assert(sizeof(struct lgpu_turn) == 32832, "lgpu_turn");
_Static_assert(offsetof(struct lgpu_turn, magic) == 0, "Magic");
_Static_assert(offsetof(struct lgpu_turn, version) == 8, "Version");
_Static_assert(offsetof(struct lgpu_turn, seats) == 12, "Seats");
_Static_assert(offsetof(struct lgpu_turn, owner) == 16, "Owner");
_Static_assert(offsetof(struct lgpu_turn, since) == 24, "Since");
_Static_assert(offsetof(struct lgpu_turn, seat) == 64, "Seat");

#endif
