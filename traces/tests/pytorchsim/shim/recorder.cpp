// Runs a producer with the shape arguments of its command line and prints what it emits, a line each:
//   I                                                       a work-item starts
//   D dir arg offset bits sem indirect | dims | strides | reads | writes      sem: - when blocking
//   C tile type | reads | writes
//   W sem expected
// Tags become semaphores by number of first appearance of (tag, slot); a barrier expects the elements
// of the latest load on its tag.
#include "togsim_runtime.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

struct EmitCtx {
  bool inside = false;
  std::map<std::pair<int64_t, int64_t>, int64_t> loads;
};

static void list(const int64_t* v, int32_t n) {
  std::printf(" |");
  for (int32_t i = 0; i < n; i++) std::printf(" %lld", (long long)v[i]);
}

static void start(EmitCtx* c) {
  std::printf("I\n");
  c->loads.clear();
}

static void dma(int32_t dir, int32_t arg, uint64_t offset, int32_t ndim, const int64_t* dims, const int64_t* strides,
                int32_t bits, const char* sem, int32_t indirect, const int64_t* r, int32_t nr, const int64_t* w,
                int32_t nw) {
  std::printf("D %d %d %lld %d %s %d", dir, arg, (long long)offset, bits, sem, indirect != 0);
  list(dims, ndim);
  std::vector<int64_t> s(ndim);
  for (int32_t i = ndim - 1, run = 1; i >= 0; i--) {
    s[i] = strides ? strides[i] : run;
    run *= (int32_t)dims[i];
  }
  list(s.data(), ndim);
  list(r, nr);
  list(w, nw);
  std::printf("\n");
}

extern "C" {
#if TOGSIM_ABI_VERSION >= 14
void togsim_dma(EmitCtx*, int32_t dir, int32_t arg, uint64_t offset, int32_t ndim, const int64_t* dims,
                const int64_t* strides, int32_t bits, int32_t is_async, uint64_t sem, const int64_t* r, int32_t nr,
                const int64_t* w, int32_t nw, int32_t indirect) {
  char name[32] = "-";
  if (is_async) std::snprintf(name, sizeof name, "%llu", (unsigned long long)sem);
  dma(dir, arg, offset, ndim, dims, strides, bits, name, indirect, r, nr, w, nw);
}
void togsim_memory_barrier(EmitCtx*, uint64_t sem, int64_t expected) {
  std::printf("W %llu %lld\n", (unsigned long long)sem, (long long)expected);
}
void togsim_dispatch(EmitCtx* c, togsim_tile_fn f, int64_t* iv, int32_t n, int64_t) {
  start(c);
  f(c, iv, n);
}
#else
void togsim_dma(EmitCtx* c, int32_t dir, int32_t arg, uint64_t offset, int32_t ndim, const int64_t* dims,
                const int64_t* strides, int32_t bits, int32_t is_async, int32_t tag, uint64_t slot, const int64_t* r,
                int32_t nr, const int64_t* w, int32_t nw) {
  char name[64] = "-";
  if (is_async && dir == 0) {
    std::snprintf(name, sizeof name, "%d:%llu", tag, (unsigned long long)slot);
    int64_t n = 1;
    for (int32_t i = 0; i < ndim; i++) n *= dims[i];
    c->loads[{tag, (int64_t)slot}] = n;
  }
  dma(dir, arg, offset, ndim, dims, strides, bits, name, 0, r, nr, w, nw);
}
void togsim_memory_barrier(EmitCtx* c, int32_t tag, uint64_t slot, const int64_t*, int32_t) {
  std::printf("W %d:%llu %lld\n", tag, (unsigned long long)slot, (long long)c->loads[{tag, (int64_t)slot}]);
}
#if TOGSIM_ABI_VERSION >= 12
void togsim_dispatch(EmitCtx* c, togsim_tile_fn f, int64_t* iv, int32_t n) {
  start(c);
  f(c, iv, n);
}
#else
int32_t togsim_core_alloc(EmitCtx* c) {
  start(c);
  return 0;
}
void togsim_compute_barrier(EmitCtx*) {}
#endif
#endif
void togsim_compute(EmitCtx*, uint64_t tile, int32_t type, int32_t, const int64_t*, const int64_t* r, int32_t nr,
                    const int64_t* w, int32_t nw) {
  std::printf("C %llu %d", (unsigned long long)tile, type);
  list(r, nr);
  list(w, nw);
  std::printf("\n");
}
}

int main(int argc, char** argv) {
  std::vector<int64_t> shape;
  for (int i = 1; i < argc; i++) shape.push_back(std::strtoll(argv[i], nullptr, 0));
  shape.resize(shape.size() + 8);
  EmitCtx c;
  togsim_kernel(&c, shape.data(), argc - 1);
}
