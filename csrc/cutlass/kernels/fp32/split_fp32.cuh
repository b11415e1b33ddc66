// Splits an fp32 matrix into bf16 parts laid out for the fp32-accurate GEMM (see split_fp32.h), and
// repairs what the split cannot express: infinities times zero parts.
#pragma once

#include <cuda_bf16.h>

#include "csrc/common/device/activation.cuh"
#include "csrc/common/device/pdl.cuh"
#include "csrc/common/device/vec.cuh"
#include "csrc/cutlass/kernels/fp32/split_fp32.h"

namespace fusedops {

// Which part of the operand stands in each of the six product columns.
template <SplitSide kSide>
__device__ __forceinline__ constexpr int split_part(int product) {
  constexpr int kOfA[kSplitProducts] = {2, 1, 0, 1, 0, 0};
  constexpr int kOfB[kSplitProducts] = {0, 1, 2, 0, 1, 0};
  return kSide == SplitSide::kA ? kOfA[product] : kOfB[product];
}

struct Bf16Parts {
  __nv_bfloat16 part[3];
};

__device__ __forceinline__ Bf16Parts split_bf16(float x) {
  const uint32_t bits = __float_as_uint(x);
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
  if (!finite) return {{__float2bfloat16_rn(x), __nv_bfloat16{}, __nv_bfloat16{}}};
  __nv_bfloat16 high = __float2bfloat16_rn(x);
  // Round to nearest would overflow the largest floats: truncate those.
  if (__hisinf(high)) high = __float2bfloat16_rz(x);
  const float rest = x - __bfloat162float(high);
  const __nv_bfloat16 middle = __float2bfloat16_rn(rest);
  return {{high, middle, __float2bfloat16_rn(rest - __bfloat162float(middle))}};
}

inline constexpr int kSplitRows = 64;
inline constexpr int kSplitThreads = 256;

// out: (rows, split_columns(k)) bf16. Grid (chunks of K, blocks of 64 rows). Sets *nonfinite when
// it meets Inf or NaN.
template <SplitSide kSide>
__global__ void __launch_bounds__(kSplitThreads)
    split_fp32_kernel(SplitSource source, __nv_bfloat16* out, int* nonfinite) {
  __shared__ float tile[kSplitRows][kSplitChunk + 1];
  wait_for_predecessor();
  const int64_t k0 = int64_t{blockIdx.x} * kSplitChunk;
  bool bad = false;
  for (int64_t row0 = int64_t{blockIdx.y} * kSplitRows; row0 < source.rows;
       row0 += int64_t{gridDim.y} * kSplitRows) {
    for (int i = threadIdx.x; i < kSplitRows * kSplitChunk; i += kSplitThreads) {
      // Neighbouring threads read along the contiguous index.
      const bool along_k = source.k_stride == 1;
      const int r = along_k ? i / kSplitChunk : i % kSplitRows;
      const int c = along_k ? i % kSplitChunk : i / kSplitRows;
      const bool inside = row0 + r < source.rows && k0 + c < source.k;
      const float x =
          inside ? source.data[(row0 + r) * source.row_stride + (k0 + c) * source.k_stride] : 0.0f;
      bad |= !(fabsf(x) <= 3.402823466e38f);
      tile[r][c] = x;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kSplitRows * kSplitChunk / 4; i += kSplitThreads) {
      const int r = i / (kSplitChunk / 4), c = i % (kSplitChunk / 4) * 4;
      if (row0 + r < source.rows) {
        Bf16Parts parts[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) parts[j] = split_bf16(tile[r][c + j]);
        __nv_bfloat16* row = out + (row0 + r) * split_columns(source.k) + k0 * kSplitProducts + c;
#pragma unroll
        for (int p = 0; p < kSplitProducts; ++p) {
          Vec<__nv_bfloat16, 4> v;
#pragma unroll
          for (int j = 0; j < 4; ++j) v.value[j] = parts[j].part[split_part<kSide>(p)];
          *reinterpret_cast<Vec<__nv_bfloat16, 4>*>(row + p * kSplitChunk) = v;
        }
      }
    }
    __syncthreads();
  }
  if (bad) *nonfinite = 1;
}

struct RepairProblem {
  SplitSource a, b;  // rows of a: M; rows of b: N
  const float* bias;
  float* d;
  float* preact;  // or null
  int64_t ldd;
  Activation activation;
};

// Recomputes every NaN of d in plain fp32, one warp an element, where the operands held Inf or NaN;
// otherwise it returns at once. The bf16 parts of an infinity are (Inf, 0, 0), whose products with
// zero parts are NaN where fp32 has Inf.
inline __global__ void __launch_bounds__(256)
    repair_nonfinite_kernel(RepairProblem p, const int* nonfinite) {
  wait_for_predecessor();
  if (*nonfinite == 0) return;
  const int lane = threadIdx.x % 32;
  const int64_t warps = int64_t{gridDim.x} * (blockDim.x / 32);
  const int64_t elements = p.a.rows * p.b.rows;
  for (int64_t e = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32; e < elements;
       e += warps) {
    const int64_t m = e / p.b.rows, n = e % p.b.rows;
    const int64_t offset = m * p.ldd + n;
    const float seen = p.preact != nullptr ? p.preact[offset] : p.d[offset];
    if (!isnan(seen)) continue;
    float z = 0;
    for (int64_t k0 = 0; k0 < p.a.k; k0 += 32) {
      const int64_t k = k0 + lane;
      if (k < p.a.k) {
        z = fmaf(p.a.data[m * p.a.row_stride + k * p.a.k_stride],
                 p.b.data[n * p.b.row_stride + k * p.b.k_stride], z);
      }
      if (__any_sync(0xffffffffu, isnan(z))) break;  // and NaN it stays
    }
    for (int step = 16; step > 0; step /= 2) z += __shfl_xor_sync(0xffffffffu, z, step);
    if (p.bias != nullptr) z += p.bias[n];
    if (lane != 0) continue;
    if (p.preact != nullptr) p.preact[offset] = z;
    with_activation(p.activation, [&]<Activation kActivation>() {
      resolve_rare<kActivation>(p.activation, [&]<Activation kNow>() {
        p.d[offset] = activate_as<kNow, Accuracy::kFloat32>(z);
      });
    });
  }
}

}  // namespace fusedops
