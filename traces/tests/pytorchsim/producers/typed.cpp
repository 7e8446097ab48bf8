// Straight-line style with hoisted constants and 32-bit arithmetic through unsigned casts.
#include <cstddef>
#include <cstdint>
using std::size_t;
#include "togsim_runtime.h"
extern const int32_t togsim_spad_buffer_count = 4;
extern const int64_t togsim_spad_buffer_bytes[4] = {65536, 32768, 32768, 0};
static void togsim_kernel_tile(EmitCtx* v1, int64_t* v2, int32_t v3) {
  int32_t v4 = 384;
  int32_t v5 = 128;
  int32_t v6 = 0;
  size_t v7 = 384;
  size_t v8 = 0;
  size_t v9 = 1;
  int64_t v11 = 1;
  int64_t v12 = 0;
  int64_t v13 = v2[v12];
  ptrdiff_t v14 = (ptrdiff_t) v13;
  size_t v15 = (size_t) v14;
  int64_t v16 = v2[v11];
  ptrdiff_t v17 = (ptrdiff_t) v16;
  size_t v18 = (size_t) v17;
  ptrdiff_t v19 = (ptrdiff_t) v15;
  int32_t v20 = (int32_t) v19;
  ptrdiff_t v21 = (ptrdiff_t) v18;
  int32_t v22 = (int32_t) v21;
  togsim_compute(v1, 0, 0, 0, nullptr, nullptr, 0, (const int64_t[]){0}, 1);
  uint32_t v23 = (uint32_t) v20;
  uint32_t v24 = (uint32_t) v4;
  uint32_t v25 = v23 * v24;
  int32_t v26 = (int32_t) v25;
  ptrdiff_t v27 = (ptrdiff_t) v26;
  size_t v28 = (size_t) v27;
  uint32_t v29 = (uint32_t) v22;
  uint32_t v30 = v29 + v24;
  uint32_t v31 = v30 - 400;
  int32_t v32 = (int32_t) v31;
  bool v33 = v32 < v6;
  int32_t v34 = v33 ? v6 : v32;
  int32_t v35 = v34 / v5;
  int32_t v36 = v34 % v5;
  bool v37 = v36 != v6;
  bool v38 = v22 < v5;
  bool v39 = v37 & v38;
  int32_t v40 = v39 ? v35 : v34;
  ptrdiff_t v41 = (ptrdiff_t) v40;
  size_t v42 = (size_t) v41;
  size_t v43 = v28 * v7;
  for (int32_t i44 = v6; i44 < v4; i44 += v5) {
    togsim_compute(v1, 1, 0, 0, nullptr, nullptr, 0, nullptr, 0);
    ptrdiff_t v45 = (ptrdiff_t) i44;
    size_t v46 = (size_t) v45;
    size_t v47 = v43 + v46;
    int32_t v48 = v5;
    if (v39) {
      int32_t v49 = v20 + i44;
      v48 = v49;
      togsim_compute(v1, 2, 0, 0, nullptr, nullptr, 0, nullptr, 0);
    } else {
      v48 = v22;
    }
    ptrdiff_t v50 = (ptrdiff_t) v48;
    size_t v51 = (size_t) v50;
    size_t v52 = v47 + v51;
    togsim_dma(v1, 0, 0, v52, 2, (const int64_t[]){128, 64}, (const int64_t[]){1, 512}, 32, 1, v8, nullptr, 0, (const int64_t[]){2}, 1, 0);
    size_t v53 = v46 * v7;
    size_t v54 = v53 + v42;
    togsim_dma(v1, 0, 1, v54, 2, (const int64_t[]){64, 128}, (const int64_t[]){1, 512}, 32, 1, v9, nullptr, 0, (const int64_t[]){1}, 1, 0);
    togsim_memory_barrier(v1, v8, 8192);
    togsim_memory_barrier(v1, v9, 8192);
    togsim_compute(v1, 4, 2, 0, nullptr, (const int64_t[]){1, 2}, 2, (const int64_t[]){3}, 1);
    togsim_compute(v1, 5, 1, 0, nullptr, (const int64_t[]){0, 1, 2, 3}, 4, (const int64_t[]){0}, 1);
  }
  size_t v55 = v43 + v42;
  togsim_dma(v1, 1, 2, v55, 2, (const int64_t[]){128, 128}, (const int64_t[]){1, 512}, 32, 1, v9, (const int64_t[]){0}, 1, nullptr, 0, 0);
  return;
}
extern "C" void togsim_kernel(EmitCtx* v1, int64_t* v2, int32_t v3) {
  int64_t v4 = 21;
  int64_t v5 = 1;
  size_t v6 = 0;
  size_t v7 = 1;
  int64_t v8 = 0;
  int64_t v9 = v2[v8];
  ptrdiff_t v10 = (ptrdiff_t) v9;
  size_t v11 = (size_t) v10;
  int64_t v12 = v2[v5];
  ptrdiff_t v13 = (ptrdiff_t) v12;
  size_t v14 = (size_t) v13;
  for (size_t i15 = v6; i15 < v11; i15 += v7) {
    for (size_t j16 = v6; j16 < v14; j16 += v7) {
      int64_t v17[2];
      ptrdiff_t v18 = (ptrdiff_t) i15;
      int64_t v19 = (int64_t) v18;
      v17[v8] = v19;
      ptrdiff_t v20 = (ptrdiff_t) j16;
      int64_t v21 = (int64_t) v20;
      v17[v5] = v21;
      uint64_t v26 = (uint64_t) v21;
      uint64_t v27 = (uint64_t) v4;
      uint64_t v28 = 64;
      bool v29 = v27 < v28;
      uint64_t v30 = 0;
      uint64_t v31 = v29 ? v26 << v27 : v30;
      int64_t v32 = (int64_t) v31;
      togsim_dispatch(v1, togsim_kernel_tile, v17, 2, v32);
    }
  }
  return;
}
