// The passes of batch norm with residual and activation: y, the sums of its backward, and dx.
#pragma once

#include "csrc/common/device/activation_gradient.cuh"
#include "csrc/cuda/batch_norm/channel_walk.cuh"

namespace fusedops {

// z = (x - mean) * rstd * weight + bias + residual
struct PassProblem {
  int64_t rows, channels;
  const void* dy = nullptr;     // (rows, channels)
  const void* x = nullptr;      // null where nothing reads it
  const void* added = nullptr;  // residual; in backward what was saved; or null
  bool added_is_output = false;
  void* out = nullptr;          // y or dx
  void* dz = nullptr;           // or null
  double* partial = nullptr;    // (2, channels, row_blocks): sums of dz and of dz (x - mean)
  const void* sums = nullptr;   // (2, channels) of Compute; null: the statistics are constants
  const void* count = nullptr;  // () of Compute; null: rows
  NormArguments norm;
  Activation activation;
  WalkGrid grid;
};

inline constexpr int kPassBlocks = 2;  // of a multiprocessor

// Rows that a thread loads at once, of so many inputs: the same bytes on their way for each pass.
constexpr int pass_unroll(int inputs) { return 6 / inputs; }

// Calls body.operator()<kAdded>().
template <class Body>
void with_added(const PassProblem& p, Body&& body) {
  if (p.added != nullptr) {
    body.template operator()<true>();
  } else {
    body.template operator()<false>();
  }
}

// What a thread keeps of its channels.
template <class T, int kVec>
struct NormChannels {
  using C = Compute<T>;
  C mean[kVec], scale[kVec], bias[kVec];

  __device__ __forceinline__ void load(const NormArguments& norm, int64_t col) {
    C rstd[kVec];
    norm.mean.load<T>(col, C(0), mean);
    norm.weight.load<T>(col, C(1), scale);
    // NOTE: -0 keeps zeros of both signs.
    norm.bias.load<T>(col, C(-0.0), bias);
    norm.rstds<T>(col, rstd);
#pragma unroll
    for (int i = 0; i < kVec; ++i) scale[i] *= rstd[i];
  }
  __device__ __forceinline__ C normalised(int i, T x) const {
    return (to_compute(x) - mean[i]) * scale[i] + bias[i];
  }
  // y; added: read where kAdded says so.
  template <bool kAdded>
  __device__ __forceinline__ void output(const Vec<T, kVec>& x, const Vec<T, kVec>& added,
                                         Activation activation, C (&z)[kVec]) const {
#pragma unroll
    for (int i = 0; i < kVec; ++i) z[i] = normalised(i, x.value[i]);
    if constexpr (kAdded) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) z[i] += to_compute(added.value[i]);
    }
    with_activation(activation, [&]<Activation kActivation>() {
      resolve_rare<kActivation>(activation, [&]<Activation kNow>() {
#pragma unroll
        for (int i = 0; i < kVec; ++i) z[i] = activate_as<kNow, kAccuracyOf<T>>(z[i]);
      });
    });
  }
};

template <class T, int kVec>
__device__ __forceinline__ Vec<T, kVec> rounded(const Compute<T> (&values)[kVec]) {
  Vec<T, kVec> v;
#pragma unroll
  for (int i = 0; i < kVec; ++i) v.value[i] = from_compute<T>(values[i]);
  return v;
}

template <class T, int kVec>
__device__ __forceinline__ void store_row(void* to, const PassProblem& p, int64_t row, int64_t col,
                                          const Compute<T> (&values)[kVec]) {
  *reinterpret_cast<Vec<T, kVec>*>(static_cast<T*>(to) + row * p.channels + col) =
      rounded<T>(values);
}

template <class T, int kVec, bool kAdded>
__global__ void __launch_bounds__(kWalkThreads, kPassBlocks)
    batch_norm_apply_kernel(const __grid_constant__ PassProblem p) {
  using C = Compute<T>;
  using V = Vec<T, kVec>;
  wait_for_predecessor();
  const auto at = WalkPlace::of<kVec>(p.grid, p.rows, p.channels);
  NormChannels<T, kVec> channels;
  const auto prepare = [&] { channels.load(p.norm, at.col); };
  constexpr int kInputs = kAdded ? 2 : 1, kUnroll = pass_unroll(kInputs);
  const T* in[kInputs] = {static_cast<const T*>(p.x)};
  if constexpr (kAdded) in[1] = static_cast<const T*>(p.added);
  const auto body = [&](const V(&v)[kInputs][kUnroll], int count, int64_t row) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (u >= count) break;
      C z[kVec];
      channels.template output<kAdded>(v[0][u], v[kInputs - 1][u], p.activation, z);
      store_row<T>(p.out, p, row + int64_t{u} * p.grid.threads_y, at.col, z);
    }
  };
  walk_rows<T, kVec, kUnroll>(p.grid, at, in, p.channels, prepare, body);
}

// dz = dy act'(z) of kVec elements; added: read where kAdded says so.
template <class T, int kVec, bool kAdded>
__device__ __forceinline__ void gradients(const PassProblem& p,
                                          const NormChannels<T, kVec>& channels,
                                          const Vec<T, kVec>& dy, const Vec<T, kVec>& x,
                                          const Vec<T, kVec>& added, Compute<T> (&dz)[kVec]) {
  using C = Compute<T>;
  // NOTE: the coarse tanh of bf16 outputs is too coarse under 1 - y^2.
  constexpr Accuracy kAccuracy = sizeof(T) > 2 ? Accuracy::kFloat32 : Accuracy::kFloat16;
#pragma unroll
  for (int i = 0; i < kVec; ++i) dz[i] = to_compute(dy.value[i]);
  if (p.activation == Activation::kNone) return;
  C saved[kVec];  // z, or y where it was saved
  if (kAdded && p.added_is_output) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) saved[i] = to_compute(added.value[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      saved[i] = channels.normalised(i, x.value[i]);
      if (kAdded) saved[i] += to_compute(added.value[i]);
    }
  }
  with_activation(p.activation, [&]<Activation kActivation>() {
    resolve_rare<kActivation>(p.activation, [&]<Activation kNow>() {
      // NOTE: z tells of relu and its like what y does.
      constexpr bool kFromOutput = kNow == Activation::kSigmoid || kNow == Activation::kTanh;
      if (kFromOutput && !(kAdded && p.added_is_output)) {
#pragma unroll
        for (int i = 0; i < kVec; ++i) saved[i] = activate_as<kNow, kAccuracy>(saved[i]);
      }
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        dz[i] = activation_gradient_as<kNow, kAccuracy>(dz[i], saved[i]);
      }
    });
  });
}

template <class T, int kVec, bool kAdded>
__global__ void __launch_bounds__(kWalkThreads, sizeof(T) == 8 ? 1 : kPassBlocks)
    batch_norm_sums_kernel(const __grid_constant__ PassProblem p) {
  using C = Compute<T>;
  using V = Vec<T, kVec>;
  __shared__ double shared[2 * kWalkThreads * kVec];
  wait_for_predecessor();
  const auto at = WalkPlace::of<kVec>(p.grid, p.rows, p.channels);
  NormChannels<T, kVec> channels;
  const auto prepare = [&] { channels.load(p.norm, at.col); };
  constexpr int kInputs = kAdded ? 3 : 2, kUnroll = pass_unroll(kInputs);
  const T* in[kInputs] = {static_cast<const T*>(p.dy), static_cast<const T*>(p.x)};
  if constexpr (kAdded) in[2] = static_cast<const T*>(p.added);
  C sums[2][kVec] = {};
  const auto body = [&](const V(&v)[kInputs][kUnroll], int count, int64_t row) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (u >= count) break;
      C dz[kVec];
      gradients<T, kVec, kAdded>(p, channels, v[0][u], v[1][u], v[kInputs - 1][u], dz);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        sums[0][i] += dz[i];
        sums[1][i] += dz[i] * (to_compute(v[1][u].value[i]) - channels.mean[i]);
      }
      const int64_t r = row + int64_t{u} * p.grid.threads_y;
      if (p.dz) store_row<T>(p.dz, p, r, at.col, dz);
    }
  };
  walk_rows<T, kVec, kUnroll>(p.grid, at, in, p.channels, prepare, body);
  block_channel_sums<kVec, 2>(
      p.grid, at, sums, shared, p.channels, [&](int s, int64_t channel, double sum) {
        p.partial[(s * p.channels + channel) * p.grid.row_blocks + at.row_block] = sum;
      });
}

// A warp joins what the blocks of rows left of one channel: sums (2, channels).
template <class T>
__device__ __forceinline__ void join_sums(const PassProblem& p, Compute<T>* sums, int64_t channel) {
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    const double* const from = p.partial + (s * p.channels + channel) * p.grid.row_blocks;
    double total = 0;
    for (int64_t b = threadIdx.x % 32; b < p.grid.row_blocks; b += 32 * kJoinUnroll) {
      double part[kJoinUnroll];  // on their way at once
#pragma unroll
      for (int u = 0; u < kJoinUnroll; ++u) {
        part[u] = b + 32 * u < p.grid.row_blocks ? from[b + 32 * u] : 0;
      }
#pragma unroll
      for (int u = 0; u < kJoinUnroll; ++u) total += part[u];
    }
    total = warp_total(total);
    if (threadIdx.x % 32 != 0) continue;
    const double unit = s == 0 ? 1.0 : static_cast<double>(p.norm.rstd<T>(channel));
    sums[s * p.channels + channel] = static_cast<Compute<T>>(total * unit);
  }
}

// One warp for each channel.
template <class T>
__global__ void __launch_bounds__(kWalkThreads)
    batch_norm_finish_sums_kernel(const __grid_constant__ PassProblem p, Compute<T>* sums) {
  wait_for_predecessor();
  const int64_t channel = int64_t{blockIdx.x} * (kWalkThreads / 32) + threadIdx.x / 32;
  if (channel < p.channels) join_sums<T>(p, sums, channel);
}

// What dx is made of beside the norm: dx = scale (dz - mean_dz - slope (x - mean)).
template <class T, int kVec>
struct GradientChannels {
  using C = Compute<T>;
  C mean_dz[kVec] = {}, slope[kVec] = {};

  __device__ __forceinline__ void load(const PassProblem& p, int64_t col) {
    const auto* const sums = static_cast<const C*>(p.sums);
    const C count = p.count ? *static_cast<const C*>(p.count) : static_cast<C>(p.rows);
    const C share = C(1) / count;
    C rstd[kVec];
    p.norm.rstds<T>(col, rstd);
    ChannelVector{sums, true}.load<T>(col, C(0), mean_dz);
    ChannelVector{sums + p.channels, true}.load<T>(col, C(0), slope);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      mean_dz[i] *= share;
      slope[i] = slope[i] * share * rstd[i];
    }
  }
  // dz without what the statistics take of it.
  __device__ __forceinline__ C centred(int i, C dz, T x, C mean) const {
    C found = dz - mean_dz[i];
    found -= slope[i] * (to_compute(x) - mean);
    return found;
  }
};

template <class T, int kVec, bool kAdded>
__global__ void __launch_bounds__(kWalkThreads, sizeof(T) == 8 ? 1 : kPassBlocks)
    batch_norm_backward_kernel(const __grid_constant__ PassProblem p) {
  using C = Compute<T>;
  using V = Vec<T, kVec>;
  wait_for_predecessor();
  const auto at = WalkPlace::of<kVec>(p.grid, p.rows, p.channels);
  NormChannels<T, kVec> channels;
  GradientChannels<T, kVec> sums;
  const auto prepare = [&] {
    channels.load(p.norm, at.col);
    if (p.sums) sums.load(p, at.col);
  };
  constexpr int kInputs = kAdded ? 3 : 2, kUnroll = pass_unroll(kInputs);
  const T* in[kInputs] = {static_cast<const T*>(p.dy), static_cast<const T*>(p.x)};
  if constexpr (kAdded) in[2] = static_cast<const T*>(p.added);
  const auto body = [&](const V(&v)[kInputs][kUnroll], int count, int64_t row) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (u >= count) break;
      C dz[kVec], dx[kVec];
      gradients<T, kVec, kAdded>(p, channels, v[0][u], v[1][u], v[kInputs - 1][u], dz);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        C centred = dz[i];
        if (p.sums) centred = sums.centred(i, dz[i], v[1][u].value[i], channels.mean[i]);
        dx[i] = centred * channels.scale[i];
      }
      const int64_t r = row + int64_t{u} * p.grid.threads_y;
      if (p.dz) store_row<T>(p.dz, p, r, at.col, dz);
      store_row<T>(p.out, p, r, at.col, dx);
    }
  };
  walk_rows<T, kVec, kUnroll>(p.grid, at, in, p.channels, prepare, body);
}

}  // namespace fusedops
