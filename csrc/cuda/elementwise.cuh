// The elementwise engine: out[i] = op(in0[i], ..., i) with broadcasting and any strides, in
// accesses of 16 bytes wherever the memory allows one.
//
// Three kernels (on H200 more than a chunk per thread is slower where nothing is shared: 0.98 to
// 0.95 of the copy bandwidth instead of 1.01):
// - flat_kernel: every operand is contiguous and 16-byte aligned; 16 bytes per thread;
// - lines_kernel: out is contiguous and aligned, operands are so too or the same in every row. Rows
//   that do not begin at multiples of 16 bytes are taken several at a time, as lines that do;
// - strided_kernel: everything else. It cuts out into chunks at out's own alignment; an input that
//   lies at another offset from 16 bytes is read as two aligned vectors that a funnel shift joins.
//   Only chunks at an end of a row or of the tensor are read element by element.
//
// An op is a functor: kInputs; kPerColumn, a bit for each input that is the same in every row;
// operator()(const Vec (&in)[kInputs], ChunkAt) -> Vec; and resolve(use), which calls use(op) with
// an op that has no run-time choices left.
// Inputs and out may be the same memory.
#pragma once

#include <algorithm>
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

// The same in one product, for 0 <= n < 2^31 and 0 < divisor < 2^31.
struct SmallDivider {
  uint32_t divisor = 1, magic = 1u << 31;
  int shift = 31;

  SmallDivider() = default;
  explicit SmallDivider(int64_t d) : divisor(static_cast<uint32_t>(d)) {
    while ((int64_t{1} << (shift - 31)) < d) ++shift;
    magic = static_cast<uint32_t>(ceil_div(int64_t{1} << shift, d));
  }
  __device__ __forceinline__ uint32_t divide(uint32_t n) const {
    return static_cast<uint32_t>(uint64_t{n} * magic >> shift);
  }
};

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
  // For lines_kernel
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
  // For lines_kernel: elements and chunks of a line, and the innermost dimension.
  int64_t line = 0;
  SmallDivider chunks, line_cols;
  ElementwiseOperand out, in[kInputs];
};

// Rounds kN computed values; pairs share an instruction.
template <class T, class C, int kN>
__device__ __forceinline__ Vec<T, kN> rounded(const C (&values)[kN]) {
  Vec<T, kN> v;
  if constexpr (std::is_same_v<T, C>) {
#pragma unroll
    for (int i = 0; i < kN; ++i) v.value[i] = values[i];
  } else if constexpr (kN % 2 == 0) {
#pragma unroll
    for (int i = 0; i < kN; i += 2) {
      if constexpr (std::is_same_v<T, __half>) {
        const __half2 pair = __floats2half2_rn(values[i], values[i + 1]);
        v.value[i] = pair.x, v.value[i + 1] = pair.y;
      } else {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(values[i], values[i + 1]);
        v.value[i] = pair.x, v.value[i + 1] = pair.y;
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kN; ++i) v.value[i] = from_compute<T>(values[i]);
  }
  return v;
}

// Where an op's elements begin. aligned: at a multiple of a chunk; true only as a literal.
struct ChunkAt {
  int64_t first;
  bool aligned;
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
    *reinterpret_cast<V*>(p.out + first) = op(in, ChunkAt{first, true});
  } else if (first < count) {
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) {
#pragma unroll
      for (int k = 0; k < Op::kInputs; ++k) {
        in[k].value[i] = first + i < count ? p.in[k][first + i] : T(0);
      }
    }
    const V v = op(in, ChunkAt{first, true});
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) {
      if (first + i < count) p.out[first + i] = v.value[i];
    }
  }
}

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
  if (!operand.wraps) return words_of(*reinterpret_cast<const V*>(row + col));
  const auto cols = static_cast<uint32_t>(p.cols.divisor);
  uint32_t at = col - p.line_cols.divide(col) * cols;
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
      if (left - r * p.line >= kChunk<T>) in[r][k] = *reinterpret_cast<const Words*>(from);
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

// ---- launch ----

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

// Lines: rows where those begin at multiples of 16 bytes, else as many rows as do so together. A
// tensor that is one row is cut anywhere, unless an operand that an op takes for one per column (a
// bit of `per_column`) runs along it.
template <int kInputs, class Misaligned>
void plan_lines(ElementwiseProblem<kInputs>& p, Misaligned&& misaligned, int64_t vec,
                unsigned per_column) {
  constexpr int64_t kCut = 4096;
  const int64_t cols = p.cols.divisor;
  bool cut = p.outer == 0;
  for (int k = 0; k < kInputs; ++k) cut = cut && !(per_column >> k & 1 && p.in[k].inner == 1);
  const bool whole = cols % vec == 0;
  p.line = cut ? kCut : p.outer == 0 || whole ? cols : cols * vec;
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
  if (p.out.access == Access::kFlat) p.head = misaligned(pointers[0]) / element_bytes;
  return p;
}

// For ops whose operands have different shapes: without flat_kernel.
template <class T, class Op>
cudaError_t launch_rows(const ElementwiseProblem<Op::kInputs>& p, const Op& op, cudaStream_t stream,
                        bool overlap) {
  const auto launch = [&](auto kernel, int64_t threads) {
    return launch_kernel(kernel, dim3(ceil_div(threads, kElementwiseThreads)),
                         dim3(kElementwiseThreads), 0, stream, overlap, p, op);
  };
  if (!p.lines) return launch(strided_kernel<T, Op>, ceil_div(p.count + p.head, kChunk<T>));
  return launch(lines_kernel<T, Op>,
                ceil_div(ceil_div(p.count, p.line), int64_t{kLines}) * p.chunks.divisor);
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
