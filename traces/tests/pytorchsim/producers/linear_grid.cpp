// One loop over all work-items, grouped order, several dispatches per iteration, a lambda as tile.
#include <cstdint>
#include "togsim_runtime.h"
extern const int32_t togsim_spad_buffer_count = 2;
extern const int64_t togsim_spad_buffer_bytes[2] = {1024, 1024};
extern "C" void togsim_kernel(EmitCtx* ctx, int64_t* shape_args, int32_t n) {
  const int64_t GM = shape_args[0], GN = shape_args[1];
  const int64_t total = GM * GN;
  for (int64_t pid = 0; pid < total; pid++) {
    const int64_t group = 4 * GN;
    const int64_t first = pid / group * 4;
    const int64_t size = GM - first < 4 ? GM - first : 4;
    int64_t iv[3] = {first + pid % group % size, pid % group / size, GN};
    togsim_dispatch(ctx, [](EmitCtx* c, int64_t* v, int32_t) {
      const int64_t off = v[0] * v[2] * 256 + v[1] * 16;
      const int64_t st[] = {v[2] * 16, 1};
      togsim_dma(c, 0, 0, (uint64_t)off, 2, (const int64_t[]){16, 16}, st, 32, 0, 0, nullptr, 0, (const int64_t[]){0}, 1, 0);
      togsim_compute(c, 0, 0, 0, nullptr, (const int64_t[]){0}, 1, (const int64_t[]){1}, 1);
      togsim_dma(c, 1, 1, (uint64_t)off, 2, (const int64_t[]){16, 16}, st, 32, 0, 0, (const int64_t[]){1}, 1, nullptr, 0, 0);
    }, iv, 3, pid);
  }
}
