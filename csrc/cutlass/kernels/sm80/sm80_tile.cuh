// What the sm_80 kernels share, tensor cores or not: the order of output tiles, where results go
// and the launch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "csrc/common/device/pdl.cuh"
#include "csrc/common/device/shared_memory.cuh"
#include "csrc/cutlass/problem.h"

namespace fusedops::sm80 {

// The matrices that a problem's results go to; d and preact are (m, n) with row stride ldd.
struct Output {
  void* d;
  void* preact;      // or null
  const void* bias;  // (n,) or null
  int64_t ldd;
  int64_t slice_stride;  // of d
  Activation activation;
  bool as_float;  // d is fp32 whatever the element type
  bool vectors;   // every row of d and preact starts on a vector boundary
};

// The part of it that one tile writes: pointers to its first element, rows and columns inside D.
struct OutputTile {
  void* d;
  void* preact;
  const void* bias;
  int rows, cols;
};

// vector: elements of a vector store.
inline Output make_output(const GemmProblem& problem, int64_t vector) {
  const bool accumulate = problem.epilogue == Epilogue::kAccumulator;
  const bool preact = problem.epilogue == Epilogue::kPreact;
  const bool as_float = accumulate || problem.dtype == DType::kFloat32;
  const auto aligned = [&](const void* data, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(data) % (vector * bytes) == 0;
  };
  const bool vectors = (problem.m == 1 || problem.ldd % vector == 0) &&
                       (problem.slices == 1 || problem.slice_stride % vector == 0) &&
                       aligned(problem.d, as_float ? 4 : dtype_bytes(problem.dtype)) &&
                       (!preact || aligned(problem.preact, dtype_bytes(problem.dtype)));
  return {.d = problem.d,
          .preact = preact ? problem.preact : nullptr,
          .bias = accumulate ? nullptr : problem.bias,
          .ldd = problem.ldd,
          .slice_stride = problem.slices > 1 ? problem.slice_stride : 0,
          .activation = accumulate ? Activation::kNone : problem.activation,
          .as_float = as_float,
          .vectors = vectors};
}

// Output tiles in bands of `band` rows of tiles, each walked column by column, which keeps both
// operands of concurrent blocks in L2.
struct TileOrder {
  int tiles_m, tiles_n, band;

  __device__ __forceinline__ int2 operator()(int block) const {
    const int blocks_per_band = band * tiles_n;
    const int first = block / blocks_per_band * band;
    const int rows = min(band, tiles_m - first);
    const int inside = block % blocks_per_band;
    return {first + inside % rows, inside / rows};
  }
};

inline TileOrder make_tile_order(const GemmProblem& problem, int tile_m, int tile_n) {
  constexpr int kDefaultBand = 8;
  const int tiles_m = static_cast<int>((problem.m - 1) / tile_m + 1);
  const int tiles_n = static_cast<int>((problem.n - 1) / tile_n + 1);
  return {tiles_m, tiles_n,
          std::min(problem.raster_width > 1 ? problem.raster_width : kDefaultBand, tiles_m)};
}

// The part of K that a slice sums over: the first and how many.
struct KRange {
  int k, slice_k;

  __device__ __forceinline__ int begin(int slice) const { return slice * slice_k; }
  __device__ __forceinline__ int count(int slice) const { return min(slice_k, k - begin(slice)); }
};

inline KRange make_k_range(const GemmProblem& problem) {
  return {int(problem.k), int(problem.slices > 1 ? problem.slice_k : problem.k)};
}

// Launches so many blocks of a kernel that always takes `shared_bytes`. Returns the reason of a
// failure, or null.
template <auto kKernel, class Params>
const char* launch_blocks(dim3 grid, const LaunchContext& context, int threads, int shared_bytes,
                          const Params& params) {
  cudaError_t status = allow_shared_memory<kKernel>(context.device, shared_bytes);
  if (status == cudaSuccess) {
    status = launch_kernel(kKernel, grid, dim3(threads), size_t(shared_bytes),
                           static_cast<cudaStream_t>(context.stream), context.overlap, params);
  }
  if (status == cudaSuccess) return nullptr;
  cudaGetLastError();  // reported here, so not left for the next caller
  return cudaGetErrorString(status);
}

// The same with a block per output tile and slice of K.
template <auto kKernel, class Params>
const char* launch_tiles(const GemmProblem& problem, const LaunchContext& context, int threads,
                         int shared_bytes, const Params& params) {
  const TileOrder& order = params.order;
  const dim3 grid(unsigned(order.tiles_m) * unsigned(order.tiles_n), unsigned(problem.slices));
  return launch_blocks<kKernel>(grid, context, threads, shared_bytes, params);
}

}  // namespace fusedops::sm80
