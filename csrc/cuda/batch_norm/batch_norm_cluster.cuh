// Batch norm in training as one kernel each way for images of few pixels and many channels: a
// thread block cluster has some channels with all their rows in shared memory, so that its blocks
// need nobody else's sums.
#pragma once

#include "csrc/cuda/batch_norm/batch_norm_train.cuh"

namespace fusedops {

inline constexpr int kClusterThreads = 256;
// Rows of a group in forward. NOTE: few rows go through the code, whose length is what they wait
// for.
inline constexpr int kClusterUnroll = 2;
inline constexpr int kClusterBlocks = 8;     // the most of a cluster
inline constexpr int kClusterChannels = 64;  // the most of a cluster

using ClusterShared = BlockShared<kClusterThreads, kClusterChannels>;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// What block `rank` of the cluster has at an address.
__device__ __forceinline__ double load_from_block(uint32_t address, int rank) {
  double value;
  asm volatile("ld.shared::cluster.f64 %0, [%1];"
               : "=d"(value)
               : "r"(cluster_address(address, static_cast<uint32_t>(rank)))
               : "memory");
  return value;
}
#else
__device__ __forceinline__ double load_from_block(uint32_t, int) { return 0; }
#endif

// Blocks of a cluster have consecutive rows of the same channels.
template <int kVec>
__device__ __forceinline__ WalkPlace cluster_place(const WalkGrid& grid, int64_t rows,
                                                   int64_t channels) {
  const unsigned blocks = static_cast<unsigned>(grid.row_blocks);
  WalkPlace at{};
  at.tx = threadIdx.x % grid.threads_x;
  at.ty = threadIdx.x / grid.threads_x;
  at.row_block = blockIdx.x % blocks;
  at.col = (int64_t{blockIdx.x / blocks} * grid.threads_x + at.tx) * kVec;
  at.row_begin = at.row_block * grid.rows_per_block;
  at.row_end = min(at.row_begin + grid.rows_per_block, rows);
  at.active = at.col < channels;
  return at;
}

// What the blocks of the cluster left of a channel in shared.sums[s], in their order.
__device__ __forceinline__ void cluster_values(const double& own, int blocks,
                                               double (&values)[kClusterBlocks]) {
  const uint32_t address = shared_address(&own);
#pragma unroll
  for (int b = 0; b < kClusterBlocks; ++b) values[b] = b < blocks ? load_from_block(address, b) : 0;
}

// Statistics of a channel from those of the blocks; running ones are moved by the first block.
template <class T>
__device__ __forceinline__ void join_cluster_statistics(const PassProblem& p,
                                                        const StatisticsResult& result,
                                                        const WalkPlace& at, int own,
                                                        int64_t channel, ClusterShared& shared) {
  double mean[kClusterBlocks], square[kClusterBlocks];
  const int blocks = static_cast<int>(p.grid.row_blocks);
  cluster_values(shared.sums[0][own], blocks, mean);
  cluster_values(shared.sums[1][own], blocks, square);
  double offset = 0, centred = 0;
#pragma unroll
  for (int b = 0; b < kClusterBlocks; ++b) {
    if (b >= blocks) break;
    const int64_t begin = b * p.grid.rows_per_block;
    const double rows = static_cast<double>(min(p.grid.rows_per_block, p.rows - begin));
    const double away = mean[b] - mean[0];
    offset += rows * away;
    centred += square[b] + rows * away * away;
  }
  const double rows = static_cast<double>(p.rows);
  centred -= offset * offset / rows;
  const double total = centred < 0 ? 0 : centred;  // NaN stays
  const double centre = mean[0] + offset / rows;
  shared.reference[own] = static_cast<float>(centre);
  shared.scratch[own] = static_cast<float>(total / rows);
  if (at.row_block == 0) write_statistics<T>(result, channel, rows, centre, total);
}

template <class T, bool kAdded>
__global__ void __launch_bounds__(kClusterThreads, 2)
    batch_norm_cluster_kernel(const __grid_constant__ TrainProblem problem) {
  constexpr int kVec = 16 / sizeof(T);
  const PassProblem& p = problem.pass;
  __shared__ ClusterShared shared;
  wait_for_predecessor();
  const auto at = cluster_place<kVec>(p.grid, p.rows, p.channels);
  const int width = p.grid.threads_x * kVec, own = threadIdx.x;
  const int64_t channel = at.col - at.tx * kVec + own;
  const T* const in[1] = {static_cast<const T*>(p.x)};
  const ResidentRows<T, 1, kClusterThreads> rows(in, reinterpret_cast<uint4*>(resident_bytes),
                                                 problem.slots, p.grid, at, p.channels);
  block_moments<T, true, kClusterUnroll>(rows, p, at, shared);
  NormChannels<T, kVec> channels{};
  if (rows.count > 0) channels.load(p.norm, at.col);  // without statistics

  // Statistics of all rows
  cluster_sync();
  if (own < width && channel < p.channels) {
    join_cluster_statistics<T>(p, problem.statistics, at, own, channel, shared);
  }
  cluster_arrive();
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    const float var = shared.scratch[at.tx * kVec + i];
    channels.mean[i] = shared.reference[at.tx * kVec + i];
    channels.scale[i] *= 1.0f / sqrt(var + static_cast<float>(p.norm.eps));
  }
  write_outputs<T, kAdded, 1>(rows, p, channels);
  cluster_wait();  // until nobody reads this block's sums
}

template <class T, bool kAdded>
__global__ void __launch_bounds__(kClusterThreads, 2)
    batch_norm_cluster_backward_kernel(const __grid_constant__ TrainProblem problem) {
  constexpr int kVec = 16 / sizeof(T);
  using Inputs = GradientInputs<T, kAdded>;
  const PassProblem& p = problem.pass;
  __shared__ ClusterShared shared;
  wait_for_predecessor();
  const auto at = cluster_place<kVec>(p.grid, p.rows, p.channels);
  const int width = p.grid.threads_x * kVec, own = threadIdx.x;
  const int64_t channel = at.col - at.tx * kVec + own;
  const ResidentRows<T, Inputs::kInputs, kClusterThreads> rows(
      Inputs(p).in, reinterpret_cast<uint4*>(resident_bytes), problem.slots, p.grid, at,
      p.channels);
  NormChannels<T, kVec> channels{};
  block_gradient_sums<T, kAdded, 1>(rows, p, at, channels, shared);

  // Sums of all rows
  cluster_sync();
  if (own < width && channel < p.channels) {
    const int blocks = static_cast<int>(p.grid.row_blocks);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      double values[kClusterBlocks], total = 0;
      cluster_values(shared.sums[s][own], blocks, values);
#pragma unroll
      for (int b = 0; b < kClusterBlocks; ++b) total += values[b];
      const double unit = s == 0 ? 1.0 : static_cast<double>(p.norm.rstd<T>(channel));
      const float sum = static_cast<float>(total * unit);
      shared.scratch[s * kClusterChannels + own] = sum;
      if (at.row_block == 0) static_cast<float*>(problem.sums)[s * p.channels + channel] = sum;
    }
  }
  cluster_arrive();
  __syncthreads();
  if (rows.count > 0) {
    GradientChannels<T, kVec> slopes;
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      slopes.mean_dz[i] = shared.scratch[at.tx * kVec + i];
      slopes.slope[i] = shared.scratch[kClusterChannels + at.tx * kVec + i];
    }
    slopes.finish(p, at.col);
    write_gradients<T, 1>(rows, p, channels, slopes);
  }
  cluster_wait();  // until nobody reads this block's sums
}

}  // namespace fusedops
