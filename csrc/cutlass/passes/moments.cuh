// Joins moments of columns over short blocks of rows to those over long ones, in fp64: sums about
// the mean of the first of them.
#pragma once

#include "csrc/common/device/pdl.cuh"
#include "csrc/common/int_math.h"
#include "csrc/cutlass/passes/moments.h"

namespace fusedops {

inline constexpr int kMomentX = 32, kMomentY = 8;  // threads along columns and blocks of rows

__global__ void __launch_bounds__(kMomentX* kMomentY)
    join_moments_kernel(const __grid_constant__ JoinMoments p) {
  __shared__ double shared[2][kMomentY][kMomentX];
  wait_for_predecessor();
  const int64_t column = int64_t{blockIdx.y} * kMomentX + threadIdx.x;
  const int64_t begin = blockIdx.x * p.rows_per_result;
  const int64_t end = min(begin + p.rows_per_result, p.rows);
  const bool active = column < p.cols;
  const auto* const partial = reinterpret_cast<const float2*>(p.partial) + (active ? column : 0);
  const int64_t first = begin / p.rows_per_block, last = ceil_div(end, p.rows_per_block);
  const double reference = partial[first * p.cols].x;
  double offset = 0, square = 0;
#pragma unroll 8
  for (int64_t block = first + threadIdx.y; block < last; block += kMomentY) {
    const float2 own = partial[block * p.cols];
    const int64_t left = end - block * p.rows_per_block;
    const double rows = static_cast<double>(min(left, p.rows_per_block));
    const double away = own.x - reference;
    offset += rows * away;
    square += own.y + rows * away * away;
  }
  shared[0][threadIdx.y][threadIdx.x] = offset;
  shared[1][threadIdx.y][threadIdx.x] = square;
  __syncthreads();
  if (threadIdx.y > 0 || !active) return;
  for (int y = 1; y < kMomentY; ++y) {
    offset += shared[0][y][threadIdx.x];
    square += shared[1][y][threadIdx.x];
  }
  const double mean = offset / static_cast<double>(end - begin);
  double* const to = p.moments + column * gridDim.x + blockIdx.x;
  to[0] = reference + mean;
  to[p.cols * gridDim.x] = square - offset * mean;
}

}  // namespace fusedops
