// What an elementwise kernel is given (see elementwise.cuh): the operands, how each is read, and
// which of the kernels may run.
#pragma once

#include <algorithm>
#include <array>

#include "csrc/common/device/cache_hint.cuh"
#include "csrc/common/device/division.cuh"
#include "csrc/common/device/vec.cuh"
#include "csrc/common/iteration_space.h"

namespace fusedops {

inline constexpr int kElementwiseThreads = 256;
inline constexpr int kLines = 4;  // of a thread of lines_kernel
template <class T>
inline constexpr int kChunk = 16 / sizeof(T);  // elements of one access

enum class Access : int {
  kFlat,      // element i at data[i]
  kRows,      // row and column by strides
  kScalar,    // one element for all
  kConstant,  // an absent operand: a number
};

struct ElementwiseOperand {
  const void* data = nullptr;
  Access access = Access::kConstant;
  float constant = 0;
  int64_t inner = 0;  // kRows: stride of the column
  int64_t strides[kMaxDims] = {};
  // lines_kernel reads these.
  int64_t line_stride = 0;
  bool wraps = false;  // a row of `cols` elements, read one by one, repeats along the line
};

template <int kInputs>
struct ElementwiseProblem {
  int64_t count = 0;
  Divider cols;      // the innermost dimension
  int64_t head = 0;  // elements from the aligned address below out to out
  int outer = 0;     // dimensions besides the innermost
  int64_t sizes[kMaxDims] = {};
  bool by_row = false;  // some operand is kRows
  bool flat = false;    // flat_kernel may run
  bool lines = false;   // lines_kernel may run
  // single_kernel reads these, where it may run.
  bool single = false;
  SmallDivider single_cols, single_sizes[kMaxDims];
  // lines_kernel reads these: elements and chunks of a line, and the innermost dimension.
  int64_t line = 0;
  SmallDivider chunks, line_cols;
  ElementwiseOperand out, in[kInputs];
};

// Where an op's elements begin. aligned: at a multiple of a chunk; true only as a literal.
struct ChunkAt {
  int64_t first;
  bool aligned;
};

// A chunk of an input, or the words of one.
template <class Op, class V>
__device__ __forceinline__ V load_input(const V* from) {
  if constexpr (Op::kLight) {
    return load_evict_last(from);
  } else {
    return *from;
  }
}

template <class T>
__device__ __forceinline__ Vec<T, kChunk<T>> filled(T value) {
  Vec<T, kChunk<T>> v;
#pragma unroll
  for (int i = 0; i < kChunk<T>; ++i) v.value[i] = value;
  return v;
}

// ---- planning, on the host ----

// How an operand of the loop nest is read.
inline ElementwiseOperand make_operand(const IterationSpace& space, int index, const void* data,
                                       float constant) {
  ElementwiseOperand operand;
  operand.data = data;
  operand.constant = constant;
  if (data == nullptr) return operand;
  const int64_t* strides = space.strides[index];
  bool flat = true, scalar = true;
  int64_t run = 1;
  for (int d = space.dims - 1; d >= 0; --d) {
    flat = flat && strides[d] == run;
    scalar = scalar && strides[d] == 0;
    run *= space.sizes[d];
    operand.strides[d] = strides[d];
  }
  operand.access = flat ? Access::kFlat : scalar ? Access::kScalar : Access::kRows;
  operand.inner = space.dims > 0 ? strides[space.dims - 1] : 0;
  return operand;
}

// Lines: rows where those begin at multiples of 16 bytes, else as many rows as do so together;
// short ones side by side where every operand goes on from one to the next or repeats, since a warp
// should read and write its chunks in one piece. A tensor that is one row is cut anywhere, unless
// an operand that an op takes for one per column (a bit of `per_column`) runs along it.
template <int kInputs, class Misaligned>
void plan_lines(ElementwiseProblem<kInputs>& p, Misaligned&& misaligned, int64_t vec,
                unsigned per_column) {
  constexpr int64_t kCut = 4096, kLeastChunks = 32;
  const int64_t cols = p.cols.divisor;
  bool cut = p.outer == 0;
  for (int k = 0; k < kInputs; ++k) cut = cut && !(per_column >> k & 1 && p.in[k].inner == 1);
  const bool whole = cols % vec == 0;
  p.line = cut ? kCut : p.outer == 0 || whole ? cols : cols * vec;
  bool repeats = p.outer == 1;
  for (const ElementwiseOperand& in : p.in) {
    const bool goes_on = in.access == Access::kConstant || in.access == Access::kFlat;
    repeats = repeats && (goes_on || in.strides[0] == 0);
  }
  if (repeats) p.line *= ceil_div(kLeastChunks, ceil_div(p.line, vec));
  const int64_t chunks = ceil_div(p.line, vec), threads = ceil_div(p.count, p.line) * chunks;
  p.lines = p.out.access == Access::kFlat && misaligned(p.out.data) == 0 && p.outer <= 1 &&
            p.line <= INT32_MAX && threads <= INT32_MAX - kElementwiseThreads;
  if (!p.lines) return;
  p.chunks = SmallDivider(chunks);
  p.line_cols = SmallDivider(std::min<int64_t>(cols, INT32_MAX));
  for (ElementwiseOperand& in : p.in) {
    const bool flat = in.access == Access::kFlat;
    const int64_t row = p.outer == 0 ? 0 : in.strides[0];
    in.line_stride = flat && (cut || p.outer > 0) ? p.line : row;
    const bool vectors = in.inner == 1 && misaligned(in.data) == 0 &&
                         (flat && in.line_stride > 0 ? true : whole && row % vec == 0);
    in.wraps = in.inner == 1 && in.line_stride == 0 && !vectors;
    const bool same = in.access == Access::kConstant || (in.inner == 0 && in.line_stride == 0);
    p.lines = p.lines && (same || vectors || in.wraps);
  }
}

// Elements one by one: where chunks would end inside rows in most warps, or where there are so few
// elements that what a chunk's path takes from end to end is what counts.
template <int kInputs>
void plan_single(ElementwiseProblem<kInputs>& p) {
  constexpr int64_t kFewElements = 1 << 20, kShortRow = 512;  // elements
  const int64_t cols = p.cols.divisor;
  bool along = p.out.inner <= 1;  // lanes read and write neighbours
  for (const ElementwiseOperand& in : p.in) along = along && in.inner <= 1;
  p.single = p.by_row && !p.lines && p.count <= INT32_MAX &&
             (p.count <= kFewElements || (along && cols <= kShortRow));
  if (!p.single) return;
  p.single_cols = SmallDivider(cols);
  for (int d = 0; d < p.outer; ++d) p.single_sizes[d] = SmallDivider(p.sizes[d]);
}

// pointers: out, then inputs; a null input is the constant beside it.
template <int kInputs>
ElementwiseProblem<kInputs> make_problem(const IterationSpace& space,
                                         const void* const (&pointers)[kInputs + 1],
                                         const std::array<float, kInputs>& constants,
                                         int64_t element_bytes, unsigned per_column) {
  ElementwiseProblem<kInputs> p;
  const auto misaligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16; };
  p.count = space.count;
  p.outer = space.dims > 0 ? space.dims - 1 : 0;
  p.cols = Divider(space.dims > 0 ? space.sizes[space.dims - 1] : 1);
  for (int d = 0; d < space.dims; ++d) p.sizes[d] = space.sizes[d];
  p.out = make_operand(space, 0, pointers[0], 0);
  p.flat = p.out.access == Access::kFlat && misaligned(pointers[0]) == 0;
  p.by_row = p.out.access == Access::kRows;
  for (int k = 0; k < kInputs; ++k) {
    p.in[k] = make_operand(space, k + 1, pointers[k + 1], constants[k]);
    p.by_row = p.by_row || p.in[k].access == Access::kRows;
    p.flat = p.flat && p.in[k].access == Access::kFlat && misaligned(pointers[k + 1]) == 0;
  }
  plan_lines(p, misaligned, 16 / element_bytes, per_column);
  plan_single(p);
  if (p.out.access == Access::kFlat) p.head = misaligned(pointers[0]) / element_bytes;
  return p;
}

}  // namespace fusedops
