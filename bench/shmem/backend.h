// The host's side of the benchmark's back ends: lshmem, NVSHMEM, and raw memory that all PEs map. rows.cc includes it once,
// after the functions that it uses.
#pragma once

static CUdevice device;
static CUcontext context;
static CUstream stream;
static bench_state state;

#if defined(BENCH_LSHMEM)

static lshmem_pe_t self;
static void ok(int r, const char *what) {
  if (r != LSHMEM_OK) die(what, std::string(lshmem_strerror(r)) + ": " + lshmem_last_error());
}
static void prepare() {
  if (pe == 0) ok(lshmem_get_uniqueid((lshmem_uniqueid *)common->id), "lshmem_get_uniqueid");
}
static void begin() {
  lshmem_config config;
  lshmem_config_init(&config);
  config.pe = pe;
  config.pes = pes;
  config.uniqueid = (lshmem_uniqueid *)common->id;
  config.device = (int)device;
  ok(lshmem_init(&config, &self), "lshmem_init");
}
static void begun() { ok(lshmem_get_state(self, &state), "lshmem_get_state"); }
static void end() { ok(lshmem_finalize(self), "lshmem_finalize"); }
static void *allocate(size_t n) {
  void *p;
  ok(lshmem_malloc(self, n, &p), "lshmem_malloc");
  return p;
}
static void release(void *p) { ok(lshmem_free(self, p), "lshmem_free"); }
static bool barrier() {
  ok(lshmem_barrier_on_stream(self, LSHMEM_TEAM_WORLD, stream), "lshmem_barrier_on_stream");
  return true;
}
static bool alltoall(void *d, const void *s, size_t words) {
  ok(lshmem_alltoall_on_stream(self, LSHMEM_TEAM_WORLD, LSHMEM_UINT32, d, s, words, stream), "lshmem_alltoall_on_stream");
  return true;
}
static bool sum(float *d, const float *s, size_t n) {
  ok(lshmem_reduce_on_stream(self, LSHMEM_TEAM_WORLD, LSHMEM_FLOAT32, LSHMEM_SUM, d, s, n, stream), "lshmem_reduce_on_stream");
  return true;
}
static std::string trouble() {
  int r = lshmem_status(self);
  return r == LSHMEM_OK ? "" : std::string(lshmem_strerror(r)) + ": " + lshmem_last_error();
}

#elif defined(BENCH_NVSHMEM)

static void prepare() {
  static_assert(sizeof(nvshmemx_uniqueid_t) <= sizeof common->id, "unique id");
  if (pe == 0) {
    nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
    if (nvshmemx_get_uniqueid(&id)) die("nvshmemx_get_uniqueid", "refused");
    memcpy(common->id, &id, sizeof id);
  }
}
static void begin() {
  nvshmemx_uniqueid_t id;
  memcpy(&id, common->id, sizeof id);
  nvshmemx_init_attr_t attr = NVSHMEMX_INIT_ATTR_INITIALIZER;
  nvshmemx_set_attr_uniqueid_args(pe, pes, &id, &attr);
  if (nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attr)) die("nvshmemx_init_attr", "refused");
}
static void begun() {}
static void end() { nvshmem_finalize(); }
static void *allocate(size_t n) {
  void *p = nvshmem_malloc(n);
  if (!p) die("nvshmem_malloc", "no memory");
  return p;
}
static void release(void *p) { nvshmem_free(p); }
static bool barrier() {
  nvshmemx_barrier_all_on_stream((cudaStream_t)stream);
  return true;
}
static bool alltoall(void *d, const void *s, size_t words) {
  return nvshmemx_uint32_alltoall_on_stream(NVSHMEM_TEAM_WORLD, (uint32_t *)d, (const uint32_t *)s, words, (cudaStream_t)stream) == 0;
}
static bool sum(float *d, const float *s, size_t n) {
  return nvshmemx_float_sum_reduce_on_stream(NVSHMEM_TEAM_WORLD, d, s, n, (cudaStream_t)stream) == 0;
}
static std::string trouble() { return ""; }

#else

// One arena, opened by all others; symmetric addresses are offsets in it.
static const size_t arena_bytes = (size_t)1280 << 20;
static CUdeviceptr arena;
static size_t used;
#ifdef BENCH_NCCL
static ncclComm_t nccl;
static bool nccl_on;
static void nc(ncclResult_t r, const char *what) {
  if (r != ncclSuccess) die(what, ncclGetErrorString(r));
}
#endif
static void prepare() {}
static void begin() {
  CUipcMemHandle h;
  const char *bytes = getenv("BENCH_ARENA");
  size_t n = bytes ? (size_t)strtoull(bytes, nullptr, 10) : arena_bytes;
  CU(cuMemAlloc(&arena, n));
  CU(cuIpcGetMemHandle(&h, arena));
  memcpy(common->ipc[pe], &h, sizeof h);
  meet();
  state.base = arena;
  for (int i = 0; i < pes; i++) {
    CUdeviceptr p = arena;
    if (i != pe) {
      memcpy(&h, common->ipc[i], sizeof h);
      CU(cuIpcOpenMemHandle(&p, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    }
    state.peer[i] = p;
  }
}
static void begun() {
#ifdef BENCH_NCCL
  const char *no = getenv("BENCH_NO_NCCL");
  nccl_on = !(no && *no);
  if (!nccl_on) return;
  static_assert(sizeof(ncclUniqueId) <= sizeof common->nccl, "NCCL's id");
  ncclUniqueId id;
  if (pe == 0) {
    nc(ncclGetUniqueId(&id), "ncclGetUniqueId");
    memcpy(common->nccl, &id, sizeof id);
  }
  meet();
  memcpy(&id, common->nccl, sizeof id);
  nc(ncclCommInitRank(&nccl, pes, id, pe), "ncclCommInitRank");
#endif
}
static void end() { meet(); }
static void *allocate(size_t n) {
  n = (n + 511) & ~(size_t)511;
  const char *bytes = getenv("BENCH_ARENA");
  if (used + n > (bytes ? (size_t)strtoull(bytes, nullptr, 10) : arena_bytes)) die("allocate", "the arena is full");
  used += n;
  return (void *)(arena + used - n);
}
static void release(void *) {}
static bool barrier() { return false; }
static bool alltoall(void *d, const void *s, size_t words) {
#ifdef BENCH_NCCL
  if (!nccl_on) return false;
  nc(ncclGroupStart(), "ncclGroupStart");
  for (int i = 0; i < pes; i++) {
    nc(ncclSend((const uint32_t *)s + i * words, words, ncclUint32, i, nccl, (cudaStream_t)stream), "ncclSend");
    nc(ncclRecv((uint32_t *)d + i * words, words, ncclUint32, i, nccl, (cudaStream_t)stream), "ncclRecv");
  }
  nc(ncclGroupEnd(), "ncclGroupEnd");
  return true;
#else
  (void)d, (void)s, (void)words;
  return false;
#endif
}
static bool sum(float *d, const float *s, size_t n) {
#ifdef BENCH_NCCL
  if (!nccl_on) return false;
  nc(ncclAllReduce(s, d, n, ncclFloat32, ncclSum, nccl, (cudaStream_t)stream), "ncclAllReduce");
  return true;
#else
  (void)d, (void)s, (void)n;
  return false;
#endif
}
static std::string trouble() { return ""; }

#endif
