// abi: 11
// The oldest form: the work-item stands in the loops of the kernel itself.
#include <cstddef>
#include <cstdint>
using std::size_t;
#include "togsim_runtime.h"
extern "C" void togsim_kernel(EmitCtx* v1, int64_t* v2, int32_t v3) {
  size_t v4 = 0;
  size_t v5 = 1;
  int64_t v6 = 0;
  int64_t v7 = v2[v6];
  for (size_t i8 = v4; i8 < (size_t)v7; i8 += v5) {
    for (size_t i9 = v4; i9 < 3; i9 += v5) {
      int32_t v10 = togsim_core_alloc(v1);
      togsim_compute(v1, 0, 0, 0, nullptr, nullptr, 0, (const int64_t[]){0}, 1);
      for (size_t i11 = 0; i11 < 4; i11 += 1) {
        size_t v12 = i8 * 512 + i11 * 64 + i9;
        togsim_dma(v1, 0, 0, v12, 2, (const int64_t[]){8, 8}, (const int64_t[]){64, 1}, 32, 1, 0, i11 % 2, nullptr, 0, (const int64_t[]){1}, 1);
        togsim_memory_barrier(v1, 0, i11 % 2, (const int64_t[]){1}, 1);
        togsim_compute(v1, 1, 1, 0, nullptr, (const int64_t[]){1}, 1, (const int64_t[]){0}, 1);
      }
      togsim_compute_barrier(v1);
      togsim_dma(v1, 1, 1, i8 * 512, 2, (const int64_t[]){8, 8}, (const int64_t[]){64, 1}, 32, 0, 1, 0, (const int64_t[]){0}, 1, nullptr, 0);
    }
  }
  return;
}
