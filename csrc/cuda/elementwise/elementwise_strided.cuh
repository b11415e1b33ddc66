// The elementwise kernel for operands of any strides and alignment (see elementwise.cuh).
#pragma once

#include "csrc/common/device/pdl.cuh"
#include "csrc/common/device/unaligned.cuh"
#include "csrc/cuda/elementwise/elementwise_problem.cuh"

namespace fusedops {

// Where a chunk begins: its first element (negative in the first chunk of an unaligned out), and
// row and column of its first element that exists.
struct ChunkPosition {
  int64_t first, row, col;
};

template <int kInputs>
__device__ __forceinline__ int64_t row_offset(const ElementwiseProblem<kInputs>& p,
                                              const ElementwiseOperand& operand, int64_t row) {
  int64_t offset = 0;
  for (int d = p.outer - 1; d > 0; --d) {
    const int64_t above = row / p.sizes[d];
    offset += (row - above * p.sizes[d]) * operand.strides[d];
    row = above;
  }
  return offset + row * operand.strides[0];
}

// 16 bytes from any element's address. `before`, `after`: elements of the operand's own memory on
// either side of it, so that no vector reaches beyond.
template <class T>
__device__ __forceinline__ Vec<T, kChunk<T>> load_run(const T* from, int64_t before,
                                                      int64_t after) {
  using V = Vec<T, kChunk<T>>;
  const auto address = reinterpret_cast<uintptr_t>(from);
  const unsigned shift = address % 16;
  if (shift == 0) return *reinterpret_cast<const V*>(from);
  if (before < kChunk<T> || after < 2 * kChunk<T>) {
    V v;
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) v.value[i] = from[i];
    return v;
  }
  const uint4* aligned = reinterpret_cast<const uint4*>(address - shift);
  return __builtin_bit_cast(V, bytes_behind(aligned[0], aligned[1], shift));
}

// A chunk that lies in one row and in the tensor.
template <class T, int kInputs>
__device__ __forceinline__ Vec<T, kChunk<T>> load_chunk(const ElementwiseProblem<kInputs>& p,
                                                        const ElementwiseOperand& operand,
                                                        const ChunkPosition& at) {
  const T* data = static_cast<const T*>(operand.data);
  switch (operand.access) {
    case Access::kConstant: return filled(static_cast<T>(operand.constant));
    case Access::kScalar: return filled(data[0]);
    case Access::kFlat: return load_run(data + at.first, at.first, p.count - at.first);
    default: break;
  }
  const T* row = data + row_offset(p, operand, at.row);
  if (operand.inner == 1) return load_run(row + at.col, at.col, p.cols.divisor - at.col);
  if (operand.inner == 0) return filled(row[0]);
  Vec<T, kChunk<T>> v;
#pragma unroll
  for (int i = 0; i < kChunk<T>; ++i) v.value[i] = row[(at.col + i) * operand.inner];
  return v;
}

// A chunk that goes on in the next row, where rows are one dimension and no shorter than a chunk.
template <class T, int kInputs>
__device__ __forceinline__ Vec<T, kChunk<T>> load_across(const ElementwiseProblem<kInputs>& p,
                                                         const ElementwiseOperand& operand,
                                                         const ChunkPosition& at) {
  if (operand.access != Access::kRows) return load_chunk<T>(p, operand, at);
  const T* row = static_cast<const T*>(operand.data) + at.row * operand.strides[0];
  const int64_t cols = p.cols.divisor, next = operand.strides[0] - cols * operand.inner;
  Vec<T, kChunk<T>> v;
#pragma unroll
  for (int i = 0; i < kChunk<T>; ++i) {
    const int64_t col = at.col + i;
    v.value[i] = row[col * operand.inner + (col < cols ? 0 : next)];
  }
  return v;
}

template <int kInputs>
__device__ __noinline__ int64_t outer_offset(const ElementwiseProblem<kInputs>& p,
                                             const ElementwiseOperand& operand, int64_t row) {
  return row_offset(p, operand, row);
}

// Calls fn(i, offset in elements) for each element i of a chunk that exists. NOTE: unrolled, so
// that loads of a chunk are in flight together.
template <class T, int kInputs, class Fn>
__device__ __forceinline__ void walk(const ElementwiseProblem<kInputs>& p,
                                     const ElementwiseOperand& operand, const ChunkPosition& at,
                                     Fn&& fn) {
  const bool rows = operand.access == Access::kRows;
  int64_t row = at.row, col = at.col;
  int64_t base = rows ? outer_offset(p, operand, row) : 0;
#pragma unroll
  for (int i = 0; i < kChunk<T>; ++i) {
    const int64_t e = at.first + i;
    if (e < 0 || e >= p.count) continue;
    fn(i, rows ? base + col * operand.inner : e);
    if (rows && ++col == p.cols.divisor) {
      col = 0;
      ++row;
      base = p.outer > 1 ? outer_offset(p, operand, row) : base + operand.strides[0];
    }
  }
}

// NOTE: not inlined, so that the slow path costs the kernel neither registers nor compile time.
template <class T, int kInputs>
__device__ __noinline__ Vec<T, kChunk<T>> load_elements(const ElementwiseProblem<kInputs>& p,
                                                        const ElementwiseOperand& operand,
                                                        const ChunkPosition at) {
  const T* data = static_cast<const T*>(operand.data);
  if (operand.access == Access::kConstant) return filled(static_cast<T>(operand.constant));
  if (operand.access == Access::kScalar) return filled(data[0]);
  Vec<T, kChunk<T>> v{};
  walk<T>(p, operand, at, [&](int i, int64_t offset) { v.value[i] = data[offset]; });
  return v;
}
template <class T, int kInputs>
__device__ __noinline__ void store_elements(const ElementwiseProblem<kInputs>& p,
                                            const ChunkPosition at, const Vec<T, kChunk<T>> v) {
  T* out = const_cast<T*>(static_cast<const T*>(p.out.data));
  walk<T>(p, p.out, at, [&](int i, int64_t offset) { out[offset] = v.value[i]; });
}

template <class T, class Op>
__global__ void __launch_bounds__(kElementwiseThreads, 4)  // NOTE: calls would take more registers
    strided_kernel(const __grid_constant__ ElementwiseProblem<Op::kInputs> p, const Op op) {
  using V = Vec<T, kChunk<T>>;
  wait_for_predecessor();
  const int64_t chunk = int64_t{blockIdx.x} * kElementwiseThreads + threadIdx.x;
  ChunkPosition at{chunk * kChunk<T> - p.head, 0, 0};
  if (at.first >= p.count) return;
  const bool whole = at.first >= 0 && at.first + kChunk<T> <= p.count;
  bool in_row = true;
  if (p.by_row) {
    const int64_t e = at.first > 0 ? at.first : 0;
    at.row = p.cols.divide(e);
    at.col = e - at.row * p.cols.divisor;
    in_row = at.col + kChunk<T> <= p.cols.divisor;
  }
  V in[Op::kInputs];
  if (whole && in_row) {
#pragma unroll
    for (int k = 0; k < Op::kInputs; ++k) in[k] = load_chunk<T>(p, p.in[k], at);
  } else if (whole && p.outer == 1 && p.cols.divisor >= kChunk<T>) {
#pragma unroll
    for (int k = 0; k < Op::kInputs; ++k) in[k] = load_across<T>(p, p.in[k], at);
  } else {
#pragma unroll
    for (int k = 0; k < Op::kInputs; ++k) in[k] = load_elements<T>(p, p.in[k], at);
  }
  const V v = op(in, ChunkAt{at.first, false});
  if (whole && p.out.access == Access::kFlat) {
    T* out = const_cast<T*>(static_cast<const T*>(p.out.data));
    *reinterpret_cast<V*>(out + at.first) = v;
  } else {
    store_elements<T>(p, at, v);
  }
}

}  // namespace fusedops
