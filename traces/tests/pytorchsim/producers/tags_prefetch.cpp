// abi: 12
// Prefetching by tag slot: the barrier at the top of an iteration waits for a load of the one before.
#include <cstdint>
#include "togsim_runtime.h"
static void tile(EmitCtx* ctx, int64_t* iv, int32_t) {
  const int64_t d[2] = {16, 16}, st[2] = {64, 1};
  togsim_dma(ctx, 0, 0, (uint64_t)(iv[0] * 4096), 2, d, st, 32, 1, 4, 0, nullptr, 0, (const int64_t[]){0}, 1);
  int slot = 0;
  for (int64_t k = 1; k < 9; ++k) {
    togsim_memory_barrier(ctx, 4, slot, slot ? (const int64_t[]){1} : (const int64_t[]){0}, 1);
    slot = 1 - slot;
    const int64_t b[1] = {slot};
    togsim_dma(ctx, 0, 0, (uint64_t)(iv[0] * 4096 + k * 16), 2, d, st, 32, 1, 4, slot, nullptr, 0, b, 1);
    const int64_t r[1] = {1 - slot};
    togsim_compute(ctx, 0, 0, 0, nullptr, r, 1, (const int64_t[]){2}, 1);
  }
  const int64_t r[1] = {slot};
  togsim_memory_barrier(ctx, 4, slot, r, 1);
  togsim_compute(ctx, 0, 0, 0, nullptr, r, 1, (const int64_t[]){2}, 1);
  togsim_dma(ctx, 1, 1, (uint64_t)(iv[0] * 16), 1, d, nullptr, 32, 0, 5, 0, (const int64_t[]){2}, 1, nullptr, 0);
}
extern "C" void togsim_kernel(EmitCtx* ctx, int64_t* shape_args, int32_t n) {
  for (int64_t p0 = 0; p0 < shape_args[0]; ++p0) {
    int64_t iv[1] = {p0};
    togsim_dispatch(ctx, tile, iv, 1);
  }
}
