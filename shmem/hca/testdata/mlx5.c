// rdma-core's libmlx5 without a device: this program is, to the library, the kernel that has one. What libibverbs asks
// of the kernel comes here (open, write, ioctl and mmap are this program's), is answered with as little as the library
// needs, and the memory of its queues moves to a file that the test has mapped as well. Posting and polling are then
// the library's own code, and what executes the entries is whoever reads that file.
//
//	mlx5 FILE
//
// Reads commands from standard input, one a line, and answers each with a line. The file holds the library's queues and
// records where the first line says, and at DATA the memory that entries work on.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, DATA = 1 << 20, SIZE = 2 << 20, QUEUE = 0x123456, KEY = 0x4321, CQ = 0x77 };

static int device = -1, file = -1;
static size_t used;           // bytes of the file given to queues
static int verbose;

static void die(const char *what) {
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  exit(1);
}

// share moves the pages of a range into the file and returns the offset of the range in it.
static size_t share(uint64_t address, size_t n) {
  uint64_t first = address & ~(uint64_t)(PAGE - 1), end = (address + n + PAGE - 1) & ~(uint64_t)(PAGE - 1);
  static struct { uint64_t first, end; size_t at; } known[16];
  for (int i = 0; i < 16; i++)
    if (known[i].end && known[i].first <= first && end <= known[i].end) return known[i].at + (size_t)(address - known[i].first);
  size_t at = used, bytes = (size_t)(end - first);
  used += bytes;
  if (used > DATA) die("queues are too large");
  uint8_t *copy = malloc(bytes);
  memcpy(copy, (void *)(uintptr_t)first, bytes);
  if (syscall(SYS_mmap, first, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, at) == -1) die("mmap");
  memcpy((void *)(uintptr_t)first, copy, bytes);
  free(copy);
  for (int i = 0; i < 16; i++)
    if (!known[i].end) {
      known[i].first = first, known[i].end = end, known[i].at = at;
      break;
    }
  return at + (size_t)(address - first);
}

// --- The kernel ---

int open(const char *path, int flags, ...) {
  va_list l;
  va_start(l, flags);
  int mode = va_arg(l, int);
  va_end(l);
  if (strcmp(path, "/dev/infiniband/uverbs0") == 0) {
    // Of the right kind, with the number that the test's sysfs has.
    return device = (int)syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR | O_CLOEXEC, 0);
  }
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int stat(const char *path, struct stat *s) {
  return fstatat(AT_FDCWD, strcmp(path, "/dev/infiniband/uverbs0") == 0 ? "/dev/null" : path, s, 0);
}

int ioctl(int fd, unsigned long request, ...) {
  (void)fd, (void)request;
  errno = ENOTTY; // as kernels before 4.20: the library then writes its commands
  return -1;
}

void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset) {
  if (fd == device && fd >= 0) {
    flags = MAP_PRIVATE | MAP_ANONYMOUS | (flags & MAP_FIXED);
    fd = -1, offset = 0;
    protection |= PROT_READ;
  }
  return (void *)syscall(SYS_mmap, at, n, protection, flags, fd, offset);
}

static size_t wq_at, cq_at, record_at, cq_record_at;
static uint32_t wq_blocks, cq_entries;

// command answers one command of the library. in is after the headers, out is as large as the library said.
static int command(uint32_t number, int extended, const uint8_t *in, uint8_t *out, size_t room) {
  if (verbose) fprintf(stderr, "command %u%s, room %zu\n", number, extended ? " extended" : "", room);
  if (out) memset(out, 0, room);
  switch (number) {
  case IB_USER_VERBS_CMD_GET_CONTEXT: {
    struct ib_uverbs_get_context_resp *r = (void *)out;
    r->async_fd = (uint32_t)eventfd(0, EFD_CLOEXEC);
    r->num_comp_vectors = 1;
    struct mlx5_ib_alloc_ucontext_resp m = {.qp_tab_size = 1 << 18, .bf_reg_size = 512, .tot_bfregs = 16, .cache_line_size = 64,
                                            .max_sq_desc_sz = 1024, .max_rq_desc_sz = 512, .max_send_wqebb = 32768,
                                            .max_recv_wr = 32768, .max_srq_recv_wr = 32768, .num_ports = 1, .cqe_version = 1,
                                            .response_length = sizeof m, .log_uar_size = 12, .num_uars_per_page = 1};
    memcpy(r + 1, &m, room - sizeof *r < sizeof m ? room - sizeof *r : sizeof m);
    return 0;
  }
  case IB_USER_VERBS_CMD_QUERY_DEVICE: {
    struct ib_uverbs_query_device_resp *r = (void *)out;
    if (extended) {
      struct ib_uverbs_ex_query_device_resp *x = (void *)out;
      x->response_length = sizeof *x;
      r = &x->base;
    }
    r->max_qp = 1024, r->max_qp_wr = 32768, r->max_sge = 30, r->max_cq = 1024, r->max_cqe = 32768, r->max_mr = 1024, r->max_pd = 1024;
    r->max_qp_rd_atom = 16, r->atomic_cap = 1, r->phys_port_cnt = 1, r->vendor_id = 0x15b3, r->vendor_part_id = 0x1017;
    r->max_mr_size = 1ull << 40;
    return 0;
  }
  case IB_USER_VERBS_CMD_QUERY_PORT: {
    struct ib_uverbs_query_port_resp *r = (void *)out;
    r->state = 4, r->max_mtu = 5, r->active_mtu = 5, r->gid_tbl_len = 1, r->max_msg_sz = 1u << 30, r->lid = 1, r->link_layer = 1;
    return 0;
  }
  case IB_USER_VERBS_CMD_ALLOC_PD: {
    struct ib_uverbs_alloc_pd_resp *r = (void *)out;
    r->pd_handle = 1;
    if (room >= sizeof *r + 4) memcpy(r + 1, &(uint32_t){7}, 4);
    return 0;
  }
  case IB_USER_VERBS_CMD_REG_MR: {
    struct ib_uverbs_reg_mr_resp *r = (void *)out;
    r->mr_handle = 1, r->lkey = KEY, r->rkey = KEY;
    return 0;
  }
  case IB_USER_VERBS_CMD_CREATE_CQ: {
    struct mlx5_ib_create_cq m;
    uint32_t entries;
    memcpy(&m, in + (extended ? sizeof(struct ib_uverbs_ex_create_cq) : sizeof(struct ib_uverbs_create_cq)), sizeof m);
    entries = extended ? ((struct ib_uverbs_ex_create_cq *)in)->cqe : ((struct ib_uverbs_create_cq *)in)->cqe;
    struct ib_uverbs_create_cq_resp *r = (void *)out;
    size_t head = sizeof *r;
    if (extended) {
      struct ib_uverbs_ex_create_cq_resp *x = (void *)out;
      x->response_length = sizeof *x;
      head = sizeof *x;
    }
    r->cq_handle = 1, r->cqe = entries;
    memcpy(out + head, &(struct mlx5_ib_create_cq_resp){.cqn = CQ}, sizeof(struct mlx5_ib_create_cq_resp));
    for (cq_entries = 1; cq_entries <= entries; cq_entries *= 2) {}
    cq_at = share(m.buf_addr, (size_t)cq_entries * m.cqe_size);
    cq_record_at = share(m.db_addr, 8);
    return m.cqe_size == 64 ? 0 : EINVAL;
  }
  case IB_USER_VERBS_CMD_CREATE_QP: {
    struct mlx5_ib_create_qp m;
    memcpy(&m, in + (extended ? sizeof(struct ib_uverbs_ex_create_qp) : sizeof(struct ib_uverbs_create_qp)), sizeof m);
    struct ib_uverbs_create_qp_resp *r = (void *)out;
    if (extended) ((struct ib_uverbs_ex_create_qp_resp *)(void *)out)->response_length = sizeof(struct ib_uverbs_ex_create_qp_resp);
    r->qp_handle = 1, r->qpn = QUEUE;
    if (!extended) {
      struct ib_uverbs_create_qp *c = (void *)in;
      r->max_send_wr = c->max_send_wr, r->max_recv_wr = c->max_recv_wr, r->max_send_sge = c->max_send_sge;
      r->max_recv_sge = c->max_recv_sge, r->max_inline_data = c->max_inline_data;
    } else {
      struct ib_uverbs_ex_create_qp *c = (void *)in;
      r->max_send_wr = c->max_send_wr, r->max_recv_wr = c->max_recv_wr, r->max_send_sge = c->max_send_sge;
      r->max_recv_sge = c->max_recv_sge, r->max_inline_data = c->max_inline_data;
    }
    size_t receive = (size_t)m.rq_wqe_count << m.rq_wqe_shift;
    wq_blocks = m.sq_wqe_count;
    wq_at = share(m.buf_addr, receive + (size_t)wq_blocks * 64) + receive;
    record_at = share(m.db_addr, 8);
    return 0;
  }
  case IB_USER_VERBS_CMD_MODIFY_QP:
  case IB_USER_VERBS_CMD_DEREG_MR:
  case IB_USER_VERBS_CMD_DEALLOC_PD:
  case IB_USER_VERBS_CMD_DESTROY_CQ:
  case IB_USER_VERBS_CMD_DESTROY_QP:
    return 0;
  }
  return EOPNOTSUPP;
}

ssize_t write(int fd, const void *buffer, size_t n) {
  if (fd != device || fd < 0) return syscall(SYS_write, fd, buffer, n);
  const struct ib_uverbs_cmd_hdr *h = buffer;
  const uint8_t *in = (const uint8_t *)(h + 1);
  uint32_t number = h->command & 0xff;
  int extended = (h->command & IB_USER_VERBS_CMD_FLAG_EXTENDED) != 0;
  uint64_t out = 0;
  size_t room = (size_t)h->out_words * 4;
  if (extended) {
    const struct ib_uverbs_ex_cmd_hdr *x = (const void *)in;
    in = (const uint8_t *)(x + 1);
    out = x->response;
    room = ((size_t)h->out_words + x->provider_out_words) * 8;
  } else if (room) {
    memcpy(&out, in, 8);
  }
  int e = command(number, extended, in, (uint8_t *)(uintptr_t)out, room);
  if (e) {
    errno = e;
    return -1;
  }
  return (ssize_t)n;
}

// --- The program ---

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  verbose = getenv("VERBOSE") != NULL;
  file = (int)syscall(SYS_openat, AT_FDCWD, argv[1], O_RDWR | O_CLOEXEC, 0);
  if (file < 0) die(argv[1]);
  uint8_t *data = mmap(NULL, SIZE - DATA, PROT_READ | PROT_WRITE, MAP_SHARED, file, DATA);
  if (data == MAP_FAILED) die("mmap");
  int n = 0;
  struct ibv_device **list = ibv_get_device_list(&n);
  if (!list || n != 1) die("ibv_get_device_list");
  struct ibv_context *c = ibv_open_device(list[0]);
  if (!c) die("ibv_open_device");
  struct ibv_pd *pd = ibv_alloc_pd(c);
  if (!pd) die("ibv_alloc_pd");
  struct ibv_mr *mr = ibv_reg_mr(pd, data, SIZE - DATA, IBV_ACCESS_LOCAL_WRITE);
  if (!mr) die("ibv_reg_mr");
  struct ibv_cq *cq = ibv_create_cq(c, 31, NULL, NULL, 0);
  if (!cq) die("ibv_create_cq");
  struct ibv_qp_init_attr want = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
                                  .cap = {.max_send_wr = 32, .max_recv_wr = 1, .max_send_sge = 4, .max_recv_sge = 1, .max_inline_data = 200}};
  struct ibv_qp *qp = ibv_create_qp(pd, &want);
  if (!qp) die("ibv_create_qp");
  struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1};
  if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)) die("INIT");
  a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .ah_attr = {.dlid = 1, .port_num = 1}};
  if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                IBV_QP_MIN_RNR_TIMER)) die("RTR");
  a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS};
  if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
    die("RTS");
  // The library's own word on where things are.
  struct mlx5dv_qp dq = {0};
  struct mlx5dv_cq dc = {0};
  struct mlx5dv_obj o = {.qp = {.in = qp, .out = &dq}, .cq = {.in = cq, .out = &dc}};
  if (mlx5dv_init_obj(&o, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ)) die("mlx5dv_init_obj");
  if (share((uintptr_t)dq.sq.buf, 64) != wq_at || dq.sq.wqe_cnt != wq_blocks || dq.sq.stride != 64 || share((uintptr_t)dq.dbrec, 8) != record_at ||
      share((uintptr_t)dc.buf, 64) != cq_at || dc.cqe_cnt != cq_entries || dc.cqn != CQ)
    die("the queues are elsewhere");
  printf("queue %x wq %zu %u record %zu cq %zu %u cqrecord %zu data %llx key %x\n", qp->qp_num, wq_at, wq_blocks, record_at, cq_at, cq_entries,
         cq_record_at, (unsigned long long)(uintptr_t)data, mr->lkey);
  fflush(stdout);

  char line[256];
  uint64_t id = 0;
  while (fgets(line, sizeof line, stdin)) {
    char op[16];
    unsigned long long from, to, remote, key, x, y;
    int flags;
    if (sscanf(line, "post %15s %llx %llx %llx %llx %llx %llx %x", op, &from, &to, &remote, &key, &x, &y, &flags) == 8) {
      struct ibv_sge s[2] = {{.addr = (uintptr_t)data + from, .length = (uint32_t)to, .lkey = mr->lkey}};
      struct ibv_send_wr w = {.wr_id = ++id, .sg_list = s, .num_sge = 1, .send_flags = (unsigned)flags}, *bad;
      w.wr.rdma.remote_addr = remote, w.wr.rdma.rkey = (uint32_t)key;
      if (strcmp(op, "write") == 0) w.opcode = IBV_WR_RDMA_WRITE;
      else if (strcmp(op, "writeimm") == 0) w.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, w.imm_data = htobe32((uint32_t)x);
      else if (strcmp(op, "read") == 0) w.opcode = IBV_WR_RDMA_READ;
      else if (strcmp(op, "send") == 0) w.opcode = IBV_WR_SEND;
      else {
        w.opcode = strcmp(op, "add") == 0 ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP;
        w.wr.atomic.remote_addr = remote, w.wr.atomic.rkey = (uint32_t)key, w.wr.atomic.compare_add = x, w.wr.atomic.swap = y;
      }
      if (x && w.opcode == IBV_WR_RDMA_WRITE) { // a second range
        s[1] = (struct ibv_sge){.addr = (uintptr_t)data + x, .length = (uint32_t)y, .lkey = mr->lkey};
        w.num_sge = 2;
      }
      int e = ibv_post_send(qp, &w, &bad);
      printf("posted %d\n", e);
    } else if (strcmp(line, "bell\n") == 0) { // the register has two halves, which take turns
      const uint8_t *bell = dq.bf.reg;
      for (int half = 0; half < 2; half++, bell += dq.bf.size)
        for (int i = 0; i < 8; i++) printf("%02x%s", bell[i], i < 7 ? "" : half ? "\n" : " ");
    } else if (strcmp(line, "poll\n") == 0) {
      struct ibv_wc wc;
      int got;
      for (int i = 0; (got = ibv_poll_cq(cq, 1, &wc)) == 0 && i < 100000; i++) usleep(50);
      if (got == 1)
        printf("completion %llu %d %d %u\n", (unsigned long long)wc.wr_id, wc.status, wc.opcode, wc.status ? wc.vendor_err : wc.byte_len);
      else
        printf("completion none %d\n", got);
    } else {
      printf("unknown %s", line);
    }
    fflush(stdout);
  }
  return 0;
}
