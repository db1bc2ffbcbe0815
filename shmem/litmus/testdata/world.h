// The world that a litmus program finds in shared memory, and how it reports. Included by litmus.cc, in its namespace.

// --- The world ---

// What lies at the beginning of the shared memory: header in world_test.go.
struct world {
  uint64_t pes, heap_bytes, queues, depth, start;
  uint64_t state[16]; // offsets
};

char *memory;
uint64_t seed;
int rounds;

const world &the_world() { return *(const world *)memory; }
const lshmem_t &state_of(uint64_t pe) { return *(const lshmem_t *)(memory + the_world().state[pe]); }
lshmem_control *control_of(const lshmem_t &sh) { return (lshmem_control *)sh.control; }

[[noreturn]] __attribute__((format(printf, 1, 2))) void die(const char *format, ...) {
  static std::mutex once;
  once.lock(); // for good: the first one tells
  va_list args;
  va_start(args, format);
  printf("FAIL ");
  vprintf(format, args);
  printf("\n");
  va_end(args);
  fflush(stdout);
  _exit(1);
}

#define CHECK(condition, ...)            \
  do {                                   \
    if (!(condition)) die(__VA_ARGS__);  \
  } while (0)
#define OK(call)                                                                        \
  do {                                                                                  \
    int status_ = (call);                                                               \
    if (status_ != LSHMEM_OK) die("line %d: %s: status %d", __LINE__, #call, status_);  \
  } while (0)

// tell writes a line to the parent and waits for its answer.
void tell(const char *format, uint64_t value = 0) {
  printf(format, (unsigned long)value);
  printf("\n");
  fflush(stdout);
  char answer[64];
  CHECK(fgets(answer, sizeof answer, stdin), "the parent has gone");
}

struct random_numbers {
  uint64_t s;
  explicit random_numbers(uint64_t a, uint64_t b = 0, uint64_t c = 0) : s(seed * 1000003 + a * 7919 + b * 104729 + c) {}
  uint64_t next() {
    uint64_t z = s += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t n) { return next() % n; }
  bool chance(uint64_t in) { return below(in) == 0; }
};

// Sizes that hurt: small ones of every remainder, and sometimes over ends of keys.
uint64_t a_size(random_numbers &r, uint64_t most) {
  uint64_t n;
  switch (r.below(8)) {
  case 0: n = r.below(4); break;
  case 1: case 2: case 3: n = r.below(48); break;
  case 4: case 5: n = r.below(400); break;
  case 6: n = r.below(5000); break;
  default: n = r.below(most + 1);
  }
  return std::min(n, most);
}

uint8_t pattern(uint64_t tag, uint64_t i) {
  uint64_t z = (tag * 0x2545f491 + i) * UINT64_C(0x9e3779b97f4a7c15);
  return (uint8_t)((z >> 56) ^ (z >> 24));
}

// everyone runs kernel(state) on blocks*threads threads of each PE, all PEs at a time, and waits for their end.
void everyone(uint32_t blocks, uint32_t threads, const std::function<void(const lshmem_t &)> &kernel) {
  std::vector<std::thread> pes;
  for (uint64_t pe = 0; pe < the_world().pes; pe++)
    pes.emplace_back([&, pe] {
      lshmem_t sh = state_of(pe); // by value, as a kernel's argument
      lshmem::cpu::launch(blocks, threads, [&] { kernel(sh); });
    });
  for (auto &t : pes) t.join();
}

uint8_t *heap_of(uint64_t pe) { return (uint8_t *)state_of(pe).heap_base; }
uint32_t my_thread() { return lshmem::block_index() * lshmem::block_threads() + lshmem::thread_index(); }
