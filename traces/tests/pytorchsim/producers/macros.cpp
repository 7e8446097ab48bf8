// Conditional text, macros as constants, int loops, one dispatch without a loop, tables behind the kernel.
#include "togsim_runtime.h"
#ifndef CASE
#define CASE 0
#endif
#define ROWS 64
#define COLS (ROWS * 2)
#define PIECE 16
static void tile(EmitCtx* ctx, int64_t* iv, int32_t n_iv) {
  (void)n_iv;
  const int64_t piece[2] = {PIECE, COLS}, st[2] = {COLS, 1};
  const int64_t in[1] = {1}, out[1] = {2}, both[2] = {1, 2};
  const uint64_t base = (uint64_t)iv[0] * ROWS * COLS;
  for (int k = 0; k < 2; k++) {
    for (int p = 0; p < ROWS / PIECE; p++)
#if TOGSIM_ABI_VERSION >= 14
      togsim_dma(ctx, 0, 0, base + p * PIECE * COLS, 2, piece, st, 32, 1, 7, nullptr, 0, in, 1, 0);
    togsim_memory_barrier(ctx, 7, ROWS * COLS);
#else
      togsim_dma(ctx, 0, 0, base + p * PIECE * COLS, 2, piece, st, 32, 1, 0, 7, nullptr, 0, in, 1);
    togsim_memory_barrier(ctx, 0, 7, in, 1);
#endif
#if CASE == 0 && !defined(OTHER)
    if (k == 0) togsim_compute(ctx, 0, 0, 0, nullptr, in, 1, out, 1);
    else        togsim_compute(ctx, 0, 0, 0, nullptr, both, 2, out, 1);
#elif CASE == 1
    this is not C++
#else
#error never
#endif
  }
  for (int p = 0; p < ROWS / PIECE; p++)
    togsim_dma(ctx, 1, 1, base + p * PIECE * COLS, 2, piece, st, 32, 0, 0, out, 1, nullptr, 0, 0);
  togsim_dma(ctx, 1, 1, 0, 1, piece, st + 1, 32, 0, 0, both, 2, nullptr, 0, 1);
}
extern "C" void togsim_kernel(EmitCtx* ctx, int64_t* shape_args, int32_t n_shape_args) {
  (void)shape_args; (void)n_shape_args;
  int64_t iv[1] = {3};
  togsim_dispatch(ctx, tile, iv, 1, 0);
}
extern "C" const int32_t togsim_spad_buffer_count = 3;
extern "C" const int64_t togsim_spad_buffer_bytes[3] = {0, ROWS * COLS * 4, ROWS * COLS * 4};
