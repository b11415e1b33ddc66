// fp32 products on Tensor Cores: a value is the sum of three bf16 parts, and a product of two
// values that of six products of parts; the other three are below fp32's rounding. Operands are
// parted on their way to shared memory.
#pragma once

#include "csrc/cutlass/kernels/unaligned/unaligned.cuh"

namespace fusedops::unaligned {

inline constexpr int kParts = 3;

// The 16 bytes that begin `bytes` (0, 4, 8 or 12) behind the first of lo.
__device__ __forceinline__ float4 words_behind(const uint4& lo, const uint4& hi, int bytes) {
  uint32_t w[6] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y};
  if (bytes & 8) w[0] = w[2], w[1] = w[3], w[2] = w[4], w[3] = w[5], w[4] = hi.z;
  if (bytes & 4) w[0] = w[1], w[1] = w[2], w[2] = w[3], w[3] = w[4];
  return {__uint_as_float(w[0]), __uint_as_float(w[1]), __uint_as_float(w[2]),
          __uint_as_float(w[3])};
}

// The parts of two values, a pair for each part: each is the nearest to what those before leave.
__device__ __forceinline__ void part_pair(float first, float second, uint32_t (&parts)[kParts]) {
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    parts[p] = pack_pair<__nv_bfloat16>(first, second);
    const float2 taken = unpack_pair<__nv_bfloat16>(parts[p]);
    first -= taken.x;
    second -= taken.y;
  }
}

// fp32 units on to shared memory: a tile of each part.
template <int kRows, Major kMajor>
struct PartLoader : Units<kRows, kMajor, 4, kPartTileK> {
  using Base = Units<kRows, kMajor, 4, kPartTileK>;
  using Shared = OperandTile<kRows, kMajor, kPartTileK>;
  static constexpr int kPartUnits = kRows * kPartTileK / 8;
  static constexpr int kTileUnits = kParts * kPartUnits;
  uint32_t largest = 0;  // of the bits of what was stored, without signs, doubled
  using Base::Base;

  // Whether a value has no parts: infinity, NaN, and what the first part rounds to infinity.
  __device__ __forceinline__ bool too_large() const { return largest >= 2 * 0x7f7f8000u; }

  __device__ __forceinline__ void store(uint4* tile, int k_left) {
    // NOTE: a unit of four parts is half of one of shared memory.
    auto* to = reinterpret_cast<uint2*>(tile + Shared::place(Base::line(), Base::unit() / 2)) +
               Base::unit() % 2;
#pragma unroll
    for (int i = 0; i < Base::kCount; ++i) {
      float4 value = words_behind(this->low[i], this->high[i], this->shift());
      const int count = this->count(i, k_left);
      // NOTE: beyond the operand lies anything; where that is not its end, it was read.
      if (count < 4) {
        value.x = count > 0 ? value.x : 0.0f;
        value.y = count > 1 ? value.y : 0.0f;
        value.z = count > 2 ? value.z : 0.0f;
        value.w = 0.0f;
      }
      largest = max(largest, max(max(__float_as_uint(value.x) * 2, __float_as_uint(value.y) * 2),
                                 max(__float_as_uint(value.z) * 2, __float_as_uint(value.w) * 2)));
      uint32_t first[kParts], second[kParts];
      part_pair(value.x, value.y, first);
      part_pair(value.z, value.w, second);
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        to[i * Base::kStep * Shared::kUnits * 2 + p * kPartUnits * 2] = {first[p], second[p]};
      }
    }
  }
};

template <int kTile, Major kA, Major kB>
struct PartGemm : Shape<float, kPartTiles[kTile]> {
  using S = Shape<float, kPartTiles[kTile]>;
  static constexpr int kK = kPartTileK;
  static constexpr bool kRepairs = true;
  static __device__ __forceinline__ void finish(Sums<S>&) {}
  using LoaderA = PartLoader<S::kM, kA>;
  using LoaderB = PartLoader<S::kN, kB>;
  static constexpr int kStage = LoaderA::kTileUnits + LoaderB::kTileUnits;
  static constexpr int kSharedBytes = 2 * kStage * 16;
  static_assert(S::kM * kStagedUnits<float, S::kN> <= 2 * kStage);

  // NOTE: Tensor Cores cut off what they add to a sum, so that they add up few products at a time.
  static __device__ __forceinline__ void multiply(Sums<S>& sums, const uint4* a, const uint4* b) {
    float added[S::kTilesM][S::kTilesN][4] = {};
#pragma unroll
    for (int k = 0; k < kK; k += 16) {
      uint32_t left[kParts][S::kTilesM][4];
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
#pragma unroll
        for (int i = 0; i < S::kTilesM; ++i) {
          LoaderA::Shared::load_left(left[p][i], a + p * LoaderA::kPartUnits, sums.row + i * 16, k);
        }
      }
#pragma unroll
      for (int j = 0; j < S::kTilesN; j += 2) {
        uint32_t right[kParts][4];
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
          LoaderB::Shared::load_right(right[p], b + p * LoaderB::kPartUnits, sums.col + j * 8, k);
        }
#pragma unroll
        for (int both = kParts - 1; both >= 0; --both) {  // the smallest first
#pragma unroll
          for (int p = 0; p <= both; ++p) {
            const uint32_t (&r)[4] = right[both - p];
#pragma unroll
            for (int i = 0; i < S::kTilesM; ++i) {
              mma_k16<__nv_bfloat16>(added[i][j], left[p][i], r[0], r[1]);
              mma_k16<__nv_bfloat16>(added[i][j + 1], left[p][i], r[2], r[3]);
            }
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < S::kTilesM; ++i) {
#pragma unroll
      for (int j = 0; j < S::kTilesN; ++j) {
#pragma unroll
        for (int v = 0; v < 4; ++v) sums.value[i][j][v] += added[i][j][v];
      }
    }
  }

  // Sums of a block with values that have no parts, again by FP32 FMA.
  static __device__ __forceinline__ void repair(const LoaderA& a, const LoaderB& b,
                                                const Part& part, Sums<S>& sums) {
    if (!__syncthreads_or(a.too_large() || b.too_large())) return;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < S::kTilesM; ++i) {
#pragma unroll
      for (int j = 0; j < S::kTilesN; ++j) {
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          const int row = sums.row + i * 16 + lane / 4 + v / 2 * 8;
          const int col = sums.col + j * 8 + lane % 4 * 2 + v % 2;
          if (row >= part.rows || col >= part.cols) continue;
          sums.value[i][j][v] = dot(part, row, col, a.operand, b.operand);
        }
      }
    }
  }

  static __device__ __noinline__ float dot(const Part& part, int row, int col, const Operand& a,
                                           const Operand& b) {
    const auto walk = [](const Operand& operand, int64_t at, int64_t k, bool along_k,
                         int64_t& step) {
      step = along_k ? 4 : operand.line_bytes;
      return operand.data + (along_k ? at : k) * operand.line_bytes + (along_k ? k : at) * 4;
    };
    int64_t step_a, step_b;
    const char* x = walk(a, part.m + row, part.k, LoaderA::kAlongK, step_a);
    const char* y = walk(b, part.n + col, part.k, LoaderB::kAlongK, step_b);
    float sum = 0;
#pragma unroll 1
    for (int k = 0; k < part.length; ++k, x += step_a, y += step_b) {
      sum = fmaf(*reinterpret_cast<const float*>(x), *reinterpret_cast<const float*>(y), sum);
    }
    return sum;
  }
};

template <int kTile>
struct Words {
  template <Major kA, Major kB>
  using G = PartGemm<kTile, kA, kB>;
};

}  // namespace fusedops::unaligned
