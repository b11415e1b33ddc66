// The elementwise engine: out[i] = op(in0[i], ..., i) with broadcasting and any strides, in
// accesses of 16 bytes wherever the memory allows one.
//
// Three kernels, one chunk of 16 bytes per thread (on H200 more per thread is slower: 0.98 to 0.95
// of the copy bandwidth instead of 1.01):
//   flat_kernel     every operand is contiguous and 16-byte aligned;
//   rows_kernel     so is every row of every operand, which may broadcast along rows or columns;
//   strided_kernel  everything else. It cuts out into chunks at out's own alignment; an input that
//                   lies at another offset from 16 bytes is read as two aligned vectors that a
//                   funnel shift joins. Only chunks at an end of a row or of the tensor are read
//                   element by element.
//
// An op is a functor: kInputs, and operator()(const Vec (&in)[kInputs], int64_t first) -> Vec for
// the elements from position `first` on. Inputs and out may be the same memory.
#pragma once

#include <array>
#include <type_traits>

#include "common/iteration_space.h"
#include "common/pdl.cuh"
#include "common/vec.cuh"

namespace fusedops {

// Division by a number that the host knows: q = n / divisor for 0 <= n < 2^63 as the high half of a
// product. Granlund and Montgomery, Division by invariant integers using multiplication (1994).
struct Divider {
  int64_t divisor = 1;
  uint64_t magic = 0;
  int shift = 0;

  Divider() = default;
  explicit Divider(int64_t d) : divisor(d) {
    if (d == 1) return;
    while ((uint64_t{1} << (shift + 1)) < static_cast<uint64_t>(d)) ++shift;
    magic = static_cast<uint64_t>((static_cast<unsigned __int128>(1) << (64 + shift)) / d) + 1;
  }
  __device__ __forceinline__ int64_t divide(int64_t n) const {
    return divisor == 1 ? n : static_cast<int64_t>(__umul64hi(n, magic) >> shift);
  }
};

inline constexpr int kElementwiseThreads = 256;
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
  double constant = 0;
  int64_t inner = 0;  // kRows: stride of the column
  int64_t strides[kMaxDims] = {};
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
  bool rows = false;    // rows_kernel may run
  ElementwiseOperand out, in[kInputs];
};

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
  const uint4 lo = aligned[0], hi = aligned[1];
  uint32_t w[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
#pragma unroll
  for (int i = 0; i < 6; ++i) w[i] = shift & 8 ? w[i + 2] : w[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) w[i] = shift & 4 ? w[i + 1] : w[i];
  alignas(16) uint32_t joined[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) joined[i] = __funnelshift_r(w[i], w[i + 1], 8 * shift);
  return *reinterpret_cast<const V*>(joined);
}

template <class T>
__device__ __forceinline__ Vec<T, kChunk<T>> filled(T value) {
  Vec<T, kChunk<T>> v;
#pragma unroll
  for (int i = 0; i < kChunk<T>; ++i) v.value[i] = value;
  return v;
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

// Calls fn(i, offset in elements) for each element i of a chunk that exists.
template <class T, int kInputs, class Fn>
__device__ __forceinline__ void walk(const ElementwiseProblem<kInputs>& p,
                                     const ElementwiseOperand& operand, const ChunkPosition& at,
                                     Fn&& fn) {
  const bool rows = operand.access == Access::kRows;
  int64_t row = at.row, col = at.col;
  int64_t base = rows ? row_offset(p, operand, row) : 0;
#pragma unroll 1
  for (int i = 0; i < kChunk<T>; ++i) {
    const int64_t e = at.first + i;
    if (e < 0 || e >= p.count) continue;
    fn(i, rows ? base + col * operand.inner : e);
    if (rows && ++col == p.cols.divisor) {
      col = 0;
      base = row_offset(p, operand, ++row);
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
  } else {
#pragma unroll
    for (int k = 0; k < Op::kInputs; ++k) in[k] = load_elements<T>(p, p.in[k], at);
  }
  const V v = op(in, at.first);
  if (whole && p.out.access == Access::kFlat) {
    T* out = const_cast<T*>(static_cast<const T*>(p.out.data));
    *reinterpret_cast<V*>(out + at.first) = v;
  } else {
    store_elements<T>(p, at, v);
  }
}

template <class T, int kInputs>
struct FlatOperands {
  const T* in[kInputs];
  T* out;
};

template <class T, class Op>
__global__ void __launch_bounds__(kElementwiseThreads)
    flat_kernel(const FlatOperands<T, Op::kInputs> p, int64_t count, const Op op) {
  using V = Vec<T, kChunk<T>>;
  wait_for_predecessor();
  const int64_t first =
      (int64_t{blockIdx.x} * kElementwiseThreads + threadIdx.x) * int64_t{kChunk<T>};
  V in[Op::kInputs];
  if (first + kChunk<T> <= count) {
#pragma unroll
    for (int k = 0; k < Op::kInputs; ++k) in[k] = *reinterpret_cast<const V*>(p.in[k] + first);
    *reinterpret_cast<V*>(p.out + first) = op(in, first);
  } else if (first < count) {
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) {
#pragma unroll
      for (int k = 0; k < Op::kInputs; ++k) {
        in[k].value[i] = first + i < count ? p.in[k][first + i] : T(0);
      }
    }
    const V v = op(in, first);
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) {
      if (first + i < count) p.out[first + i] = v.value[i];
    }
  }
}

template <class T, class Op>
__global__ void __launch_bounds__(kElementwiseThreads)
    rows_kernel(const __grid_constant__ ElementwiseProblem<Op::kInputs> p, const Op op) {
  using V = Vec<T, kChunk<T>>;
  wait_for_predecessor();
  const int64_t first =
      (int64_t{blockIdx.x} * kElementwiseThreads + threadIdx.x) * int64_t{kChunk<T>};
  if (first >= p.count) return;
  const int64_t row = p.cols.divide(first), col = first - row * p.cols.divisor;
  V in[Op::kInputs];
#pragma unroll
  for (int k = 0; k < Op::kInputs; ++k) {
    const ElementwiseOperand& operand = p.in[k];
    const T* at = static_cast<const T*>(operand.data) + row * operand.strides[0];
    if (operand.access == Access::kConstant) {
      in[k] = filled(static_cast<T>(operand.constant));
    } else if (operand.inner == 0) {
      in[k] = filled(*at);
    } else {
      in[k] = *reinterpret_cast<const V*>(at + col);
    }
  }
  T* out = const_cast<T*>(static_cast<const T*>(p.out.data));
  *reinterpret_cast<V*>(out + first) = op(in, first);
}

// ---- launch ----

// How an operand of the loop nest is read.
inline ElementwiseOperand make_operand(const IterationSpace& space, int index, const void* data,
                                       double constant) {
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

// pointers: out, then inputs; a null input is the constant beside it.
template <int kInputs>
ElementwiseProblem<kInputs> make_problem(const IterationSpace& space,
                                         const void* const (&pointers)[kInputs + 1],
                                         const std::array<double, kInputs>& constants,
                                         int64_t element_bytes) {
  ElementwiseProblem<kInputs> p;
  const auto misalignment = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16; };
  p.count = space.count;
  p.outer = space.dims > 0 ? space.dims - 1 : 0;
  p.cols = Divider(space.dims > 0 ? space.sizes[space.dims - 1] : 1);
  for (int d = 0; d < space.dims; ++d) p.sizes[d] = space.sizes[d];
  p.out = make_operand(space, 0, pointers[0], 0);
  p.flat = p.out.access == Access::kFlat && misalignment(pointers[0]) == 0;
  p.by_row = p.out.access == Access::kRows;
  for (int k = 0; k < kInputs; ++k) {
    p.in[k] = make_operand(space, k + 1, pointers[k + 1], constants[k]);
    p.by_row = p.by_row || p.in[k].access == Access::kRows;
    p.flat = p.flat && p.in[k].access == Access::kFlat && misalignment(pointers[k + 1]) == 0;
  }
  const int64_t vec = 16 / element_bytes;
  p.rows = p.out.access == Access::kFlat && misalignment(pointers[0]) == 0 && p.outer <= 1 &&
           p.cols.divisor % vec == 0;
  for (const ElementwiseOperand& in : p.in) {
    const bool vectors =
        in.inner == 1 && misalignment(in.data) == 0 && (p.outer == 0 || in.strides[0] % vec == 0);
    p.rows = p.rows && (in.access == Access::kConstant || in.inner == 0 || vectors);
  }
  if (p.out.access == Access::kFlat) p.head = misalignment(pointers[0]) / element_bytes;
  return p;
}

// For ops whose operands have different shapes: without flat_kernel.
template <class T, class Op>
cudaError_t launch_rows(const ElementwiseProblem<Op::kInputs>& p, const Op& op, cudaStream_t stream,
                        bool overlap) {
  const dim3 grid(ceil_div(p.count + p.head, int64_t{kElementwiseThreads} * kChunk<T>));
  return launch_kernel(p.rows ? rows_kernel<T, Op> : strided_kernel<T, Op>, grid,
                       dim3(kElementwiseThreads), 0, stream, overlap, p, op);
}

template <class T, class Op>
cudaError_t launch_elementwise(const ElementwiseProblem<Op::kInputs>& p, const Op& op,
                               cudaStream_t stream, bool overlap) {
  if (!p.flat) return launch_rows<T>(p, op, stream, overlap);
  FlatOperands<T, Op::kInputs> flat;
  for (int k = 0; k < Op::kInputs; ++k) flat.in[k] = static_cast<const T*>(p.in[k].data);
  flat.out = const_cast<T*>(static_cast<const T*>(p.out.data));
  const dim3 grid(ceil_div(p.count, int64_t{kElementwiseThreads} * kChunk<T>));
  return launch_kernel(flat_kernel<T, Op>, grid, dim3(kElementwiseThreads), 0, stream, overlap,
                       flat, p.count, op);
}

}  // namespace fusedops
