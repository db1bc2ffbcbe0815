// Waiting, and the errors that end it.
#ifndef LSHMEM_SYNC_CUH
#define LSHMEM_SYNC_CUH

#include "lshmem.cuh"

namespace lshmem {

// record keeps an error where the host sees it, unless there is one already: the status last, since the host looks at
// the rest when it sees that.
LSHMEM_OUTLINE int record(uint64_t control, int status, int pe, uint32_t queue, uint32_t syndrome, uint64_t index) {
  auto c = (lshmem_control *)control;
  if (c && compare_swap<scope::sys>(&c->claim, 0, (uint32_t)status) == 0) {
    store_relaxed<scope::sys>(&c->pe, (uint32_t)pe);
    store_relaxed<scope::sys>(&c->queue, queue);
    store_relaxed<scope::sys>(&c->syndrome, syndrome);
    store_relaxed<scope::sys>(&c->index, index);
    fence<scope::sys>();
    store_relaxed<scope::sys>(&c->status, (uint32_t)status);
  }
  return status;
}

LSHMEM_DEVICE int fail(const lshmem_t &sh, int status, int pe) { return record(sh.control, status, pe, ~0u, 0, 0); }

// patience is what a waiting thread has: it ends with the state's timeout or when the host gives up. The clock and the
// host's memory are looked at only after many polls in vain, so that a poll is nothing but a load and a comparison.
class patience {
public:
  LSHMEM_DEVICE patience(uint64_t control, uint64_t timeout) : control(control), timeout(timeout) {}
  LSHMEM_DEVICE explicit patience(const lshmem_t &sh) : patience(sh.control, sh.timeout_nanos) {}

  // To be called after a poll in vain: LSHMEM_OK to go on, or why not to.
  LSHMEM_DEVICE int poll() {
    pause();
    return ++polls & (interval - 1) ? LSHMEM_OK : look();
  }

  // until polls ready until it is true, for LSHMEM_OK, or patience ends, for why. In the inner loop there is nothing
  // but polls, which compilers unroll: each instruction of it is a part of the latency of what is waited for.
  template <class Ready> LSHMEM_DEVICE int until(Ready ready) {
    for (;;) {
      for (uint32_t i = 0; i < interval; i++) {
        if (ready()) return LSHMEM_OK;
        pause();
      }
      int status = look();
      if (status != LSHMEM_OK) return ready() ? LSHMEM_OK : status;
    }
  }

private:
  static constexpr uint32_t interval = 256;

  LSHMEM_DEVICE int look() {
    if (control) {
      uint32_t aborted = load_acquire<scope::sys>(&((const lshmem_control *)control)->abort);
      if (aborted) return (int)aborted;
    }
    if (timeout) {
      uint64_t now = nanos();
      if (!began) began = now;
      else if (now - began > timeout) return LSHMEM_ERR_TIMEOUT;
    }
    return LSHMEM_OK;
  }

  uint64_t control, timeout, began = 0;
  uint32_t polls = 0;
};

template <class Ready> LSHMEM_DEVICE int wait(const lshmem_t &sh, int pe, patience &patient, Ready ready) {
  int status = patient.until(ready);
  return status == LSHMEM_OK ? LSHMEM_OK : fail(sh, status, pe);
}
template <class Ready> LSHMEM_DEVICE int wait(const lshmem_t &sh, int pe, Ready ready) {
  patience patient(sh);
  return wait(sh, pe, patient, ready);
}

template <class T> LSHMEM_DEVICE bool compare(T a, int cmp, T b) {
  switch (cmp) {
  case LSHMEM_CMP_EQ: return a == b;
  case LSHMEM_CMP_NE: return a != b;
  case LSHMEM_CMP_GT: return a > b;
  case LSHMEM_CMP_LE: return a <= b;
  case LSHMEM_CMP_LT: return a < b;
  case LSHMEM_CMP_GE: return a >= b;
  }
  return false;
}

// holds: does own memory stand in the relation? The data that were put before the value that does are visible then.
template <class T> LSHMEM_DEVICE bool holds(const T *ivar, int cmp, T v) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8, "a variable to wait for has 2, 4 or 8 bytes");
  return compare(load_acquire<scope::sys>(ivar), cmp, v);
}

// What each variable is compared with: one value for all, or a vector.
template <class T> struct one_value {
  T v;
  LSHMEM_DEVICE T operator[](size_t) const { return v; }
};

LSHMEM_DEVICE bool left_out(const int *status, size_t i) { return status && status[i] != 0; }

template <class T, class Values>
LSHMEM_DEVICE int test_all(const T *ivars, size_t n, const int *status, int cmp, Values values) {
  for (size_t i = 0; i < n; i++)
    if (!left_out(status, i) && !holds<T>(ivars + i, cmp, values[i])) return 0;
  return 1;
}
template <class T, class Values>
LSHMEM_DEVICE size_t test_any(const T *ivars, size_t n, const int *status, int cmp, Values values, bool *none) {
  *none = true;
  for (size_t i = 0; i < n; i++) {
    if (left_out(status, i)) continue;
    *none = false;
    if (holds<T>(ivars + i, cmp, values[i])) return i;
  }
  return SIZE_MAX;
}
template <class T, class Values>
LSHMEM_DEVICE size_t test_some(const T *ivars, size_t n, size_t *indices, const int *status, int cmp, Values values,
                               bool *none) {
  size_t count = 0;
  *none = true;
  for (size_t i = 0; i < n; i++) {
    if (left_out(status, i)) continue;
    *none = false;
    if (holds<T>(ivars + i, cmp, values[i])) indices[count++] = i;
  }
  return count;
}

template <class T, class Values>
LSHMEM_DEVICE int wait_all(const lshmem_t &sh, const T *ivars, size_t n, const int *status, int cmp, Values values) {
  patience patient(sh);
  for (size_t i = 0; i < n; i++) {
    if (left_out(status, i)) continue;
    int r = wait(sh, (int)sh.pe, patient, [&] { return holds<T>(ivars + i, cmp, values[i]); });
    if (r != LSHMEM_OK) return r;
  }
  return LSHMEM_OK;
}
template <class T, class Values>
LSHMEM_DEVICE int wait_any(const lshmem_t &sh, const T *ivars, size_t n, size_t *index, const int *status, int cmp,
                           Values values) {
  return wait(sh, (int)sh.pe, [&] {
    bool none;
    *index = test_any(ivars, n, status, cmp, values, &none);
    return none || *index != SIZE_MAX;
  });
}
template <class T, class Values>
LSHMEM_DEVICE int wait_some(const lshmem_t &sh, const T *ivars, size_t n, size_t *indices, size_t *count, const int *status,
                            int cmp, Values values) {
  return wait(sh, (int)sh.pe, [&] {
    bool none;
    *count = test_some(ivars, n, indices, status, cmp, values, &none);
    return none || *count != 0;
  });
}

} // namespace lshmem

template <class T> LSHMEM_DEVICE int lshmem_wait_until(const lshmem_t &sh, T *ivar, int cmp, lshmem::value<T> v) {
  return lshmem::wait(sh, (int)sh.pe, [&] { return lshmem::holds<T>(ivar, cmp, v); });
}
template <class T>
LSHMEM_DEVICE int lshmem_wait_until_all(const lshmem_t &sh, T *ivars, size_t n, const int *status, int cmp,
                                        lshmem::value<T> v) {
  return lshmem::wait_all(sh, ivars, n, status, cmp, lshmem::one_value<T>{v});
}
template <class T>
LSHMEM_DEVICE int lshmem_wait_until_any(const lshmem_t &sh, T *ivars, size_t n, size_t *index, const int *status, int cmp,
                                        lshmem::value<T> v) {
  return lshmem::wait_any(sh, ivars, n, index, status, cmp, lshmem::one_value<T>{v});
}
template <class T>
LSHMEM_DEVICE int lshmem_wait_until_some(const lshmem_t &sh, T *ivars, size_t n, size_t *indices, size_t *count,
                                         const int *status, int cmp, lshmem::value<T> v) {
  return lshmem::wait_some(sh, ivars, n, indices, count, status, cmp, lshmem::one_value<T>{v});
}
template <class T>
LSHMEM_DEVICE int lshmem_wait_until_all_vector(const lshmem_t &sh, T *ivars, size_t n, const int *status, int cmp,
                                               const lshmem::value<T> *values) {
  return lshmem::wait_all(sh, ivars, n, status, cmp, values);
}
template <class T>
LSHMEM_DEVICE int lshmem_wait_until_any_vector(const lshmem_t &sh, T *ivars, size_t n, size_t *index, const int *status,
                                               int cmp, const lshmem::value<T> *values) {
  return lshmem::wait_any(sh, ivars, n, index, status, cmp, values);
}
template <class T>
LSHMEM_DEVICE int lshmem_wait_until_some_vector(const lshmem_t &sh, T *ivars, size_t n, size_t *indices, size_t *count,
                                                const int *status, int cmp, const lshmem::value<T> *values) {
  return lshmem::wait_some(sh, ivars, n, indices, count, status, cmp, values);
}

template <class T> LSHMEM_DEVICE int lshmem_test(const lshmem_t &, T *ivar, int cmp, lshmem::value<T> v) {
  return lshmem::holds<T>(ivar, cmp, v);
}
template <class T>
LSHMEM_DEVICE int lshmem_test_all(const lshmem_t &, T *ivars, size_t n, const int *status, int cmp, lshmem::value<T> v) {
  return lshmem::test_all(ivars, n, status, cmp, lshmem::one_value<T>{v});
}
template <class T>
LSHMEM_DEVICE size_t lshmem_test_any(const lshmem_t &, T *ivars, size_t n, const int *status, int cmp, lshmem::value<T> v) {
  bool none;
  return lshmem::test_any(ivars, n, status, cmp, lshmem::one_value<T>{v}, &none);
}
template <class T>
LSHMEM_DEVICE size_t lshmem_test_some(const lshmem_t &, T *ivars, size_t n, size_t *indices, const int *status, int cmp,
                                      lshmem::value<T> v) {
  bool none;
  return lshmem::test_some(ivars, n, indices, status, cmp, lshmem::one_value<T>{v}, &none);
}
template <class T>
LSHMEM_DEVICE int lshmem_test_all_vector(const lshmem_t &, T *ivars, size_t n, const int *status, int cmp,
                                         const lshmem::value<T> *values) {
  return lshmem::test_all(ivars, n, status, cmp, values);
}
template <class T>
LSHMEM_DEVICE size_t lshmem_test_any_vector(const lshmem_t &, T *ivars, size_t n, const int *status, int cmp,
                                            const lshmem::value<T> *values) {
  bool none;
  return lshmem::test_any(ivars, n, status, cmp, values, &none);
}
template <class T>
LSHMEM_DEVICE size_t lshmem_test_some_vector(const lshmem_t &, T *ivars, size_t n, size_t *indices, const int *status,
                                             int cmp, const lshmem::value<T> *values) {
  bool none;
  return lshmem::test_some(ivars, n, indices, status, cmp, values, &none);
}

LSHMEM_DEVICE uint64_t lshmem_signal_fetch(const lshmem_t &, const uint64_t *sig) {
  return lshmem::load_acquire<lshmem::scope::sys>(sig);
}
LSHMEM_DEVICE int lshmem_signal_wait_until(const lshmem_t &sh, uint64_t *sig, int cmp, uint64_t v) {
  return lshmem_wait_until<uint64_t>(sh, sig, cmp, v);
}

#endif
