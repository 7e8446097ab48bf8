// Nested ternaries, min/max, edge tiles, early return, switch, helper functions, lambdas, references.
#include <algorithm>
#include <cstdint>
#include "togsim_runtime.h"
#define TILE 128
#define CEIL_DIV(a, b) (((a) + (b) - 1) / (b))
#define LOAD(arg, off, rows, cols, ld, buf)                                                                \
  do {                                                                                                     \
    const int64_t d##arg[2] = {rows, cols}, s##arg[2] = {ld, 1};                                           \
    togsim_dma(ctx, TOGSIM_DMA_LOAD, arg, (uint64_t)(off), 2, d##arg, s##arg, ELEM, 1, sem, nullptr, 0,    \
               (const int64_t[]){buf}, 1, 0);                                                              \
  } while (0)
extern "C" const int32_t togsim_spad_buffer_count = 4;
extern "C" const int64_t togsim_spad_buffer_bytes[4] = {TILE * TILE * 4, TILE * TILE * 4, TILE * TILE * 4, 0};
namespace {
constexpr int64_t M = 500, N = 300, K = 256;
enum Tiles : int { INIT, MUL = 2, SCALE };
enum class Unit : int32_t { Vector = 0, Matmul, Preload };
using idx = int64_t;
struct Point { idx row, col; };
struct Extent { idx rows; idx cols = 1; };
inline idx clampi(idx v, idx lo, idx hi) { return v < lo ? lo : v > hi ? hi : v; }
static idx group_first(idx pid, idx& rest, idx width) {
  rest = pid % width;
  return pid / width;
}
constexpr idx pow2(int n) {
  idx r = 1;
  while (n-- > 0) r *= 2;
  return r;
}
Point corner(idx m, idx n) { return {m * TILE, n * TILE}; }
}  // namespace
static const int32_t ELEM = 32;
static_assert(TILE == 128, "tile");
static void emit_scale(EmitCtx* ctx, int kind) {
  switch (kind) {
    case 0: togsim_compute(ctx, INIT, 0, 0, nullptr, nullptr, 0, (const int64_t[]){2}, 1); break;
    case 1:
    case 2: togsim_compute(ctx, SCALE, static_cast<int32_t>(Unit::Vector), 0, nullptr, (const int64_t[]){2}, 1, (const int64_t[]){2}, 1);
    default: togsim_compute(ctx, 4, 0, 0, nullptr, (const int64_t[]){2}, 1, (const int64_t[]){2}, 1);
  }
}
static void work(EmitCtx* ctx, int64_t* iv, int32_t) {
  idx n = 0;
  const idx m = group_first(iv[0] * pow2(1) / 2, n, 3);
  const auto c = corner(m, n);
  if (c.row >= M) return;
  Extent e{std::min<idx>(TILE, M - c.row), clampi(N - c.col, 0, TILE)};
  const int64_t rows = e.rows, cols = e.cols;
  uint64_t sem = 0;
  emit_scale(ctx, (int)(m % 4));
  auto barrier = [&](uint64_t s, idx count) { togsim_memory_barrier(ctx, s, count); };
  for (idx k = 0; k < K; k += TILE) {
    const idx depth = std::min(K - k, idx(TILE));
    sem = 0;
    LOAD(0, c.row * K + k, rows, depth, K, 0);
    sem = 1;
    LOAD(1, k * N + c.col, depth, cols, N, 1);
    barrier(0, rows * depth);
    barrier(1, depth * cols);
    togsim_compute(ctx, 1, (int)Unit::Preload, 0, nullptr, (const int64_t[]){1}, 1, (const int64_t[]){3}, 1);
    if (k + TILE >= K && iv[1] != 0) {
      togsim_compute(ctx, 5, 0, 0, nullptr, nullptr, 0, (const int64_t[]){2}, 1);
    } else if (iv[1] == 0) {
      togsim_compute(ctx, m == 0 ? 6 : n == 1 ? 7 : 8, 0, 0, nullptr, nullptr, 0, (const int64_t[]){2}, 1);
    }
    togsim_compute(ctx, MUL, int32_t(Unit::Matmul), 0, nullptr, (const int64_t[]){0, 2, 3}, 3, (const int64_t[]){2}, 1);
  }
  const int64_t out[] = {rows, cols};
  togsim_dma(ctx, TOGSIM_DMA_STORE, 2, uint64_t(c.row * N + c.col), 2, out, nullptr, ELEM, 0, 0, (const int64_t[]){2}, 1, nullptr, 0, 0);
}
extern "C" void togsim_kernel(EmitCtx* ctx, int64_t* shape_args, int32_t) {
  const int64_t n0 = shape_args[0], n1 = shape_args[1];
  int64_t key = 0;
  for (int64_t i = 0; i != n0; i++)
    for (int64_t j = n1 - 1; j >= 0; --j) {
      int64_t iv[2];
      iv[0] = i;
      iv[1] = n1 - 1 - j;
      togsim_dispatch(ctx, work, iv, 2, key++);
    }
}
