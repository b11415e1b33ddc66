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

template <class T, bool kAdded>
__global__ void __launch_bounds__(kResidentThreads, 1)
    batch_norm_train_kernel(const __grid_constant__ TrainProblem problem) {
  constexpr int kVec = 16 / sizeof(T);
  using V = Vec<T, kVec>;
  const PassProblem& p = problem.pass;
  const StatisticsResult& result = problem.statistics;
  __shared__ ResidentShared shared;
  wait_for_predecessor();
  const auto at = WalkPlace::of<kVec>(p.grid, p.rows, p.channels);
  const int width = p.grid.threads_x * kVec, own = threadIdx.x;
  const int64_t first_channel = at.col - at.tx * kVec;

  // Statistics of the block
  const T* const in[1] = {static_cast<const T*>(p.x)};
  const ResidentRows<T, 1> rows(in, reinterpret_cast<uint4*>(resident_bytes), problem.slots, p.grid,
                                at, p.channels);
  ChannelMoments<float, kVec> moments;
  rows.template walk<kTrainUnroll>(
      [] {}, [&](const V(&x)[1][kTrainUnroll], int count, int) { moments.add(x[0], count); });
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
    shared.sums[0][own] = shared.reference[own] + offset;
    shared.sums[1][own] -= offset * offset * count;
  }

  // Statistics of all rows
  share_sums(p, at, width, first_channel + own, shared);
  const StatisticsProblem joined{p.rows, p.channels, p.x, p.partial, p.grid};
  join_channels(p.channels, [&](int64_t channel) { join_statistics<T>(joined, result, channel); });
  NormArguments norm = p.norm;
  norm.mean = {result.mean, true};
  norm.var = {result.var, true};

  // y
  if (rows.count == 0) return;
  NormChannels<T, kVec> channels;
  channels.load(norm, at.col);
  constexpr int kUnroll = pass_unroll(kAdded ? 2 : 1);
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

// Sums and dx. NOTE: dz, where the residual wants it, is rounded before dx is made of it.
template <class T, bool kAdded>
__global__ void __launch_bounds__(kResidentThreads, 1)
    batch_norm_train_backward_kernel(const __grid_constant__ TrainProblem problem) {
  constexpr int kVec = 16 / sizeof(T);
  using V = Vec<T, kVec>;
  const PassProblem& p = problem.pass;
  float* const total = static_cast<float*>(problem.sums);
  __shared__ ResidentShared shared;
  wait_for_predecessor();
  const auto at = WalkPlace::of<kVec>(p.grid, p.rows, p.channels);
  const int width = p.grid.threads_x * kVec;
  const int64_t first_channel = at.col - at.tx * kVec;

  // Sums of the block
  constexpr int kInputs = kAdded ? 3 : 2, kGroup = pass_unroll(kInputs);
  const T* in[kInputs] = {static_cast<const T*>(p.dy), static_cast<const T*>(p.x)};
  if constexpr (kAdded) in[2] = static_cast<const T*>(p.added);
  const ResidentRows<T, kInputs> rows(in, reinterpret_cast<uint4*>(resident_bytes), problem.slots,
                                      p.grid, at, p.channels);
  NormChannels<T, kVec> channels{};
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

  // Sums of all rows
  share_sums(p, at, width, first_channel + threadIdx.x, shared);
  join_channels(p.channels, [&](int64_t channel) { join_sums<T>(p, total, channel); });

  // dx
  if (rows.count == 0) return;
  GradientChannels<T, kVec> slopes;
  slopes.load(p, total, at.col);
  constexpr int kUnroll = pass_unroll(2);
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

}  // namespace fusedops
