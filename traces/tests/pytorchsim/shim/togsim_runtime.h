// The calls of a trace producer, written for tilesim's tests from the facts of the interface: what
// each call's arguments are in trace ABI 11 to 15. Only producers of this project are compiled
// against it.
#pragma once
#include <cstdint>

#ifndef TOGSIM_ABI_VERSION
#define TOGSIM_ABI_VERSION 15
#endif

extern "C" {
struct EmitCtx;
enum togsim_dma_dir { TOGSIM_DMA_LOAD = 0, TOGSIM_DMA_STORE = 1 };
typedef void (*togsim_tile_fn)(EmitCtx*, int64_t* iv, int32_t n);

#if TOGSIM_ABI_VERSION >= 14
void togsim_dma(EmitCtx*, int32_t dir, int32_t arg, uint64_t offset, int32_t ndim, const int64_t* dims,
                const int64_t* strides, int32_t bits, int32_t is_async, uint64_t sem, const int64_t* reads,
                int32_t n_reads, const int64_t* writes, int32_t n_writes, int32_t indirect);
void togsim_memory_barrier(EmitCtx*, uint64_t sem, int64_t expected);
void togsim_dispatch(EmitCtx*, togsim_tile_fn, int64_t* iv, int32_t n, int64_t key);
#else
void togsim_dma(EmitCtx*, int32_t dir, int32_t arg, uint64_t offset, int32_t ndim, const int64_t* dims,
                const int64_t* strides, int32_t bits, int32_t is_async, int32_t tag, uint64_t slot,
                const int64_t* reads, int32_t n_reads, const int64_t* writes, int32_t n_writes);
void togsim_memory_barrier(EmitCtx*, int32_t tag, uint64_t slot, const int64_t* writes, int32_t n_writes);
#if TOGSIM_ABI_VERSION >= 12
void togsim_dispatch(EmitCtx*, togsim_tile_fn, int64_t* iv, int32_t n);
#else
int32_t togsim_core_alloc(EmitCtx*);
void togsim_compute_barrier(EmitCtx*);
#endif
#endif
void togsim_compute(EmitCtx*, uint64_t tile, int32_t type, int32_t ndim, const int64_t* dims, const int64_t* reads,
                    int32_t n_reads, const int64_t* writes, int32_t n_writes);
void togsim_kernel(EmitCtx*, int64_t* shape_args, int32_t n);
}
