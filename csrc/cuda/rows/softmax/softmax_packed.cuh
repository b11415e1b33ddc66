// softmax, log_softmax and their backward of short dense rows, many to a warp.
//
// The rows of a warp are one stretch of memory, whatever a row's length: chunks of 16 bytes bring
// it to shared memory, where one or a few lanes take a row each, and take the results back. Where
// rows are not that many, or lanes of a row read whole sectors, they read and write them in place:
// that is sooner.
#pragma once

#include <algorithm>
#include <numeric>

#include "csrc/common/dispatch.h"
#include "csrc/cuda/rows/softmax/softmax.cuh"

namespace fusedops {

inline constexpr int kPackedThreads = 128;  // of a block
inline constexpr int kPackedHeld = 8;       // elements of a row in a lane's registers
inline constexpr int kPackedLongest = 32 * kPackedHeld;

// Made by plan_packed.
struct PackedRows {
  int64_t rows;
  int n;      // elements of a row
  int lanes;  // of a row, a power of two
  int tile;   // rows of a warp; staged: of whole chunks
  bool staged;
  int64_t blocks() const { return ceil_div(rows, int64_t{kPackedThreads / 32} * tile); }
};

// vec: elements of a chunk, in the tensor that has most; row_bytes: of a row in shared memory;
// longest: elements of a row beyond which many rows do not come here; most_staged: lanes of a row
// up to which many rows are staged. tile is 0 where the rows do not come here.
inline PackedRows plan_packed(int64_t rows, int64_t n, int vec, int64_t row_bytes, int64_t longest,
                              int most_staged, int sm_count) {
  constexpr int64_t kTileBytes = 2048, kMostBlocks = (int64_t{1} << 31) - 1;
  constexpr int64_t kLeastStagedBytes = 32 << 20;
  constexpr int kFewWarps = 8;  // of a multiprocessor: fewer wait for memory one after the other
  PackedRows plan{rows, static_cast<int>(n), 1, 0, true};
  if (n > kPackedLongest) return plan;
  while (plan.lanes * kPackedHeld < n) plan.lanes *= 2;
  const int at_once = 32 / plan.lanes;
  const int whole = vec / std::gcd(plan.n, vec);  // rows of whole chunks
  const int least = std::max(at_once, whole);
  const int64_t few = int64_t{sm_count} * kFewWarps;
  if (n > longest && rows > few * at_once) return plan;
  plan.staged =
      rows > few * least && plan.lanes <= most_staged && rows * row_bytes >= kLeastStagedBytes;
  plan.tile = at_once;
  if (plan.staged) {
    plan.tile = least;
    while (2 * plan.tile * row_bytes <= kTileBytes && rows > int64_t{sm_count} * 96 * plan.tile) {
      plan.tile *= 2;
    }
  }
  if (plan.blocks() > kMostBlocks) plan.tile = 0;
  return plan;
}

// Between memory and a warp's shared memory; both begin at a chunk. Streams take turns.
template <int kStreams, class T>
__device__ __forceinline__ void load_stretch(T* const (&to)[kStreams],
                                             const T* const (&from)[kStreams], int count) {
  constexpr int kVec = kChunkOf<T>, kAhead = 4 / kStreams;
  const int lane = threadIdx.x % 32, chunks = count / kVec;
  for (int first = lane; first < chunks; first += 32 * kAhead) {
    uint4 held[kStreams][kAhead];
#pragma unroll
    for (int s = 0; s < kStreams; ++s) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int chunk = first + 32 * i;
        if (chunk < chunks) held[s][i] = reinterpret_cast<const uint4*>(from[s])[chunk];
      }
    }
#pragma unroll
    for (int s = 0; s < kStreams; ++s) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int chunk = first + 32 * i;
        if (chunk < chunks) reinterpret_cast<uint4*>(to[s])[chunk] = held[s][i];
      }
    }
  }
  const int end = chunks * kVec + lane;
  if (end < count) {
#pragma unroll
    for (int s = 0; s < kStreams; ++s) to[s][end] = from[s][end];
  }
}

template <class T>
__device__ __forceinline__ void store_stretch(T* to, const T* from, int count) {
  constexpr int kVec = kChunkOf<T>;
  const int lane = threadIdx.x % 32, chunks = count / kVec;
#pragma unroll 4
  for (int chunk = lane; chunk < chunks; chunk += 32) {
    reinterpret_cast<uint4*>(to)[chunk] = reinterpret_cast<const uint4*>(from)[chunk];
  }
  const int end = chunks * kVec + lane;
  if (end < count) to[end] = from[end];
}

// The rows of a warp, and a lane's elements of them: every `lanes`-th of a row, from a place on
// that spreads the rows over the banks of shared memory. kLanes: of a row; 0: staged, any number.
template <class T, int kLanes>
class PackedTile {
  static constexpr bool kStaged = kLanes == 0;

 public:
  __device__ __forceinline__ explicit PackedTile(const PackedRows& rows)
      : lanes_(kStaged ? rows.lanes : kLanes),
        n_(rows.n),
        index_(static_cast<int>(threadIdx.x) % lanes_),
        sub_(static_cast<int>(threadIdx.x) % 32 / lanes_) {
    const int64_t warp = int64_t{blockIdx.x} * (kPackedThreads / 32) + threadIdx.x / 32;
    const int64_t first = warp * rows.tile, left = rows.rows - first;
    count_ = left < rows.tile ? static_cast<int>(left < 0 ? 0 : left) : rows.tile;
    start_ = first * n_;
    if constexpr (kStaged) {
      constexpr int kLine = 128 / sizeof(T);  // elements in all banks
      if (n_ >= kLine) {
        turn_ = sub_ * (lanes_ - n_) & (kLine - 1);
      } else {
        turn_ = sub_ * (n_ & -n_) / kLine * lanes_;
      }
      if (turn_ >= n_) turn_ -= n_;
    }
  }

  // Known to the compiler where kLanes is.
  __device__ __forceinline__ int lanes() const { return kStaged ? lanes_ : kLanes; }

  __device__ __forceinline__ int count() const { return count_; }          // rows
  __device__ __forceinline__ int elements() const { return count_ * n_; }  // of all rows
  __device__ __forceinline__ int64_t start() const { return start_; }      // element of the tensor
  __device__ __forceinline__ int rows_at_a_time() const { return 32 / lanes(); }
  __device__ __forceinline__ int row(int base) const { return base + sub_; }
  __device__ __forceinline__ bool has(int row, int i) const {
    return row < count_ && index_ + i * lanes() < n_;
  }
  // Where the lane's element i of a row is in the tile.
  __device__ __forceinline__ int place(int row, int i) const {
    const int column = index_ + i * lanes() + turn_;
    return row * n_ + (kStaged && column >= n_ ? column - n_ : column);
  }
  template <class C>
  __device__ __forceinline__ void read(C (&value)[kPackedHeld], const T* from, int row,
                                       C other) const {
    if constexpr (kLanes == 1) {
      if (has_chunks(from)) return read_chunks(value, from, row, other);
    }
#pragma unroll
    for (int i = 0; i < kPackedHeld; ++i) {
      value[i] = has(row, i) ? to_compute(from[place(row, i)]) : other;
    }
  }
  template <class O, class C>
  __device__ __forceinline__ void write(O* to, const C (&value)[kPackedHeld], int row) const {
    if constexpr (kLanes == 1) {
      if (has_chunks(to)) return write_chunks(to, value, row);
    }
#pragma unroll
    for (int i = 0; i < kPackedHeld; ++i) {
      if (has(row, i)) to[place(row, i)] = from_compute<O>(value[i]);
    }
  }
  // Over the lanes of a row.
  template <class C, class Fn>
  __device__ __forceinline__ C fold(C value, Fn fn) const {
#pragma unroll
    for (int width = 16; width > 0; width /= 2) {
      if (width >= lanes()) continue;
      value = fn(value, __shfl_xor_sync(~0u, value, width));
    }
    return value;
  }
  template <class C>
  __device__ __forceinline__ C sum(C value) const {
    return fold(value, [](C a, C b) { return a + b; });
  }

 private:
  // Rows of one lane each that are whole chunks.
  template <class U>
  __device__ __forceinline__ bool has_chunks(const U* at) const {
    return n_ % kChunkOf<U> == 0 && reinterpret_cast<uintptr_t>(at) % 16 == 0;
  }
  template <class C>
  __device__ __forceinline__ void read_chunks(C (&value)[kPackedHeld], const T* from, int row,
                                              C other) const {
    constexpr int kVec = kChunkOf<T>;
#pragma unroll
    for (int first = 0; first < kPackedHeld; first += kVec) {
      const bool here = has(row, first);
      Vec<T, kVec> chunk{};
      if (here) chunk = *reinterpret_cast<const Vec<T, kVec>*>(from + row * n_ + first);
#pragma unroll
      for (int e = 0; e < kVec; ++e) {
        value[first + e] = here ? to_compute(chunk.value[e]) : other;
      }
    }
  }
  template <class O, class C>
  __device__ __forceinline__ void write_chunks(O* to, const C (&value)[kPackedHeld],
                                               int row) const {
    constexpr int kVec = kChunkOf<O>;
#pragma unroll
    for (int first = 0; first < kPackedHeld; first += kVec) {
      Vec<O, kVec> chunk;
#pragma unroll
      for (int e = 0; e < kVec; ++e) chunk.value[e] = from_compute<O>(value[first + e]);
      if (has(row, first)) *reinterpret_cast<Vec<O, kVec>*>(to + row * n_ + first) = chunk;
    }
  }

  int lanes_, n_, index_, sub_, turn_ = 0, count_;
  int64_t start_;
};

// Bytes of shared memory of a row: inputs, and outputs where they do not take their place.
template <class In, class Out, int kStreams>
inline constexpr int kPackedBytes =
    kStreams * sizeof(In) + (sizeof(In) == sizeof(Out) ? 0 : sizeof(Out));
template <class T>
inline constexpr int kPackedBlocks = sizeof(T) == 8 ? 4 : 8;  // on a multiprocessor, the least

// A warp's part of shared memory, as kStreams inputs and an output.
template <class In, class Out, int kStreams>
struct PackedMemory {
  In* in[kStreams];
  Out* out;
  __device__ __forceinline__ PackedMemory(void* shared, const PackedRows& rows) {
    const int elements = rows.tile * rows.n;
    char* const mine =
        static_cast<char*>(shared) + threadIdx.x / 32 * elements * kPackedBytes<In, Out, kStreams>;
    in[0] = reinterpret_cast<In*>(mine);
    if constexpr (kStreams == 2) in[1] = in[0] + elements;
    out = sizeof(In) == sizeof(Out) ? reinterpret_cast<Out*>(mine)
                                    : reinterpret_cast<Out*>(in[kStreams - 1] + elements);
  }
};

template <class T, class O, int kLanes>
__global__ void __launch_bounds__(kPackedThreads, kPackedBlocks<T>)
    softmax_packed_kernel(SoftmaxForward<T, O> p, PackedRows rows) {
  using C = Compute<T>;
  constexpr bool kStaged = kLanes == 0;
  extern __shared__ uint4 shared[];
  wait_for_predecessor();
  const PackedTile<T, kLanes> tile(rows);
  if (tile.count() == 0) return;
  const T* from = p.x + tile.start();
  O* to = p.y + tile.start();
  if constexpr (kStaged) {
    const PackedMemory<T, O, 1> memory(shared, rows);
    load_stretch<1>(memory.in, {from}, tile.elements());
    __syncwarp();
    from = memory.in[0];
    to = memory.out;
  }
  for (int base = 0; base < tile.count(); base += tile.rows_at_a_time()) {
    const int row = tile.row(base);
    C x[kPackedHeld], exp[kPackedHeld], sum[2] = {};
    tile.read(x, from, row, -static_cast<C>(INFINITY));
    C top = x[0];
#pragma unroll
    for (int i = 1; i < kPackedHeld; ++i) top = larger(top, x[i]);
    top = finite_top(tile.fold(top, [](C a, C b) { return larger(a, b); }));
#pragma unroll
    for (int i = 0; i < kPackedHeld; ++i) {
      exp[i] = exp_from<O>(x[i], top);
      sum[i % 2] += exp[i];
    }
    const C total = tile.sum(sum[0] + sum[1]);
    const C scale = p.log ? standard_log(total) : 1 / total;
#pragma unroll
    for (int i = 0; i < kPackedHeld; ++i) x[i] = p.log ? x[i] - top - scale : exp[i] * scale;
    tile.write(to, x, row);
  }
  if constexpr (kStaged) {
    __syncwarp();
    store_stretch(p.y + tile.start(), to, tile.elements());
  }
}

template <class T, class S, int kLanes>
__global__ void __launch_bounds__(kPackedThreads, kPackedBlocks<S>)
    softmax_backward_packed_kernel(SoftmaxBackward<T, S> p, PackedRows rows) {
  using C = Compute<S>;
  constexpr bool kStaged = kLanes == 0;
  extern __shared__ uint4 shared[];
  wait_for_predecessor();
  const PackedTile<S, kLanes> tile(rows);
  if (tile.count() == 0) return;
  const S *dy_from = p.dy + tile.start(), *y_from = p.y + tile.start();
  T* to = p.dx + tile.start();
  if constexpr (kStaged) {
    const PackedMemory<S, T, 2> memory(shared, rows);
    load_stretch<2>(memory.in, {dy_from, y_from}, tile.elements());
    __syncwarp();
    dy_from = memory.in[0];
    y_from = memory.in[1];
    to = memory.out;
  }
  for (int base = 0; base < tile.count(); base += tile.rows_at_a_time()) {
    const int row = tile.row(base);
    C dy[kPackedHeld], y[kPackedHeld], dx[kPackedHeld], sum[2] = {};
    tile.read(dy, dy_from, row, C{0});
    tile.read(y, y_from, row, C{0});
#pragma unroll
    for (int i = 0; i < kPackedHeld; ++i) sum[i % 2] += p.log ? dy[i] : dy[i] * y[i];
    const C total = tile.sum(sum[0] + sum[1]);
    softmax_grad<S>(dx, [&](int i) { return dy[i]; }, [&](int i) { return y[i]; }, total, p.log);
    tile.write(to, dx, row);
  }
  if constexpr (kStaged) {
    __syncwarp();
    store_stretch(p.dx + tile.start(), to, tile.elements());
  }
}

// launch(tag of kLanes, bytes of shared memory); element_bytes: of a row's element there.
template <class Launch>
void launch_packed_rows(const PackedRows& rows, int element_bytes, Launch&& launch) {
  const int64_t bytes = kPackedThreads / 32 * int64_t{rows.tile} * rows.n * element_bytes;
  dispatch(Choices<0, 1, 2, 4, 8, 16, 32>{}, rows.staged ? 0 : rows.lanes,
           [&]<int kLanes>(Tag<kLanes> tag) { launch(tag, kLanes == 0 ? bytes : 0); });
}

}  // namespace fusedops
