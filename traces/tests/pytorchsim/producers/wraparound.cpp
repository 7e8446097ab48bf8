// unrolled: 0
// Wrap-around of 32- and 64-bit integers, unsigned comparison, shifts and C's division.
#include <cstddef>
#include <cstdint>
#include "togsim_runtime.h"
extern const int32_t togsim_spad_buffer_count = 3;
extern const int64_t togsim_spad_buffer_bytes[3] = {4096, 4096, 64};
static void item(EmitCtx* ctx, int64_t* iv, int32_t n) {
  const int64_t p0 = iv[0], p1 = iv[1];
  int32_t a = (int32_t)(p0 * 1500000000);
  int32_t b = a * 3 + 7;
  uint32_t c = (uint32_t)b * 2654435761u;
  uint64_t d = (uint64_t)p1 * 0x9E3779B97F4A7C15ull + c;
  int64_t e = -p0 * 7 - 3;
  int64_t q = e / 4, r = e % 4;
  uint16_t h = (uint16_t)(p0 * 40000);
  int8_t s = (int8_t)(p1 * 100 + 90);
  togsim_dma(ctx, 0, 0, (uint64_t)b, 1, (const int64_t[]){64}, (const int64_t[]){1}, 32, 0, 0, nullptr, 0, (const int64_t[]){0}, 1, 0);
  togsim_dma(ctx, 0, 0, d, 1, (const int64_t[]){64}, (const int64_t[]){-1}, 32, 0, 0, nullptr, 0, (const int64_t[]){0}, 1, 0);
  togsim_dma(ctx, 0, 0, c, 1, (const int64_t[]){64}, (const int64_t[]){1}, 32, 0, 0, nullptr, 0, (const int64_t[]){0}, 1, 0);
  togsim_dma(ctx, 0, 0, q * 100 + r, 1, (const int64_t[]){64}, (const int64_t[]){1}, 32, 0, 0, nullptr, 0, (const int64_t[]){0}, 1, 0);
  togsim_dma(ctx, 0, 1, h + s, 1, (const int64_t[]){64}, (const int64_t[]){1}, 32, 0, 0, nullptr, 0, (const int64_t[]){1}, 1, 0);
  togsim_dma(ctx, 0, 1, d >> 7, 1, (const int64_t[]){64}, (const int64_t[]){1}, 32, 0, 0, nullptr, 0, (const int64_t[]){1}, 1, 0);
  togsim_dma(ctx, 0, 1, (uint64_t)(e >> 2), 1, (const int64_t[]){64}, (const int64_t[]){1}, 32, 0, 0, nullptr, 0, (const int64_t[]){1}, 1, 0);
  togsim_dma(ctx, 0, 1, d % 1000 + d / 3, 1, (const int64_t[]){64}, (const int64_t[]){1}, 32, 0, 0, nullptr, 0, (const int64_t[]){1}, 1, 0);
  if (d < 0x8000000000000000ull) togsim_compute(ctx, 0, 0, 0, nullptr, nullptr, 0, (const int64_t[]){2}, 1);
  if (c > 0x7fffffffu) togsim_compute(ctx, 1, 0, 0, nullptr, nullptr, 0, (const int64_t[]){2}, 1);
  if (b < 0) togsim_compute(ctx, 2, 0, 0, nullptr, nullptr, 0, (const int64_t[]){2}, 1);
  if ((uint32_t)(p0 - 1) < 2u) togsim_compute(ctx, 3, 0, 0, nullptr, nullptr, 0, (const int64_t[]){2}, 1);
  if (-1 < (unsigned)p0) togsim_compute(ctx, 4, 0, 0, nullptr, nullptr, 0, (const int64_t[]){2}, 1);
  if ((size_t)p1 - 1 >= (size_t)p0) togsim_compute(ctx, 5, 0, 0, nullptr, nullptr, 0, (const int64_t[]){2}, 1);
  uint32_t m = (uint32_t)p0 - 5u;
  togsim_dma(ctx, 1, 2, m, 1, (const int64_t[]){1}, (const int64_t[]){1}, 32, 0, 0, (const int64_t[]){2}, 1, nullptr, 0, 0);
  togsim_dma(ctx, 1, 2, ~p0 ^ (p1 << 40), 1, (const int64_t[]){1}, (const int64_t[]){1}, 32, 0, 0, (const int64_t[]){2}, 1, nullptr, 0, 0);
  togsim_dma(ctx, 1, 2, (uint64_t)((int)p0 << 30), 1, (const int64_t[]){1}, (const int64_t[]){1}, 32, 0, 0, (const int64_t[]){2}, 1, nullptr, 0, 0);
}
extern "C" void togsim_kernel(EmitCtx* ctx, int64_t* shape_args, int32_t n) {
  (void)n;
  for (int64_t p0 = 0; p0 < shape_args[0]; ++p0)
    for (int64_t p1 = 0; p1 < shape_args[1]; ++p1) {
      int64_t iv[2] = {p0, p1};
      togsim_dispatch(ctx, item, iv, 2, p0 | (p1 << 21));
    }
}
