// What follows the mainloop of sm90_cluster.cuh: the sums of the blocks that split K, bias
// or norm, activation, and the tile's way to memory.
#pragma once

#include "csrc/common/device/vec.cuh"
#include "csrc/cutlass/kernels/cluster/sm90_cluster_tile.cuh"
#include "csrc/cutlass/kernels/hopper/column_norm.cuh"
#include "csrc/cutlass/kernels/hopper/rolled.cuh"

namespace fusedops::cluster {

// ---- sums over the cluster ----

// Puts columns that come in the tile's order into that of distances.
template <class S>
__device__ __forceinline__ void turn(float (&sum)[S::kColumns / 2], const Part<S>& part) {
  constexpr int kSums = S::kColumns / 2;
#pragma unroll
  for (int parts = 1; parts < S::kBlocks; parts *= 2) {
    const bool turns = part.rank & parts;
    float before[kSums];
#pragma unroll
    for (int i = 0; i < kSums; ++i) before[i] = sum[i];
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      sum[i] = turns ? before[(i + parts * S::kPieces * 4) % kSums] : before[i];
    }
  }
}

template <class S>
__device__ void send(const float (&sum)[S::kColumns / 2], const Shared<S>& shared,
                     const Part<S>& part) {
  const int group = threadIdx.x / 128;
#pragma unroll
  for (int d = 1; d < S::kBlocks; ++d) {
    const int to = part.rank_after(d);
    const uint32_t at = address_of_rank(shared.received(group, d) + threadIdx.x % 128 * 16, to);
    const uint32_t sent = address_of_rank(shared.sent(group), to);
#pragma unroll
    for (int i = 0; i < S::kPieces; ++i) {
      const float* v = sum + (d * S::kPieces + i) * 4;
      asm volatile(
          "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
          "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(at + i * kPieceBytes),
          "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(sent)
          : "memory");
    }
  }
}

// Adds the other blocks' sums in the order of distances, which is the same in every run.
template <class S>
__device__ void add_received(float (&sum)[S::kColumns / 2], const Shared<S>& shared) {
  if constexpr (S::kBlocks == 1) return;
  const int group = threadIdx.x / 128;
  wait_barrier<true>(shared.sent(group), 0);
#pragma unroll
  for (int d = 1; d < S::kBlocks; ++d) {
    const uint32_t at = shared.received(group, d) + threadIdx.x % 128 * 16;
#pragma unroll
    for (int i = 0; i < S::kPieces; ++i) {
      float4 s;
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(s.x), "=f"(s.y), "=f"(s.z), "=f"(s.w)
                   : "r"(at + i * kPieceBytes)
                   : "memory");
      float* v = sum + i * 4;
      v[0] += s.x, v[1] += s.y, v[2] += s.z, v[3] += s.w;
    }
  }
}

// ---- epilogue ----

// The bias of this thread's columns, 2 (lane % 4) and the next of each piece; or of its rows, lane
// / 4 and the one 8 further on.
template <class T, class S>
struct Bias {
  uint32_t pairs[S::kSwapped ? 1 : S::kPieces] = {};
  __device__ Bias(const Problem& p, const Part<S>& part) {
    if (p.bias == nullptr) return;
    const T* bias = static_cast<const T*>(p.bias);
    if constexpr (S::kSwapped) {
      const int row = part.row0 + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
      T pair[2] = {row < p.n ? bias[row] : T(0.0f), row + 8 < p.n ? bias[row + 8] : T(0.0f)};
      memcpy(pairs, pair, sizeof pair);
    } else {
#pragma unroll
      for (int i = 0; i < S::kPieces; ++i) {
        const int column = part.column0(0) + i * 8 + threadIdx.x % 4 * 2;
        if (column < p.n) pairs[i] = *reinterpret_cast<const uint32_t*>(bias + column);
      }
    }
  }
  __device__ void add(float (&sum)[S::kColumns / 2]) const {
#pragma unroll
    for (int i = 0; i < S::kPieces; ++i) {
      T pair[2];
      memcpy(pair, &pairs[S::kSwapped ? 0 : i], sizeof pair);
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[i * 4 + j] += to_compute(pair[S::kSwapped ? j / 2 : j % 2]);
    }
  }
};

// Scale and shift of a batch norm: of one column of this block, which the others get by way of
// shared memory, or of this thread's rows.
template <class T, class S>
struct Norm {
  float2 own[S::kSwapped ? 2 : 1] = {};

  __device__ Norm(const Problem& p, const Part<S>& part) {
    if (!p.has_norm) return;
    if constexpr (S::kSwapped) {
      const int row = part.row0 + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (row + i * 8 < p.n) own[i] = norm_of_column<T>(p.norm, row + i * 8).scale_and_shift();
      }
    } else {
      static_assert(S::kPart <= S::kMultipliers);
      const int column = part.column0(0) + threadIdx.x;
      if (threadIdx.x < S::kPart && column < p.n) {
        own[0] = norm_of_column<T>(p.norm, column).scale_and_shift();
      }
    }
  }
  __device__ void apply(float (&sum)[S::kColumns / 2], const Shared<S>& shared) const {
    auto* const norms = reinterpret_cast<float2*>(shared.bytes + S::kNorms);
    if constexpr (!S::kSwapped) {
      named_barrier<S::kMultipliers>(1);  // no warp reads a stage any more
      if (threadIdx.x < S::kPart) norms[threadIdx.x] = own[0];
      named_barrier<S::kMultipliers>(1);
    }
#pragma unroll
    for (int i = 0; i < S::kPieces; ++i) {
      float2 of[2] = {own[0], own[S::kSwapped ? 1 : 0]};
      if constexpr (!S::kSwapped) {
        const auto pair = *reinterpret_cast<const float4*>(norms + i * 8 + threadIdx.x % 4 * 2);
        of[0] = {pair.x, pair.y}, of[1] = {pair.z, pair.w};
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 norm = of[S::kSwapped ? j / 2 : j % 2];
        sum[i * 4 + j] = sum[i * 4 + j] * norm.x + norm.y;
      }
    }
  }
};

// Copies 16 bytes of the output from shared memory to global memory.
template <class T>
__device__ __forceinline__ void copy_unit(T* to, uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  *reinterpret_cast<uint4*>(to) = v;
}

// Stores the warp's 16 rows of this block's columns by way of shared memory, 64 bytes of a row at a
// time.
template <class T, class S>
__device__ __forceinline__ void store(const Problem& p, T* to, const float (&sum)[S::kColumns / 2],
                                      const Shared<S>& shared, const Part<S>& part) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t out = shared.base + warp * 16 * S::kOutRowBytes;
  const uint32_t matrix = out + lane % 16 * S::kOutRowBytes + lane / 16 * 16;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < S::kPieces; i += 2) {
    const float* v = sum + i * 4;
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(matrix + i * 16),
        "r"(rounded<T>(v[0], v[1])), "r"(rounded<T>(v[2], v[3])), "r"(rounded<T>(v[4], v[5])),
        "r"(rounded<T>(v[6], v[7]))
        : "memory");
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = i * 8 + lane / 4, m = part.row0 + warp * 16 + row;
#pragma unroll
    for (int chunk = lane % 4; chunk < S::kPieces; chunk += 4) {
      const int n = part.column0(0) + chunk * 8;
      if (m < p.m && n < p.n) {
        copy_unit(to + m * p.ldy + n, out + row * S::kOutRowBytes + chunk * 16);
      }
    }
  }
}

// The warpgroup's 64 rows of this block's columns, transposed by way of shared memory: 128 bytes of
// a column at a time. The 16-byte unit u of column c lies at unit u ^ (c % 8).
template <class T, class S>
__device__ __forceinline__ void store_swapped(const Problem& p, T* to,
                                              const float (&sum)[S::kColumns / 2],
                                              const Shared<S>& shared, const Part<S>& part) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = threadIdx.x / 128;
  const uint32_t out = shared.base + group * S::kPart * S::kOutRowBytes;
  const auto at = [&](int column, int unit) {
    return out + column * S::kOutRowBytes + (unit ^ (column % 8)) * 16;
  };
#pragma unroll
  for (int i = 0; i < S::kPieces; ++i) {
    const float* v = sum + i * 4;
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(
                     at(i * 8 + lane % 8, warp * 2 + lane / 8 % 2)),
                 "r"(rounded<T>(v[0], v[1])), "r"(rounded<T>(v[2], v[3]))
                 : "memory");
  }
  named_barrier<128>(2 + group);
  const int unit = lane % 8, n = part.row0 + group * 64 + unit * 8;
#pragma unroll
  for (int i = 0; i < S::kPart; i += 16) {
    const int column = i + warp * 4 + lane / 8, m = part.column0(0) + column;
    if (column < S::kPart && m < p.m && n < p.n) copy_unit(to + m * p.ldy + n, at(column, unit));
  }
}

template <class T, Activation kActivation, int kValues>
__device__ __forceinline__ void activate_as(float* v) {
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    v[i] = fusedops::activate_as<kActivation, kAccuracyOf<T>>(v[i]);
  }
}

template <class T, class S>
__device__ __forceinline__ void activate(float (&sum)[S::kColumns / 2], Activation activation) {
  with_activation(activation, [&]<Activation kActivation>() {
    if constexpr (kActivation == kAnyRare) {
      constexpr int kPieces = S::kPieces % 2 == 0 ? 2 : 1;  // at a time
      for_each_rolled<0, S::kPieces / kPieces, kPieces * 4>(
          [&]<int kIndex>(cute::Int<kIndex>) { return sum + kIndex * kPieces * 4; },
          [&](float* v, int) {
            with_rare_activation(activation,
                                 [&]<Activation kNow>() { activate_as<T, kNow, kPieces * 4>(v); });
          });
    } else {
      activate_as<T, kActivation, S::kPieces * 4>(sum);
    }
  });
}

}  // namespace fusedops::cluster
