// Mean and variance of channels over rows, in one read: threads merge groups of rows by Chan's
// formula (Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample
// variances, 1979), so that a mean of a thousand standard deviations leaves the variance its
// digits.
#pragma once

#include "csrc/cuda/batch_norm/channel_walk.cuh"

namespace fusedops {

inline constexpr int kStatisticsBlocks = 2;  // of a multiprocessor
// Rows that a thread loads at once and merges as a group.
constexpr int statistics_unroll(int64_t element_bytes) { return element_bytes == 2 ? 8 : 4; }

struct StatisticsProblem {
  int64_t rows, channels;
  const void* x;    // (rows, channels), or null: partial has been filled in
  double* partial;  // (2, channels, row_blocks): means, and sums of squares about them
  WalkGrid grid;  // of partial: its row_blocks, and the groups of rows, in one turn, that they are
};

// Mean and sum of squares about it of the rows that a thread has seen.
template <class C, int kVec>
struct ChannelMoments {
  C mean[kVec] = {}, square[kVec] = {}, seen = 0;

  // The first `count` of a group of rows.
  template <class T, int kUnroll>
  __device__ __forceinline__ void add(const Vec<T, kVec> (&x)[kUnroll], int count) {
    const C before = seen, share = C(1) / (before + static_cast<C>(count));
    seen = before + static_cast<C>(count);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      // NOTE: about the mean so far or the first row, as sums of large values would round.
      const C origin = before == C(0) ? to_compute(x[0].value[i]) : mean[i];
      C sum = 0, squares = 0;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (u >= count) break;
        const C d = to_compute(x[u].value[i]) - origin;
        sum += d;
        squares += d * d;
      }
      mean[i] = origin + sum * share;
      square[i] += squares - sum * (sum * share);
    }
  }

  // Sums of the rows and of their squares, about references.
  __device__ __forceinline__ void sums_about(const C* reference, C (&sums)[2][kVec]) const {
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const C away = mean[i] - reference[i];
      sums[0][i] = seen * away;
      sums[1][i] = square[i] + seen * away * away;
    }
  }
};

template <class T, int kVec>
__global__ void __launch_bounds__(kWalkThreads, kStatisticsBlocks)
    batch_norm_partial_kernel(const __grid_constant__ StatisticsProblem p) {
  using C = Compute<T>;
  using V = Vec<T, kVec>;
  constexpr int kUnroll = statistics_unroll(sizeof(T));
  __shared__ double shared[2 * kWalkThreads * kVec];
  __shared__ C reference[32 * kVec];
  wait_for_predecessor();
  const auto at = WalkPlace::of<kVec>(p.grid, p.rows, p.channels);
  ChannelMoments<C, kVec> moments;
  const T* const in[1] = {static_cast<const T*>(p.x)};
  const auto body = [&](const V(&x)[1][kUnroll], int count, int64_t) { moments.add(x[0], count); };
  walk_rows<T, kVec, kUnroll>(p.grid, at, in, p.channels, [] {}, body);

  // Sums of the block about the mean of its first row of threads
  if (at.ty == 0) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) reference[at.tx * kVec + i] = moments.mean[i];
  }
  __syncthreads();
  C sums[2][kVec] = {};
  if (moments.seen != C(0)) moments.sums_about(reference + at.tx * kVec, sums);
  const double block_rows = static_cast<double>(p.grid.rows_of(at.row_block, p.rows));
  const int64_t first_channel = blockIdx.x % p.grid.col_blocks * p.grid.threads_x * kVec;
  static_assert(32 * kVec <= kWalkThreads);  // a thread stores one channel
  double offset = 0;
  block_channel_sums<kVec, 2>(
      p.grid, at, sums, shared, p.channels, [&](int s, int64_t channel, double sum) {
        double* const to =
            p.partial + (s * p.channels + channel) * p.grid.row_blocks + at.row_block;
        if (s == 0) {
          offset = sum / block_rows;
          *to = reference[channel - first_channel] + offset;
        } else {
          *to = sum - offset * offset * block_rows;
        }
      });
}

template <class T>
__device__ __forceinline__ void mix(void* running, bool wide, int64_t channel, double momentum,
                                    double value) {
  using C = Compute<T>;
  if (running == nullptr) return;
  if (wide) {
    C& to = static_cast<C*>(running)[channel];
    to = static_cast<C>((1 - momentum) * to + momentum * value);
  } else {
    T& to = static_cast<T*>(running)[channel];
    to = from_compute<T>(static_cast<C>((1 - momentum) * to_compute(to) + momentum * value));
  }
}

// Writes what becomes of a channel's mean and sum of squares about it.
template <class T>
__device__ __forceinline__ void write_statistics(const StatisticsResult& result, int64_t channel,
                                                 double rows, double mean, double square) {
  using C = Compute<T>;
  static_cast<C*>(result.mean)[channel] = static_cast<C>(mean);
  static_cast<C*>(result.var)[channel] = static_cast<C>(square / rows);
  const double shift = result.shift.at<T>(channel, C(0));
  mix<T>(result.running_mean, result.mean_wide, channel, result.momentum, mean + shift);
  mix<T>(result.running_var, result.var_wide, channel, result.momentum,
         square / max(rows - 1, 1.0));
}

// A warp joins what the blocks of rows left of one channel.
template <class T>
__device__ __forceinline__ void join_statistics(const StatisticsProblem& p,
                                                const StatisticsResult& result, int64_t channel) {
  const int64_t blocks = p.grid.row_blocks;
  const double* const means = p.partial + channel * blocks;
  const double* const squares = means + p.channels * blocks;
  const double reference = means[0];
  double offset = 0, square = 0;
  for (int64_t first = threadIdx.x % 32; first < blocks; first += 32 * kJoinUnroll) {
    double mean[kJoinUnroll], own[kJoinUnroll];  // on their way at once
#pragma unroll
    for (int u = 0; u < kJoinUnroll; ++u) {
      const int64_t b = first + 32 * u;
      mean[u] = b < blocks ? means[b] : 0;
      own[u] = b < blocks ? squares[b] : 0;
    }
#pragma unroll
    for (int u = 0; u < kJoinUnroll; ++u) {
      const int64_t b = first + 32 * u;
      if (b >= blocks) break;
      const double rows = static_cast<double>(p.grid.rows_of(b, p.rows));
      const double away = mean[u] - reference;
      offset += rows * away;
      square += own[u] + rows * away * away;
    }
  }
  offset = warp_total(offset);
  square = warp_total(square);
  if (threadIdx.x % 32 != 0) return;
  const double rows = static_cast<double>(p.rows);
  const double centred = square - offset * offset / rows;
  const double sum = centred < 0 ? 0 : centred;  // NaN stays
  write_statistics<T>(result, channel, rows, reference + offset / rows, sum);
}

// One warp for each channel.
template <class T>
__global__ void __launch_bounds__(kWalkThreads)
    batch_norm_statistics_kernel(const __grid_constant__ StatisticsProblem p,
                                 const __grid_constant__ StatisticsResult result) {
  wait_for_predecessor();
  const int64_t channel = int64_t{blockIdx.x} * (kWalkThreads / 32) + threadIdx.x / 32;
  if (channel < p.channels) join_statistics<T>(p, result, channel);
}

template <class T>
cudaError_t launch_statistics(const StatisticsProblem& p, const StatisticsResult& result, int vec,
                              cudaStream_t stream, bool overlap) {
  if (p.x != nullptr) {
    const dim3 grid(static_cast<unsigned>(p.grid.row_blocks * p.grid.col_blocks));
    const auto kernel =
        vec > 1 ? batch_norm_partial_kernel<T, 16 / sizeof(T)> : batch_norm_partial_kernel<T, 1>;
    const cudaError_t status =
        launch_kernel(kernel, grid, dim3(kWalkThreads), 0, stream, overlap, p);
    if (status != cudaSuccess) return status;
  }
  const dim3 warps(static_cast<unsigned>(ceil_div(p.channels, int64_t{kWalkThreads / 32})));
  return launch_kernel(batch_norm_statistics_kernel<T>, warps, dim3(kWalkThreads), 0, stream,
                       overlap, p, result);
}

}  // namespace fusedops
