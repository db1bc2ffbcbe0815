// Prints entries that rdma-core's own header writes, a line of name and bytes each, and what that header says of
// completions.
#include <infiniband/mlx5dv.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static union {
  uint8_t bytes[4096];
  __be64 words[512];
} ring;
static size_t at;

static void *segment(size_t n) {
  void *p = ring.bytes + at;
  at += (n + 15) / 16 * 16;
  return p;
}

static void end(uint16_t index, uint8_t opcode, uint8_t modifier, uint32_t queue, uint8_t flags, uint32_t immediate) {
  mlx5dv_set_ctrl_seg((struct mlx5_wqe_ctrl_seg *)ring.bytes, index, opcode, modifier, queue, flags, (uint8_t)(at / 16), 0,
                      htobe32(immediate));
  for (size_t i = 0; i < at; i++) printf("%02x", ring.bytes[i]);
  printf("\n");
}

static void begin(const char *name) {
  memset(&ring, 0, sizeof ring);
  at = 0;
  segment(16);
  printf("%s ", name);
}

static void remote(uint64_t address, uint32_t key) {
  struct mlx5_wqe_raddr_seg *r = segment(sizeof *r);
  r->raddr = htobe64(address);
  r->rkey = htobe32(key);
}

static void data(uint32_t n, uint32_t key, uint64_t address) { mlx5dv_set_data_seg(segment(16), n, key, address); }

static void inlined(const char *text) {
  struct mlx5_wqe_inl_data_seg *s = segment(4 + strlen(text));
  s->byte_count = htobe32((uint32_t)strlen(text) | MLX5_INLINE_SEG);
  memcpy(s + 1, text, strlen(text));
}

static void atomic(uint64_t add, uint64_t compare) {
  struct mlx5_wqe_atomic_seg *s = segment(sizeof *s);
  s->swap_add = htobe64(add);
  s->compare = htobe64(compare);
}

int main(void) {
  begin("write");
  remote(0x0102030405060708, 0x11121314);
  data(0x1000, 0x21222324, 0x3132333435363738);
  end(0xfffe, MLX5_OPCODE_RDMA_WRITE, 0, 0x123456, MLX5_WQE_CTRL_CQ_UPDATE | MLX5_WQE_CTRL_FENCE, 0);
  begin("ranges");
  remote(1, 2);
  for (uint32_t i = 1; i < 8; i++) data(i, 2 * i, 3 * i);
  end(3, MLX5_OPCODE_RDMA_WRITE, 0, 1, 0, 0);
  begin("inline12");
  remote(5, 6);
  inlined("twelve bytes");
  end(1, MLX5_OPCODE_RDMA_WRITE, 0, 2, MLX5_WQE_CTRL_CQ_UPDATE, 0);
  begin("inline60");
  remote(5, 6);
  inlined("sixty bytes of payload, which is more than one block holds..");
  end(1, MLX5_OPCODE_RDMA_WRITE, 0, 2, MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE, 0);
  begin("immediate");
  remote(5, 6);
  data(1, 2, 3);
  end(1, MLX5_OPCODE_RDMA_WRITE_IMM, 0, 2, MLX5_WQE_CTRL_SOLICITED, 0xdeadbeef);
  begin("read");
  remote(5, 6);
  data(1, 2, 3);
  end(1, MLX5_OPCODE_RDMA_READ, 0, 2, 0, 0);
  begin("send");
  data(1, 2, 3);
  end(1, MLX5_OPCODE_SEND, 0, 2, 0, 0);
  begin("add");
  remote(8, 6);
  atomic(0x0102030405060708, 0);
  data(8, 2, 3);
  end(1, MLX5_OPCODE_ATOMIC_FA, 0, 2, 0, 0);
  begin("swap");
  remote(8, 6);
  atomic(0x0102030405060708, 0x1112131415161718);
  data(8, 2, 3);
  end(1, MLX5_OPCODE_ATOMIC_CS, 0, 2, 0, 0);
  begin("nop");
  end(1, MLX5_OPCODE_NOP, 0, 2, MLX5_WQE_CTRL_CQ_UPDATE, 0);

#define AT(name, type, field) printf("at " name " %zu\n", offsetof(struct type, field))
  AT("bytes", mlx5_cqe64, byte_cnt);
  AT("time", mlx5_cqe64, timestamp);
  AT("queue", mlx5_cqe64, sop_drop_qpn);
  AT("counter", mlx5_cqe64, wqe_counter);
  AT("owner", mlx5_cqe64, op_own);
  AT("vendor", mlx5_err_cqe, vendor_err_synd);
  AT("syndrome", mlx5_err_cqe, syndrome);
#define IS(name, value) printf("is " name " %d\n", (int)(value))
  IS("size", sizeof(struct mlx5_cqe64));
  IS("good", MLX5_CQE_REQ);
  IS("error", MLX5_CQE_REQ_ERR);
  IS("responder error", MLX5_CQE_RESP_ERR);
  IS("invalid", MLX5_CQE_INVALID);
  IS("01", MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR);
  IS("02", MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR);
  IS("04", MLX5_CQE_SYNDROME_LOCAL_PROT_ERR);
  IS("05", MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
  IS("06", MLX5_CQE_SYNDROME_MW_BIND_ERR);
  IS("10", MLX5_CQE_SYNDROME_BAD_RESP_ERR);
  IS("11", MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR);
  IS("12", MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR);
  IS("13", MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR);
  IS("14", MLX5_CQE_SYNDROME_REMOTE_OP_ERR);
  IS("15", MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR);
  IS("16", MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR);
  IS("22", MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR);
  IS("masked swap", MLX5_OPCODE_ATOMIC_MASKED_CS);
  IS("masked add", MLX5_OPCODE_ATOMIC_MASKED_FA);
  IS("UMR", MLX5_OPCODE_UMR);
  IS("send queue's record", MLX5_SND_DBR);
  return 0;
}
