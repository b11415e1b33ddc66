// What the fp32 GEMM over parts (sm90_parts.cuh) does with a warpgroup's sums: repairs what had no
// parts, and stores act(sums + bias) straight from registers.
#pragma once

#include "csrc/common/device/activation.cuh"
#include "csrc/cutlass/kernels/parts/part_copies.cuh"

namespace fusedops::parts {

// Where a thread's sums lie in the tile: of two rows, 8 below each other, two columns of every 8.
struct Place {
  int row, col;  // of the first

  __device__ __forceinline__ Place() {
    // NOTE: volatile, or all that follows from it is formed before the first product, and stored.
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    thread -= kCopiers;
    row = thread / 32 * 16 + thread % 32 / 4;
    col = thread % 4 * 2;
  }
  __device__ __forceinline__ int row_of(int i) const { return row + i / 2 % 2 * 8; }
  __device__ __forceinline__ int col_of(int i) const { return col + i / 4 * 8 + i % 2; }
};

// A thread's sums of 64 x N.
template <int N>
struct Sums {
  float value[N / 2] = {};
};

struct Output {
  float* d;
  float* preact;      // or null
  const float* bias;  // or null
  int64_t ldd, slice_stride;
  Activation activation;
  bool fours;  // every row of d and preact begins at 16 bytes
};

// What a block sums up: from which row, column and element of K on, and how much of each.
struct Part {
  int64_t m, n, k;
  int rows, cols, length;
};

template <Major kA, Major kB>
__device__ __noinline__ float dot(const Part& part, int row, int col, const Operand& a,
                                  const Operand& b) {
  const auto walk = [&](const Operand& operand, int64_t at, bool along_k, int64_t& step) {
    step = along_k ? 4 : operand.line_bytes;
    return operand.data + (along_k ? at : part.k) * operand.line_bytes +
           (along_k ? part.k : at) * 4;
  };
  int64_t step_a, step_b;
  const char* x = walk(a, part.m + row, kA == Major::kK, step_a);
  const char* y = walk(b, part.n + col, kB == Major::kK, step_b);
  float sum = 0;
#pragma unroll 1
  for (int k = 0; k < part.length; ++k, x += step_a, y += step_b) {
    sum = fmaf(*reinterpret_cast<const float*>(x), *reinterpret_cast<const float*>(y), sum);
  }
  return sum;
}

// Some of a thread's sums: those of 32 columns.
struct Group {
  static constexpr int kElements = 16;
  float value[kElements];
  __device__ __forceinline__ float& operator[](int i) { return value[i]; }
};

// NOTE: g is no constant where code is to be compiled once.
template <int N>
__device__ __forceinline__ Group group_of(const Sums<N>& sums, int g) {
  Group z;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    if (i / 16 == g) z[i % 16] = sums.value[i];
  }
  return z;
}

// NaN again by FP32 FMA: it may come from a value that has no parts.
template <Major kA, Major kB, int N>
__device__ __forceinline__ void repair(Sums<N>& sums, const Part& part, const Operand& a,
                                       const Operand& b) {
  bool bad = false;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) bad |= isnan(sums.value[i]);
  if (!bad) return;
  const Place place;
#pragma unroll 1
  for (int g = 0; g < N / 32; ++g) {
    Group z = group_of(sums, g);
#pragma unroll
    for (int i = 0; i < Group::kElements; ++i) {
      const int row = place.row_of(i), col = place.col_of(g * 16 + i);
      if (isnan(z[i]) && row < part.rows && col < part.cols) {
        z[i] = dot<kA, kB>(part, row, col, a, b);
      }
    }
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      if (i / 16 == g) sums.value[i] = z[i % 16];
    }
  }
}

// What a warp stores of 16 rows by 16 columns, whose first is `to`.
struct Block {
  float* to;
  int64_t ld;
  int rows, cols;
};

// Neighbouring lanes swap pairs, so that each has four columns of its two rows.
__device__ __forceinline__ void store_fours(const Block& block, const float* z) {
  const int lane = int(threadIdx.x) % 32;
  const bool odd = lane % 2;
  const int col = lane % 4 * 2 + (odd ? 6 : 0);
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const float kept[2] = {odd ? z[4 + i] : z[i], odd ? z[5 + i] : z[i + 1]};
    const float given[2] = {odd ? z[i] : z[4 + i], odd ? z[i + 1] : z[5 + i]};
    float got[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) got[j] = __shfl_xor_sync(0xffffffffu, given[j], 1);
    const int row = lane / 4 + i * 4;
    if (row >= block.rows || col >= block.cols) continue;
    float* to = block.to + row * block.ld + col;
    const float four[4] = {odd ? got[0] : kept[0], odd ? got[1] : kept[1], odd ? kept[0] : got[0],
                           odd ? kept[1] : got[1]};
    if (col + 3 < block.cols) {
      *reinterpret_cast<float4*>(to) = {four[0], four[1], four[2], four[3]};
    } else {
#pragma unroll
      for (int j = 0; j < 3; ++j) {
        if (col + j < block.cols) to[j] = four[j];
      }
    }
  }
}

// Rows that begin anywhere leave by 16 neighbours at a time. staged: the warp's.
__device__ __forceinline__ void store_rows(const Block& block, const float* z, float* staged) {
  const int lane = int(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    const int row = lane / 4 + i / 2 % 2 * 8, col = lane % 4 * 2 + i / 4 * 8;
    *reinterpret_cast<float2*>(staged + row * kStagedLine + col) = {z[i], z[i + 1]};
  }
  __syncwarp();
  const int col = lane % 16;
#pragma unroll
  for (int row = lane / 16; row < 16; row += 2) {
    if (row < block.rows && col < block.cols) {
      block.to[row * block.ld + col] = staged[row * kStagedLine + col];
    }
  }
  __syncwarp();
}

template <int N>
__device__ __forceinline__ void add_bias(Sums<N>& sums, const Part& part, const float* bias) {
  const Place place;
#pragma unroll
  for (int i = 0; i < N / 2; i += 4) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int col = place.col_of(i + j);
      const float added = col < part.cols ? __ldg(bias + part.n + col) : 0.0f;
      sums.value[i + j] += added;
      sums.value[i + j + 2] += added;
    }
  }
}

// staged: of all warps.
template <int N>
__device__ __forceinline__ void store(Sums<N>& sums, const Part& part, int slice,
                                      const Output& output, float* staged) {
  if (output.bias != nullptr) add_bias(sums, part, output.bias);
  const int warp_row = Place().row / 16 * 16;
  staged += warp_row * kStagedLine;
  const int64_t first = (part.m + warp_row) * output.ldd + part.n;
  const auto store_group = [&](float* d, Group& z, int g) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int col = g * 32 + half * 16;
      const Block block = {d + first + col, output.ldd, part.rows - warp_row, part.cols - col};
      output.fours ? store_fours(block, z.value + half * 8)
                   : store_rows(block, z.value + half * 8, staged);
    }
  };
  float* d = output.d + slice * output.slice_stride;
  if (output.activation == Activation::kNone) {
#pragma unroll
    for (int g = 0; g < N / 32; ++g) {
      Group z = group_of(sums, g);
      if (output.preact) store_group(output.preact, z, g);
      store_group(d, z, g);
    }
  } else {
#pragma unroll 1
    for (int g = 0; g < N / 32; ++g) {
      Group z = group_of(sums, g);
      if (output.preact) store_group(output.preact, z, g);
      activate_array<Accuracy::kFloat32>(output.activation, z);
      store_group(d, z, g);
    }
  }
}

}  // namespace fusedops::parts
