// The elementwise kernel for lines of 16-byte accesses (see elementwise.cuh).
#pragma once

#include "csrc/common/device/pdl.cuh"
#include "csrc/cuda/elementwise/elementwise_problem.cuh"

namespace fusedops {

// 16 bytes in registers, whatever they hold. NOTE: the empty asm keeps them whole words where
// several loads could have made them; else each 16-bit half becomes a register of its own.
struct alignas(16) Words {
  uint32_t word[4];
};
template <class V>
__device__ __forceinline__ Words words_of(const V& v) {
  Words w = __builtin_bit_cast(Words, v);
#pragma unroll
  for (uint32_t& word : w.word) asm("" : "+r"(word));
  return w;
}

// What an operand holds at column `col` of every line.
template <class T, int kInputs>
__device__ __forceinline__ Words load_column(const ElementwiseProblem<kInputs>& p,
                                             const ElementwiseOperand& operand, uint32_t col) {
  using V = Vec<T, kChunk<T>>;
  if (operand.access == Access::kConstant) {
    return words_of(filled(static_cast<T>(operand.constant)));
  }
  const T* row = static_cast<const T*>(operand.data);
  if (operand.inner == 0) return words_of(filled(*row));
  const auto cols = static_cast<uint32_t>(p.cols.divisor);
  uint32_t at = col - p.line_cols.divide(col) * cols;
  if (!operand.wraps) return words_of(*reinterpret_cast<const V*>(row + at));
  V v;
#pragma unroll
  for (int i = 0; i < kChunk<T>; ++i) {
    v.value[i] = row[at];
    at = at + 1 < cols ? at + 1 : 0;
  }
  return words_of(v);
}

// The chunk at the tensor's end where it is not whole: `count` elements.
template <class T, class Op>
__device__ __forceinline__ void run_partial(const ElementwiseProblem<Op::kInputs>& p, const Op& op,
                                            const Words (&columns)[Op::kInputs], int64_t line,
                                            uint32_t col, int64_t first, int count) {
  using V = Vec<T, kChunk<T>>;
  V in[Op::kInputs];
#pragma unroll
  for (int k = 0; k < Op::kInputs; ++k) {
    in[k] = __builtin_bit_cast(V, columns[k]);
    if (p.in[k].line_stride == 0) continue;
    const T* from = static_cast<const T*>(p.in[k].data) + line * p.in[k].line_stride + col;
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) {
      if (i < count) in[k].value[i] = from[i];
    }
  }
  const V v = op(in, ChunkAt{first, true});
  T* out = const_cast<T*>(static_cast<const T*>(p.out.data)) + first;
#pragma unroll
  for (int i = 0; i < kChunk<T>; ++i) {
    if (i < count) out[i] = v.value[i];
  }
}

// A thread takes one chunk in each of kLines neighbouring lines; operands that are the same in
// every line are read, and converted, once. Their loads come last: they branch, which others must
// not wait for.
template <class T, class Op>
__global__ void __launch_bounds__(kElementwiseThreads)
    lines_kernel(const __grid_constant__ ElementwiseProblem<Op::kInputs> p, const Op op) {
  using V = Vec<T, kChunk<T>>;
  wait_for_predecessor();
  const uint32_t thread = blockIdx.x * kElementwiseThreads + threadIdx.x;
  const uint32_t group = p.chunks.divide(thread);
  const uint32_t col = (thread - group * p.chunks.divisor) * kChunk<T>;
  const int64_t line = int64_t{group} * kLines;
  const int64_t first = line * p.line + col, left = p.count - first;
  if (left <= 0) return;
  Words in[kLines][Op::kInputs];
#pragma unroll
  for (int k = 0; k < Op::kInputs; ++k) {
    if ((Op::kPerColumn >> k & 1) || p.in[k].line_stride == 0) continue;
    const T* from = static_cast<const T*>(p.in[k].data) + line * p.in[k].line_stride + col;
#pragma unroll
    for (int r = 0; r < kLines; ++r, from += p.in[k].line_stride) {
      if (left - r * p.line >= kChunk<T>) {
        in[r][k] = load_input<Op>(reinterpret_cast<const Words*>(from));
      }
    }
  }
  Words columns[Op::kInputs];
#pragma unroll
  for (int k = 0; k < Op::kInputs; ++k) {
    if (!(Op::kPerColumn >> k & 1) && p.in[k].line_stride != 0) continue;
    columns[k] = load_column<T>(p, p.in[k], col);
#pragma unroll
    for (int r = 0; r < kLines; ++r) in[r][k] = columns[k];
  }
  op.resolve([&](const auto& resolved) {
#pragma unroll
    for (int r = 0; r < kLines; ++r) {
      const int64_t e = first + r * p.line, here = p.count - e;
      if (here >= kChunk<T>) {
        V chunk[Op::kInputs];
#pragma unroll
        for (int k = 0; k < Op::kInputs; ++k) chunk[k] = __builtin_bit_cast(V, in[r][k]);
        T* out = const_cast<T*>(static_cast<const T*>(p.out.data)) + e;
        *reinterpret_cast<V*>(out) = resolved(chunk, ChunkAt{e, true});
      } else if (here > 0) {
        run_partial<T>(p, resolved, columns, line + r, col, e, static_cast<int>(here));
      }
    }
  });
}

}  // namespace fusedops
