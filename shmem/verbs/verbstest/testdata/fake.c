// A library that stands in for libibverbs and libmlx5: the functions that package verbs calls, with a machine of a few
// their NICs. It keeps account of every object, can let any one call fail, decodes DevX commands by itself,
// refuses what a device would refuse, and hands queue pairs and memory to hooks, which carry out what is posted.
//
// Declarations are those of rdma-core's public headers, fields of commands those of include/linux/mlx5/mlx5_ifc.h of
// Linux.
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_DEVICES 8
#define MAX_OBJECTS (1 << 17)
#define MAX_COMMANDS 4096
#define COMMAND_BYTES 0x110

enum kind { NONE, CONTEXT, PD, MR, AH, UAR, UMEM, CQ, QP, KINDS };

// Account.
static int live[KINDS];
static int lists;      // of devices, not freed
static long calls;     // that can fail
static long fail_at;   // 1: the first; 0: none
static int misuse;     // calls with objects that do not exist, or out of order
static char complaint[256];

// The machine.
static int devices;
static int ethernet;
static int port_state = 4;
static uint32_t without; // WITHOUT_*
enum { WITHOUT_RC = 1, WITHOUT_MASKED = 2, WITHOUT_OI = 4, WITHOUT_NC = 8, WITHOUT_PEERMEM = 16, WITHOUT_DMABUF = 32, WITHOUT_DEDICATED = 64 };

static struct {
	void (*create)(int device, uint32_t qpn, uint64_t wq, uint64_t depth, uint64_t record, uint64_t cq, uint64_t doorbell);
	void (*connect)(int device, uint32_t qpn, uint32_t lid, uint32_t remote);
	void (*destroy)(int device, uint32_t qpn);
	void (*reg)(int device, uint32_t key, uint64_t address, uint64_t bytes, uint64_t iova, uint32_t access);
	void (*dereg)(int device, uint32_t key);
} hooks;

static void complain(const char *what)
{
	if (misuse++ == 0)
		snprintf(complaint, sizeof(complaint), "%s", what);
}

// fault says whether this call is the one to fail.
static bool fault(void)
{
	if (++calls != fail_at)
		return false;
	errno = EAGAIN;
	return true;
}

struct ibv_device {
	int index;
	char name[16];
};
static struct ibv_device machine[MAX_DEVICES + 1];

struct object {
	enum kind kind;
	int device;
	uint32_t number;
	int refs;
	void *parent[4];
};

struct ibv_context { struct object o; };
struct ibv_pd { struct object o; };
struct ibv_ah { struct object o; uint8_t vector[48]; };
struct ibv_mr {
	struct ibv_context *context;
	struct ibv_pd *pd;
	void *addr;
	size_t length;
	uint32_t handle, lkey, rkey;
	struct object o;
};
struct mlx5dv_devx_uar {
	void *reg_addr, *base_addr;
	uint32_t page_id;
	off_t mmap_off;
	uint64_t comp_mask;
	struct object o;
	int shared;
	uint64_t page[512];
};
struct mlx5dv_devx_umem {
	uint32_t umem_id;
	struct object o;
	uint64_t address, size;
};
struct mlx5dv_devx_obj {
	struct object o;
	int state; // of a queue pair: 0 reset, 1 INIT, 2 RTR, 3 RTS
	uint32_t remote_qpn, remote_lid;
	uint64_t cq;
};

static void *objects[MAX_OBJECTS]; // UARs, umems and DevX objects by number
static uint32_t next_number = 1;

static void enter(struct object *o, enum kind kind, int device, void *table)
{
	o->kind = kind;
	o->device = device;
	live[kind]++;
	if (table) {
		if (next_number >= MAX_OBJECTS)
			abort();
		o->number = next_number;
		objects[next_number++] = table;
	}
}

static void leave(struct object *o, enum kind kind)
{
	if (o->kind != kind)
		complain("an object of another kind was given back, or twice");
	if (o->refs != 0)
		complain("an object in use was given back");
	for (int i = 0; i < 4; i++)
		if (o->parent[i])
			((struct object *)o->parent[i])->refs--;
	if (o->number)
		objects[o->number] = NULL;
	o->kind = NONE;
	live[kind]--;
}

static void depends(struct object *o, int index, struct object *on)
{
	o->parent[index] = on;
	on->refs++;
}

// Control, for tests.
EXPORT void fake_reset(int count, int eth, uint32_t missing)
{
	devices = count;
	ethernet = eth;
	without = missing;
}
EXPORT void fake_port_state(int state) { port_state = state; }
EXPORT void fake_fail_at(long n) { fail_at = n, calls = 0; }
EXPORT long fake_calls(void) { return calls; }
EXPORT int fake_live(void)
{
	int n = lists;
	for (int k = 0; k < KINDS; k++)
		n += live[k];
	return n;
}
EXPORT const char *fake_complaint(void) { return misuse ? complaint : ""; }
EXPORT void fake_hooks(void *create, void *connect, void *destroy, void *reg, void *dereg)
{
	memcpy(&hooks.create, &create, sizeof(create));
	memcpy(&hooks.connect, &connect, sizeof(connect));
	memcpy(&hooks.destroy, &destroy, sizeof(destroy));
	memcpy(&hooks.reg, &reg, sizeof(reg));
	memcpy(&hooks.dereg, &dereg, sizeof(dereg));
}

// Commands, as they came.
static struct { uint32_t bytes; uint8_t in[COMMAND_BYTES]; } log_[MAX_COMMANDS];
static int logged;
EXPORT int fake_commands(void) { return logged; }
EXPORT int fake_command(int i, void *out)
{
	memcpy(out, log_[i].in, log_[i].bytes);
	return (int)log_[i].bytes;
}

// Fields of commands: width bits from bit at, all within one big-endian word of 32.
static uint32_t field(const void *p, uint32_t at, uint32_t width)
{
	const uint8_t *b = (const uint8_t *)p + at / 32 * 4;
	uint32_t word = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
	return word >> (32 - width - at % 32) & (width == 32 ? ~0u : (1u << width) - 1);
}
static uint64_t field64(const void *p, uint32_t at) { return (uint64_t)field(p, at, 32) << 32 | field(p, at + 32, 32); }
static void put(void *p, uint32_t at, uint32_t width, uint32_t value)
{
	uint8_t *b = (uint8_t *)p + at / 32 * 4;
	uint32_t word = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
	word |= value << (32 - width - at % 32);
	b[0] = (uint8_t)(word >> 24), b[1] = (uint8_t)(word >> 16), b[2] = (uint8_t)(word >> 8), b[3] = (uint8_t)word;
}

// libibverbs.
EXPORT struct ibv_device **ibv_get_device_list(int *count)
{
	if (fault())
		return NULL;
	struct ibv_device **list = calloc(MAX_DEVICES + 2, sizeof(*list));
	int n = 0;
	for (; n < devices; n++) {
		machine[n].index = n;
		snprintf(machine[n].name, sizeof(machine[n].name), "mlx5_%d", n);
		list[n] = &machine[n];
	}
	machine[n].index = n; // one of another maker
	snprintf(machine[n].name, sizeof(machine[n].name), "other_%d", n);
	list[n] = &machine[n];
	*count = n + 1;
	lists++;
	return list;
}
EXPORT void ibv_free_device_list(struct ibv_device **list)
{
	lists--;
	free(list);
}
EXPORT const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }
EXPORT int ibv_close_device(struct ibv_context *c)
{
	leave(&c->o, CONTEXT);
	free(c);
	return fault() ? -1 : 0;
}
EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *c)
{
	if (fault())
		return NULL;
	struct ibv_pd *p = calloc(1, sizeof(*p));
	enter(&p->o, PD, c->o.device, p);
	depends(&p->o, 0, &c->o);
	return p;
}
EXPORT int ibv_dealloc_pd(struct ibv_pd *p)
{
	leave(&p->o, PD);
	free(p);
	return fault() ? EBUSY : 0;
}
EXPORT int ibv_query_port(struct ibv_context *c, uint8_t port, void *attr)
{
	uint8_t *a = attr;
	if (fault())
		return EIO;
	if (port != 1)
		return EINVAL;
	memset(a, 0, 48);
	memcpy(a, &port_state, 4);
	memcpy(a + 4, &(int){5}, 4);  // max_mtu 4096
	memcpy(a + 8, &(int){ethernet ? 3 : 5}, 4); // active_mtu
	memcpy(a + 12, &(int){8}, 4); // gid_tbl_len
	uint16_t lid = ethernet ? 0 : (uint16_t)(100 + c->o.device);
	memcpy(a + 34, &lid, 2);
	a[43] = 2;                 // active_width: 4 lanes
	a[44] = 64;                // active_speed: 50 Gbit/s each
	a[46] = ethernet ? 2 : 1;  // link_layer
	return 0;
}
// GID i: 0 and 1 are link-local; 2 and 3 10.0.0.1+device as IPv4; 4 and 5 10.1.0.1+device; 6 and 7 fd00::1+device.
EXPORT int ibv_query_gid(struct ibv_context *c, uint8_t port, int i, uint8_t *gid)
{
	if (fault())
		return -1;
	if (port != 1 || i < 0 || i > 7)
		return errno = EINVAL, -1;
	memset(gid, 0, 16);
	gid[15] = (uint8_t)(c->o.device + 1);
	if (i < 2 || !ethernet)
		gid[0] = 0xfe, gid[1] = 0x80;
	else if (i < 6)
		gid[10] = gid[11] = 0xff, gid[12] = 10, gid[13] = (uint8_t)(i / 2 - 1);
	else
		gid[0] = 0xfd;
	return 0;
}

static struct ibv_mr *reg(struct ibv_pd *pd, void *addr, size_t bytes, uint64_t iova, uint32_t access)
{
	struct ibv_mr *m = calloc(1, sizeof(*m));
	m->pd = pd, m->addr = addr, m->length = bytes;
	enter(&m->o, MR, pd->o.device, m);
	m->lkey = m->rkey = m->o.number << 8 | 0x5a;
	depends(&m->o, 0, &pd->o);
	if (hooks.reg)
		hooks.reg(pd->o.device, m->lkey, (uint64_t)(uintptr_t)addr, bytes, iova, access);
	return m;
}
EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t bytes, int access)
{
	if (fault())
		return NULL;
	if (without & WITHOUT_PEERMEM)
		return errno = EFAULT, NULL;
	return reg(pd, addr, bytes, (uint64_t)(uintptr_t)addr, (uint32_t)access);
}
EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t bytes, uint64_t iova, unsigned int access)
{
	if (fault())
		return NULL;
	if (without & WITHOUT_PEERMEM)
		return errno = EFAULT, NULL;
	return reg(pd, addr, bytes, iova, access);
}
EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access)
{
	if (fault())
		return NULL;
	if (without & WITHOUT_DMABUF || fd < 0)
		return errno = EOPNOTSUPP, NULL;
	(void)offset; // tests let a descriptor stand for the memory at iova
	return reg(pd, (void *)(uintptr_t)iova, bytes, iova, (uint32_t)access);
}
EXPORT int ibv_dereg_mr(struct ibv_mr *m)
{
	if (hooks.dereg)
		hooks.dereg(m->o.device, m->lkey);
	leave(&m->o, MR);
	free(m);
	return fault() ? EBUSY : 0;
}

struct ibv_ah_attr {
	uint8_t dgid[16];
	uint32_t flow_label;
	uint8_t sgid_index, hop_limit, traffic_class;
	uint16_t dlid;
	uint8_t sl, src_path_bits, static_rate, is_global, port_num;
};
EXPORT struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *a)
{
	if (fault())
		return NULL;
	if (a->port_num != 1 || !a->is_global || a->sgid_index > 7 || a->hop_limit == 0) {
		complain("an address handle with attributes that nobody set");
		return errno = EINVAL, NULL;
	}
	struct ibv_ah *h = calloc(1, sizeof(*h));
	enter(&h->o, AH, pd->o.device, NULL);
	depends(&h->o, 0, &pd->o);
	// The Ethernet address of the device with that GID.
	const uint8_t mac[6] = {0x02, 0xaa, 0xbb, 0xcc, 0xdd, a->dgid[15]};
	memcpy(h->vector + 20, mac, 6);
	return h;
}
EXPORT int ibv_destroy_ah(struct ibv_ah *h)
{
	leave(&h->o, AH);
	free(h);
	return fault() ? EBUSY : 0;
}

// libmlx5.
EXPORT bool mlx5dv_is_supported(struct ibv_device *d) { return d->index < devices; }
struct context_attr { uint32_t flags; uint64_t mask; };
EXPORT struct ibv_context *mlx5dv_open_device(struct ibv_device *d, struct context_attr *a)
{
	if (fault())
		return NULL;
	if (a->flags != 1 || a->mask != 0 || d->index >= devices)
		return complain("opened without DevX"), errno = EINVAL, NULL;
	struct ibv_context *c = calloc(1, sizeof(*c));
	enter(&c->o, CONTEXT, d->index, NULL);
	return c;
}
struct pair { void *in; void *out; };
struct objects { struct pair qp, cq, srq, rwq, dm, ah, pd; };
EXPORT int mlx5dv_init_obj(struct objects *o, uint64_t type)
{
	if (fault())
		return EINVAL;
	if (type == 1 << 6) {
		*(uint32_t *)o->pd.out = ((struct ibv_pd *)o->pd.in)->o.number;
	} else if (type == 1 << 5) {
		*(void **)o->ah.out = ((struct ibv_ah *)o->ah.in)->vector;
	} else {
		complain("an unknown type of object");
		return EINVAL;
	}
	return 0;
}
EXPORT struct mlx5dv_devx_uar *mlx5dv_devx_alloc_uar(struct ibv_context *c, uint32_t flags)
{
	if (fault())
		return NULL;
	if ((flags == 1 && without & WITHOUT_NC) || (flags == 1u << 31 && without & (WITHOUT_NC | WITHOUT_DEDICATED)) || (flags & 0x7ffffffe))
		return errno = EOPNOTSUPP, NULL;
	// Of pages that are not cached a context has one, unless they are dedicated.
	for (uint32_t i = 1; flags == 1 && i < next_number; i++) {
		struct mlx5dv_devx_uar *had = objects[i];
		if (had && had->o.kind == UAR && had->o.number == i && had->shared && had->o.device == c->o.device)
			return had;
	}
	struct mlx5dv_devx_uar *u = calloc(1, sizeof(*u));
	u->shared = flags == 1;
	enter(&u->o, UAR, c->o.device, u);
	depends(&u->o, 0, &c->o);
	u->page_id = u->o.number;
	u->base_addr = u->page;
	u->reg_addr = &u->page[0x800 / 8 % 512];
	return u;
}
EXPORT void mlx5dv_devx_free_uar(struct mlx5dv_devx_uar *u)
{
	leave(&u->o, UAR);
	free(u);
}
EXPORT int mlx5dv_devx_query_eqn(struct ibv_context *c, uint32_t vector, uint32_t *eqn)
{
	(void)c;
	if (fault())
		return EINVAL;
	*eqn = 0x42 + vector;
	return 0;
}
static struct mlx5dv_devx_umem *umem(struct ibv_context *c, uint64_t address, uint64_t size)
{
	struct mlx5dv_devx_umem *m = calloc(1, sizeof(*m));
	enter(&m->o, UMEM, c->o.device, m);
	depends(&m->o, 0, &c->o);
	m->umem_id = m->o.number;
	m->address = address;
	m->size = size;
	return m;
}
EXPORT struct mlx5dv_devx_umem *mlx5dv_devx_umem_reg(struct ibv_context *c, void *address, size_t size, uint32_t access)
{
	if (fault())
		return NULL;
	if (without & WITHOUT_PEERMEM || access != 1)
		return errno = EFAULT, NULL;
	return umem(c, (uint64_t)(uintptr_t)address, size);
}
struct umem_in { void *addr; size_t size; uint32_t access; uint64_t pgsz_bitmap, comp_mask; int dmabuf_fd; };
static uint64_t dmabuf_address; // tests let a descriptor stand for memory here
EXPORT void fake_dmabuf(uint64_t address) { dmabuf_address = address; }
EXPORT struct mlx5dv_devx_umem *mlx5dv_devx_umem_reg_ex(struct ibv_context *c, struct umem_in *in)
{
	if (fault())
		return NULL;
	if (without & WITHOUT_DMABUF || in->comp_mask != 1 || in->dmabuf_fd < 0 || in->access != 1 || in->pgsz_bitmap & 0xfff ||
	    !(in->pgsz_bitmap & 0x1000))
		return errno = EOPNOTSUPP, NULL;
	return umem(c, dmabuf_address + (uint64_t)(uintptr_t)in->addr, in->size);
}
EXPORT int mlx5dv_devx_umem_dereg(struct mlx5dv_devx_umem *m)
{
	leave(&m->o, UMEM);
	free(m);
	return fault() ? EBUSY : 0;
}

// refuse answers a command as firmware does.
static int refuse(void *out, uint32_t status, uint32_t syndrome)
{
	put(out, 0, 8, status);
	put(out, 0x20, 32, syndrome);
	return EREMOTEIO;
}

static void record(const void *in, size_t bytes)
{
	if (logged >= MAX_COMMANDS || bytes > COMMAND_BYTES)
		return; // enough for those who look
	log_[logged].bytes = (uint32_t)bytes;
	memcpy(log_[logged++].in, in, bytes);
}

EXPORT int mlx5dv_devx_general_cmd(struct ibv_context *c, const void *in, size_t inlen, void *out, size_t outlen)
{
	(void)c;
	record(in, inlen);
	if (fault())
		return refuse(out, 0x1, 0x1234);
	uint32_t modifier = field(in, 0x30, 16), cap = 0x80;
	if (field(in, 0, 16) != 0x100 || inlen != 0x10 || outlen != 0x1010 || !(modifier & 1))
		return refuse(out, 0x2, 0x1111);
	if (modifier >> 1 == 0) {
		put(out, cap + 0x88, 8, 15);     // log_max_qp_sz
		put(out, cap + 0xc8, 8, 22);     // log_max_cq_sz
		put(out, cap + 0x14a, 6, 4);     // log_max_ra_req_qp
		put(out, cap + 0x15a, 6, 4);     // log_max_ra_res_qp
		put(out, cap + 0x1c3, 5, 30);    // log_max_msg
		put(out, cap + 0x21e, 1, 1);     // atomic
		put(out, cap + 0x220, 1, !(without & WITHOUT_OI));
		put(out, cap + 0x23f, 1, !(without & WITHOUT_RC));
	} else if (modifier >> 1 == 3) {
		put(out, cap + 0x90, 16, without & WITHOUT_MASKED ? 3 : 15);
		put(out, cap + 0xb0, 16, 1 << 2 | 1 << 3);
	} else {
		return refuse(out, 0x2, 0x2222);
	}
	return 0;
}

// known is the object with a number, if it is of that kind and device.
static void *known(uint32_t number, enum kind kind, int device, size_t at)
{
	if (number == 0 || number >= MAX_OBJECTS || objects[number] == NULL)
		return NULL;
	struct object *o = (struct object *)((char *)objects[number] + at);
	return o->kind == kind && o->device == device ? objects[number] : NULL;
}
#define KNOWN(type, number, kind, device) ((type *)known(number, kind, device, offsetof(type, o)))

// range is the address of bytes in a umem.
static uint64_t range(struct mlx5dv_devx_umem *m, uint64_t offset, uint64_t bytes)
{
	return m && offset + bytes <= m->size ? m->address + offset : 0;
}

static uint32_t create_cq(struct mlx5dv_devx_obj *o, const void *in)
{
	const uint32_t c = 0x80;
	int d = o->o.device;
	struct mlx5dv_devx_umem *cq = KNOWN(struct mlx5dv_devx_umem, field(in, 0x2c0, 32), UMEM, d);
	struct mlx5dv_devx_umem *record = KNOWN(struct mlx5dv_devx_umem, field(in, c + 0x20, 32), UMEM, d);
	struct mlx5dv_devx_uar *uar = KNOWN(struct mlx5dv_devx_uar, field(in, c + 0x68, 24), UAR, d);
	if (!cq || !record || !uar || !field(in, 0x2e0, 1) || !field(in, c + 6, 1) || field(in, c + 0xb8, 8) != 0x42)
		return 0x31;
	if (!field(in, c + 0xb, 1) || !field(in, c + 0xe, 1)) // this fake makes only collapsed ones that ignore overruns
		return 0x32;
	o->cq = range(cq, field64(in, 0x280), 64ull << field(in, c + 0x63, 5));
	if (!o->cq || !range(record, field64(in, c + 0x1c0), 8) || field64(in, 0x280) % 4096)
		return 0x33;
	depends(&o->o, 0, &cq->o);
	depends(&o->o, 1, &record->o);
	depends(&o->o, 2, &uar->o);
	return 0;
}

static uint32_t create_qp(struct mlx5dv_devx_obj *o, const void *in)
{
	const uint32_t q = 0xc0;
	int d = o->o.device;
	struct mlx5dv_devx_umem *wq = KNOWN(struct mlx5dv_devx_umem, field(in, 0x840, 32), UMEM, d);
	struct mlx5dv_devx_umem *record = KNOWN(struct mlx5dv_devx_umem, field(in, q + 0x720, 32), UMEM, d);
	struct mlx5dv_devx_uar *uar = KNOWN(struct mlx5dv_devx_uar, field(in, q + 0x68, 24), UAR, d);
	struct mlx5dv_devx_obj *cq = KNOWN(struct mlx5dv_devx_obj, field(in, q + 0x3e8, 24), CQ, d);
	if (!wq || !record || !uar || !cq || !field(in, 0x860, 1) || !field(in, q + 0x683, 1) ||
	    !KNOWN(struct ibv_pd, field(in, q + 0x28, 24), PD, d))
		return 0x41;
	if (field(in, q + 8, 8) != 0 || field(in, q + 0x13, 2) != 3 || field(in, q + 0x565, 3) != 3)
		return 0x42; // not RC, not migrated, or with a receive queue
	uint64_t depth = 1ull << field(in, q + 0x51, 4);
	uint64_t at = range(wq, field64(in, 0x800), depth * 64), words = range(record, field64(in, q + 0x500), 8);
	if (!at || !words || field64(in, 0x800) % 4096 || words % 8)
		return 0x43;
	depends(&o->o, 0, &wq->o);
	depends(&o->o, 1, &record->o);
	depends(&o->o, 2, &uar->o);
	depends(&o->o, 3, &cq->o);
	if (hooks.create)
		hooks.create(d, o->o.number, at, depth, words, cq->cq, (uint64_t)(uintptr_t)uar->reg_addr);
	return 0;
}

EXPORT struct mlx5dv_devx_obj *mlx5dv_devx_obj_create(struct ibv_context *c, const void *in, size_t inlen, void *out, size_t outlen)
{
	record(in, inlen);
	if (fault())
		return refuse(out, 0x5, 0x77), NULL;
	if (inlen < 0x110 || outlen < 0x10)
		return errno = refuse(out, 0x50, 0x1), NULL;
	uint32_t opcode = field(in, 0, 16);
	struct mlx5dv_devx_obj *o = calloc(1, sizeof(*o));
	enter(&o->o, opcode == 0x400 ? CQ : QP, c->o.device, o);
	uint32_t syndrome = opcode == 0x400 ? create_cq(o, in) : opcode == 0x500 ? create_qp(o, in) : 0x99;
	if (syndrome) {
		leave(&o->o, o->o.kind);
		free(o);
		return errno = refuse(out, 0x3, syndrome), NULL;
	}
	put(out, 0x48, 24, o->o.number);
	return o;
}

EXPORT int mlx5dv_devx_obj_modify(struct mlx5dv_devx_obj *o, const void *in, size_t inlen, void *out, size_t outlen)
{
	record(in, inlen);
	if (fault())
		return refuse(out, 0x5, 0x78);
	const uint32_t q = 0xc0, path = q + 0xc0;
	uint32_t opcode = field(in, 0, 16);
	if (o->o.kind != QP || field(in, 0x48, 24) != o->o.number || inlen != 0x110 || outlen != 0x10 ||
	    opcode != 0x502u + (uint32_t)o->state || o->state > 2)
		return refuse(out, 0x9, 0x51);
	switch (opcode) {
	case 0x502:
		if (field(in, path + 0x128, 8) != 1 || !field(in, q + 0x491, 1))
			return refuse(out, 0x3, 0x52);
		break;
	case 0x503:
		o->remote_qpn = field(in, q + 0xa8, 24);
		// On RoCE, the device is known by the last byte of its Ethernet address.
		o->remote_lid = ethernet ? 100 + (field(in, path + 0x140, 32) & 0xff) - 1 : field(in, path + 0x30, 16);
		if (!o->remote_qpn || !field(in, q + 0x40, 3) || (ethernet && field(in, path + 0x28, 1)))
			return refuse(out, 0x3, 0x53);
		break;
	case 0x504:
		if (hooks.connect)
			hooks.connect(o->o.device, o->o.number, o->remote_lid, o->remote_qpn);
		break;
	}
	o->state++;
	return 0;
}

EXPORT int mlx5dv_devx_obj_destroy(struct mlx5dv_devx_obj *o)
{
	if (o->o.kind == QP && hooks.destroy)
		hooks.destroy(o->o.device, o->o.number);
	leave(&o->o, o->o.kind);
	free(o);
	return fault() ? EBUSY : 0;
}
