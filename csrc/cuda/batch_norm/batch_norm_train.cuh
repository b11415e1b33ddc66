// Batch norm in training as one kernel each way: statistics, and y; sums of the gradient, and dx.
// What fits stays in shared memory between the two reads; the rest is read again from its end, of
// which the L2 cache holds the most.
#pragma once

#include "csrc/cuda/batch_norm/batch_norm_pass.cuh"
#include "csrc/cuda/batch_norm/batch_norm_statistics.cuh"
#include "csrc/cuda/batch_norm/resident_rows.cuh"

namespace fusedops {

inline constexpr int kTrainUnroll = 6;  // rows of a group in forward

struct TrainProblem {
  PassProblem pass;
  StatisticsResult statistics;  // forward
  void* sums = nullptr;         // backward: (2, channels) of Compute, written
  int slots;                    // rows of a thread that stay in shared memory
};

extern __shared__ __align__(16) unsigned char resident_bytes[];

// ---- parts: a block's sums of its rows, and what is made of them afterwards ----

// Leaves the mean of each of the block's channels, and the sum of squares about it, in shared.sums.
// kRelative: of values about the block's first row. NOTE: a thread's mean of several rows is
// rounded, which is much where means are large beside the variance.
template <class T, bool kRelative = false, int kUnroll = kTrainUnroll, int kThreads, int kChannels>
__device__ __forceinline__ void block_moments(const ResidentRows<T, 1, kThreads>& rows,
                                              const PassProblem& p, const WalkPlace& at,
                                              BlockShared<kThreads, kChannels>& shared) {
  constexpr int kVec = 16 / sizeof(T);
  using V = Vec<T, kVec>;
  const int width = p.grid.threads_x * kVec, own = threadIdx.x;
  const T* const first = static_cast<const T*>(p.x) + at.row_begin * p.channels + at.col;
  ChannelMoments<float, kVec> moments;
  V base{};
  if constexpr (kRelative) {
    if (rows.count > 0) base = *reinterpret_cast<const V*>(first);
  }
  rows.template walk<kUnroll>([] {},
                              [&](const V(&x)[1][kUnroll], int count, int) {
                                if constexpr (kRelative) {
                                  moments.template add_values<kUnroll>(
                                      [&](int u, int i) {
                                        return to_compute(x[0][u].value[i]) -
                                               to_compute(base.value[i]);
                                      },
                                      count);
                                } else {
                                  moments.add(x[0], count);
                                }
                              });
  if (at.ty == 0) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) shared.reference[at.tx * kVec + i] = moments.mean[i];
  }
  __syncthreads();
  float sums[2][kVec] = {};
  if (moments.seen != 0.0f) moments.sums_about(shared.reference + at.tx * kVec, sums);
  resident_block_sums(p.grid, at, sums, shared);
  if (own < width) {
    const double count = static_cast<double>(at.row_end - at.row_begin);
    const double offset = shared.sums[0][own] / count;
    double mean = shared.reference[own] + offset;
    const int64_t channel = at.col - at.tx * kVec + own;
    if (kRelative && channel < p.channels) {
      mean += to_compute(static_cast<const T*>(p.x)[at.row_begin * p.channels + channel]);
    }
    shared.sums[0][own] = mean;
    shared.sums[1][own] -= offset * offset * count;
  }
}

// y of the block's rows.
template <class T, bool kAdded, int kUnroll = pass_unroll(kAdded ? 2 : 1), class Rows, int kVec>
__device__ __forceinline__ void write_outputs(const Rows& rows, const PassProblem& p,
                                              const NormChannels<T, kVec>& channels) {
  using V = Vec<T, kVec>;
  rows.template walk_back<kUnroll>([&](int k0, int count) {
    V x[kUnroll], added[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (u >= count) break;
      x[u] = rows.template take<V>(0, k0 + u);
      if constexpr (kAdded) {
        added[u] =
            *reinterpret_cast<const V*>(static_cast<const T*>(p.added) + rows.element(k0 + u));
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (u >= count) break;
      float z[kVec];
      channels.template output<kAdded>(x[u], added[u], p.activation, z);
      store_vector<T>(p.out, rows.element(k0 + u), z);
    }
  });
}

// Where a backward kernel's rows come from: dy, x, and what was saved.
template <class T, bool kAdded>
struct GradientInputs {
  static constexpr int kInputs = kAdded ? 3 : 2;
  const T* in[kInputs];

  __device__ __forceinline__ explicit GradientInputs(const PassProblem& p)
      : in{static_cast<const T*>(p.dy), static_cast<const T*>(p.x)} {
    if constexpr (kAdded) in[2] = static_cast<const T*>(p.added);
  }
};

// Leaves the block's sums of dz and dz (x - mean) in shared.sums, and its channels loaded.
// NOTE: dz, where the residual wants it, is rounded before dx is made of it.
template <class T, bool kAdded, int kGroup = pass_unroll(GradientInputs<T, kAdded>::kInputs),
          class Rows, int kVec, class Shared>
__device__ __forceinline__ void block_gradient_sums(const Rows& rows, const PassProblem& p,
                                                    const WalkPlace& at,
                                                    NormChannels<T, kVec>& channels,
                                                    Shared& shared) {
  using V = Vec<T, kVec>;
  constexpr int kInputs = GradientInputs<T, kAdded>::kInputs;
  float sums[2][kVec] = {};
  const auto prepare = [&] {
    if (rows.count > 0) channels.load(p.norm, at.col);
  };
  rows.template walk<kGroup>(prepare, [&](const V(&v)[kInputs][kGroup], int count, int k0) {
#pragma unroll
    for (int u = 0; u < kGroup; ++u) {
      if (u >= count) break;
      float dz[kVec];
      gradients<T, kVec, kAdded>(p, channels, v[0][u], v[1][u], v[kInputs - 1][u], dz);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        sums[0][i] += dz[i];
        sums[1][i] += dz[i] * (to_compute(v[1][u].value[i]) - channels.mean[i]);
      }
      if (p.dz) {
        store_vector<T>(p.dz, rows.element(k0 + u), dz);
        if (rows.stays(k0 + u)) store_vector<T>(rows.slot(0, k0 + u), 0, dz);
      }
    }
  });
  resident_block_sums(p.grid, at, sums, shared);
}

// dx of the block's rows.
template <class T, int kUnroll = pass_unroll(2), class Rows, int kVec>
__device__ __forceinline__ void write_gradients(const Rows& rows, const PassProblem& p,
                                                const NormChannels<T, kVec>& channels,
                                                const GradientChannels<T, kVec>& slopes) {
  using V = Vec<T, kVec>;
  rows.template walk_back<kUnroll>([&](int k0, int count) {
    V dy[kUnroll], x[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (u >= count) break;
      const int k = k0 + u;
      x[u] = rows.template take<V>(1, k);
      const void* gradient = static_cast<const T*>(p.dz ? p.dz : p.dy) + rows.element(k);
      if (rows.stays(k)) gradient = rows.slot(0, k);
      dy[u] = *static_cast<const V*>(gradient);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (u >= count) break;
      float dz[kVec], dx[kVec];
      if (p.dz) {
#pragma unroll
        for (int i = 0; i < kVec; ++i) dz[i] = to_compute(dy[u].value[i]);
      } else {
        gradients<T, kVec, false>(p, channels, dy[u], x[u], x[u], dz);
      }
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        float centred = dz[i] - slopes.mean_dz[i];
        centred -= slopes.slope[i] * (to_compute(x[u].value[i]) - channels.mean[i]);
        dx[i] = centred * channels.scale[i];
      }
      store_vector<T>(p.out, rows.element(k0 + u), dx);
    }
  });
}

// ---- one grid, resident as a whole ----

template <class T, bool kAdded>
__global__ void __launch_bounds__(kResidentThreads, 1)
    batch_norm_train_kernel(const __grid_constant__ TrainProblem problem) {
  constexpr int kVec = 16 / sizeof(T);
  const PassProblem& p = problem.pass;
  const StatisticsResult& result = problem.statistics;
  __shared__ ResidentShared shared;
  wait_for_predecessor();
  const auto at = WalkPlace::of<kVec>(p.grid, p.rows, p.channels);
  const int width = p.grid.threads_x * kVec;
  const int64_t first_channel = at.col - at.tx * kVec;
  const T* const in[1] = {static_cast<const T*>(p.x)};
  const ResidentRows<T, 1> rows(in, reinterpret_cast<uint4*>(resident_bytes), problem.slots, p.grid,
                                at, p.channels);
  block_moments(rows, p, at, shared);

  // Statistics of all rows
  share_sums(p, at, width, first_channel + threadIdx.x, shared);
  const StatisticsProblem joined{p.rows, p.channels, p.x, p.partial, p.grid};
  join_channels(p.channels, [&](int64_t channel) { join_statistics<T>(joined, result, channel); });
  NormArguments norm = p.norm;
  norm.mean = {result.mean, true};
  norm.var = {result.var, true};

  if (rows.count == 0) return;
  NormChannels<T, kVec> channels;
  channels.load(norm, at.col);
  write_outputs<T, kAdded>(rows, p, channels);
}

template <class T, bool kAdded>
__global__ void __launch_bounds__(kResidentThreads, 1)
    batch_norm_train_backward_kernel(const __grid_constant__ TrainProblem problem) {
  constexpr int kVec = 16 / sizeof(T);
  using Inputs = GradientInputs<T, kAdded>;
  const PassProblem& p = problem.pass;
  float* const total = static_cast<float*>(problem.sums);
  __shared__ ResidentShared shared;
  wait_for_predecessor();
  const auto at = WalkPlace::of<kVec>(p.grid, p.rows, p.channels);
  const int width = p.grid.threads_x * kVec;
  const int64_t first_channel = at.col - at.tx * kVec;
  const ResidentRows<T, Inputs::kInputs> rows(Inputs(p).in,
                                              reinterpret_cast<uint4*>(resident_bytes),
                                              problem.slots, p.grid, at, p.channels);
  NormChannels<T, kVec> channels{};
  block_gradient_sums<T, kAdded>(rows, p, at, channels, shared);

  // Sums of all rows
  share_sums(p, at, width, first_channel + threadIdx.x, shared);
  join_channels(p.channels, [&](int64_t channel) { join_sums<T>(p, total, channel); });

  if (rows.count == 0) return;
  GradientChannels<T, kVec> slopes;
  slopes.load(p, total, at.col);
  write_gradients<T>(rows, p, channels, slopes);
}

}  // namespace fusedops
