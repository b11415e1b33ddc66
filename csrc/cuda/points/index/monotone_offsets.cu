#include <cub/block/block_scan.cuh>

#include "csrc/cuda/points/index/monotone_offsets.h"

namespace fusedops::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kItems = 4;  // offsets a thread

struct Max {
  __device__ int64_t operator()(int64_t a, int64_t b) const { return a < b ? b : a; }
};

// One block: the running maximum of all offsets.
__global__ void __launch_bounds__(kThreads)
    monotone_offsets_kernel(const int64_t* __restrict__ offsets, int64_t count, int64_t rows,
                            int64_t* __restrict__ result) {
  using Scan = cub::BlockScan<int64_t, kThreads>;
  __shared__ typename Scan::TempStorage storage;
  int64_t largest = 0;  // of all offsets before this turn's
  for (int64_t start = 0; start < count; start += kThreads * kItems) {
    const int64_t first = start + threadIdx.x * kItems;
    int64_t values[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      values[i] = first + i < count ? max(largest, clamp(offsets[first + i], 0, rows)) : largest;
    }
    Scan(storage).InclusiveScan(values, values, Max{}, largest);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (first + i < count) result[first + i] = values[i];
    }
    __syncthreads();
  }
}

}  // namespace

void make_offsets_monotone(const LaunchScope& scope, CloudTensors& clouds) {
  if (!clouds.offsets) return;
  const Tensor result = new_dense(*clouds.offsets, clouds.offsets->sizes());
  monotone_offsets_kernel<<<1, kThreads, 0, scope.stream()>>>(
      clouds.view.offsets, clouds.view.count + 1, clouds.view.capacity,
      static_cast<int64_t*>(result.mutable_data_ptr()));
  clouds.offsets = result;
  clouds.view.offsets = index_data(clouds.offsets);
}

}  // namespace fusedops::cuda
