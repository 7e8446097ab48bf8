// abi: 12
// Many loads on the slots of a tag, several barriers for one load, a fixed grid, scaled indices.
#include <cstddef>
#include <cstdint>
using std::size_t;
#include "togsim_runtime.h"
int32_t togsim_abi_version(void) { return TOGSIM_ABI_VERSION; }
static const int64_t CH = 32, H = 8, W = 8, KH = 3;
static const int64_t STEP = 4;
static const int64_t SLOTS = 8;
static const int64_t PAIRS = CH / STEP;
static const int64_t BUF_ACC[1] = {0};
static const int64_t BUF_W[1] = {1};
static const int64_t BUF_X[1] = {2};
static const int64_t PRE[2] = {1, 2};
static const int64_t TILE_W[4] = {1, 1, CH, STEP};
static const int64_t STRIDE_W[4] = {CH * CH * KH, CH * CH, CH, 1};
static const int32_t ASYNC = 1, SYNC = 0;
enum { TAG_X, TAG_W, TAG_OUT };
static void conv(EmitCtx* ctx, int64_t* iv, int32_t n_iv) {
  (void)n_iv;
  const int64_t oc0 = iv[0], oh0 = iv[1], ow0 = iv[2];
  togsim_compute(ctx, 0, 0, 0, nullptr, nullptr, 0, BUF_ACC, 1);
  for (int64_t kh = 0; kh < KH; ++kh) {
    const int64_t w_off = oc0 * KH * CH + kh;
    for (int64_t s = 0; s < SLOTS; ++s)
      togsim_dma(ctx, TOGSIM_DMA_LOAD, 1, (uint64_t)(w_off + s * STEP), 4, TILE_W, STRIDE_W, 32, ASYNC, TAG_W, (uint64_t)s, nullptr, 0, BUF_W, 1);
    for (int64_t s = 0; s < PAIRS / 2; ++s) {
      togsim_dma(ctx, TOGSIM_DMA_LOAD, 0, (uint64_t)(oh0 * W + ow0 + s), 2, TILE_W + 2, STRIDE_W + 2, 32, ASYNC, TAG_X, (uint64_t)(2 * s), nullptr, 0, BUF_X, 1);
      togsim_dma(ctx, TOGSIM_DMA_LOAD, 0, (uint64_t)(oh0 * W + ow0 + s + 1), 2, TILE_W + 2, STRIDE_W + 2, 32, ASYNC, TAG_X, (uint64_t)(2 * s + 1), nullptr, 0, BUF_X, 1);
    }
    for (int64_t pr = 0; pr < 2; ++pr)
      for (int64_t pc = 0; pc < SLOTS; ++pc) {
        togsim_memory_barrier(ctx, TAG_W, (uint64_t)pc, BUF_W, 1);
        togsim_compute(ctx, 1, 2, 0, nullptr, PRE, 2, (const int64_t[]){3}, 1);
        for (int64_t mr = 0; mr < 4; ++mr)
          for (int64_t mc = 0; mc < 2; ++mc) {
            togsim_memory_barrier(ctx, TAG_X, (uint64_t)(mr * 2 + mc), BUF_X, 1);
            togsim_compute(ctx, 2, 1, 0, nullptr, (const int64_t[]){0, 3}, 2, BUF_ACC, 1);
          }
      }
  }
  togsim_dma(ctx, TOGSIM_DMA_STORE, 2, (uint64_t)(oc0 * H * W + oh0 * W + ow0), 2, TILE_W + 2, nullptr, 32, SYNC, TAG_OUT, 0, BUF_ACC, 1, nullptr, 0);
}
extern "C" void togsim_kernel(EmitCtx* ctx, int64_t* shape_args, int32_t n) {
  (void)shape_args; (void)n;
  for (int64_t oc = 0; oc < CH; oc += 16)
    for (int64_t oh = 0; oh < H; oh += 4)
      for (int64_t ow = 0; ow < W; ow += 8) {
        int64_t iv[3] = {oc, oh, ow};
        togsim_dispatch(ctx, conv, iv, 3);
      }
}
