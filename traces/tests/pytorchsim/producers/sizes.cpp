// scale: 50
// Grids computed from sizes, two kinds of work-items, and a parameter that is no axis.
#include <cstdint>
#include "togsim_runtime.h"
extern const int32_t togsim_spad_buffer_count = 2;
extern const int64_t togsim_spad_buffer_bytes[2] = {65536, 65536};
static void load(EmitCtx* ctx, int64_t* iv, int32_t n) {
  const int64_t rows = iv[2] - iv[0] < 64 ? iv[2] - iv[0] : 64;
  for (int64_t k = 0; k < iv[3]; k += 32) {
    const int64_t d = iv[3] - k >= 32 ? 32 : iv[3] - k;
    const int64_t dims[2] = {rows, d};
    const int64_t strides[2] = {iv[3], 1};
    togsim_dma(ctx, 0, 0, (uint64_t)(iv[0] * iv[3] + k), 2, dims, strides, 16, 1, 5, nullptr, 0, (const int64_t[]){0}, 1, 0);
    togsim_memory_barrier(ctx, 5, rows * d);
    togsim_compute(ctx, 0, 0, 0, nullptr, (const int64_t[]){0}, 1, (const int64_t[]){1}, 1);
  }
}
static void store(EmitCtx* ctx, int64_t* iv, int32_t n) {
  togsim_dma(ctx, 1, 1, (uint64_t)(iv[0] + iv[1]), 1, (const int64_t[]){64}, (const int64_t[]){1}, 16, 0, 0, (const int64_t[]){1}, 1, nullptr, 0, 0);
}
extern "C" void togsim_kernel(EmitCtx* ctx, int64_t* s, int32_t n) {
  for (int64_t m = 0; m < s[0]; m += 64) {
    for (int64_t c = 0; c < (s[1] + 31) / 32; ++c) {
      int64_t iv[4] = {m, c, s[0], s[2]};
      togsim_dispatch(ctx, load, iv, 4, 0);
      if (c % 2) togsim_dispatch(ctx, store, iv, 4, 1);
      else togsim_dispatch(ctx, load, iv, 4, 2);
    }
  }
}
