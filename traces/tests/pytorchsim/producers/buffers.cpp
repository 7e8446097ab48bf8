// Double buffering with toggles, ring counters, pointer choices, tables, carried offsets, while loops.
// unrolled: 3
#include <cstddef>
#include <cstdint>
#include <array>
#include "togsim_runtime.h"
extern const int32_t togsim_spad_buffer_count = 6;
extern const int64_t togsim_spad_buffer_bytes[6] = {1024, 1024, 1024, 1024, 64, 64};
static const int64_t A0[1] = {0}, A1[1] = {1};
static const int64_t RING[3] = {0, 2, 3};
static const int64_t TABLE[2][3] = {{5, 6, 7}, {8, 9, 10}};
static constexpr std::array<int64_t, 2> DIMS = {16, 16};
struct Op { int32_t tile; int64_t reads[2]; };
static const Op PLAN[] = {{0, {0, 1}}, {1, {2, 3}}, {2, {4, 5}}};
static void work(EmitCtx* ctx, int64_t* iv, int32_t n_iv) {
  int cur = 0;
  bool first = true;
  int ring = 0;
  uint32_t off = 4;
  int64_t prev = -1;
  const int64_t dims[2] = {DIMS[0], DIMS[1]};
  int64_t st[2];
  st[0] = 64;
  st[1] = 1;
  for (int64_t k = 0; k < iv[1] + 3; ++k) {
    const int64_t* buf = cur ? A1 : A0;
    togsim_dma(ctx, 0, 0, off, 2, dims, st, 32, 1, cur, nullptr, 0, buf, 1, 0);
    if (!first) togsim_compute(ctx, 3, 0, 0, nullptr, nullptr, 0, (const int64_t[]){4}, 1);
    togsim_memory_barrier(ctx, cur, 256);
    int64_t r[1] = {RING[ring]};
    togsim_dma(ctx, 0, 1, (uint64_t)(prev + 1), 1, (const int64_t[]){(int64_t)sizeof(int32_t) * 4}, (const int64_t[]){1}, 32, 0, 0, nullptr, 0, r, 1, 0);
    togsim_compute(ctx, (uint64_t)(ring == 2 ? 5 : 4), 0, 0, nullptr, buf, 1, (const int64_t[]){4}, 1);
    prev = k * 3;
    off += 256;
    cur ^= 1;
    first = false;
    ring = (ring + 1) % 3;
  }
  togsim_dma(ctx, 0, 1, (uint64_t)(off + prev), 1, (const int64_t[]){16}, (const int64_t[]){1}, 32, 0, 0, nullptr, 0, A0, 1, 0);
  int64_t j = iv[0];
  while (j > 0) {
    togsim_dma(ctx, 0, 2, (uint64_t)(j * TABLE[j % 2][iv[1] % 3]), 1, dims + 1, st + 1, 32, 0, 0, nullptr, 0, &RING[1], 1, 0);
    j -= 2;
  }
  for (int32_t q = 10; q > -5; q -= 4)
    for (std::size_t z = q + 10; z; z -= 1)
      if (z % 3 == 1 && q < 4) {
        if (z == 4) continue;
        togsim_compute(ctx, 6, 0, 0, nullptr, nullptr, 0, (const int64_t[]){5}, 1);
      }
  for (const auto tile : {7, 8, 9}) togsim_compute(ctx, tile, 0, 0, nullptr, nullptr, 0, (const int64_t[]){5}, 1);
  for (int i = 0; i < 3; i++) togsim_compute(ctx, PLAN[i].tile, 0, 0, nullptr, PLAN[i].reads, 2, (const int64_t[]){5}, 1);
  togsim_dma(ctx, 1, 3, (uint64_t)(j + 8), 1, DIMS.data(), st + 1, 32, 1, 9, (const int64_t[]){4}, 1, nullptr, 0, 0);
}
extern "C" void togsim_kernel(EmitCtx* ctx, int64_t* shape_args, int32_t n) {
  (void)n;
  for (int64_t p1 = 0; p1 < shape_args[1]; ++p1)
    for (int64_t p0 = 0; p0 < shape_args[0]; ++p0) {
      int64_t iv[2] = {p0, p1};
      togsim_dispatch(ctx, work, iv, 2, p0);
    }
}
