// softmax, log_softmax and their backward where a row is read twice: rows that no team can hold, in
// parts that fill the GPU however few the rows are, and dims that are not the innermost.
#pragma once

#include <algorithm>

#include "csrc/common/int_math.h"
#include "csrc/cuda/rows/softmax/softmax.cuh"
#include "csrc/cuda/rows/team/row_stream.cuh"

namespace fusedops {

// Maximum and sum of exponentials relative to it, of the values seen so far.
template <class O, class C>
struct OnlineSum {
  C top = -static_cast<C>(INFINITY), sum = 0;

  __device__ __forceinline__ void raise(C value) {
    if (value > top) {
      sum *= exp_from<O>(top, finite_top(value));
      top = value;
    }
  }
  __device__ __forceinline__ void add(C value) {
    raise(value);
    sum += exp_from<O>(value, finite_top(top));
  }
  __device__ __forceinline__ void join(const OnlineSum& other) {
    raise(other.top);
    sum += other.sum * exp_from<O>(other.top, finite_top(top));
  }
};

// ---- long rows: one launch finds what a row's parts tell, a block each, a second one writes ----

template <class C>
inline constexpr int kPartBlocks = sizeof(C) == 8 ? kStreamBlocks / 2 : kStreamBlocks;  // of an SM

// A row of n elements in parts of `share`, a multiple of a chunk, but for where the row begins.
struct RowParts {
  int64_t n, share;
  int parts;

  RowParts(int64_t rows, int64_t n, int vec, int element_bytes, int sm_count) : n(n) {
    constexpr int64_t kLeastPart = 16 << 10;  // bytes: less is not worth a block
    const int64_t fill = ceil_div(int64_t{sm_count} * kStreamBlocks, rows);
    const int64_t most = std::max<int64_t>(1, n * element_bytes / kLeastPart);
    share = round_up(ceil_div(n + vec - 1, std::min(fill, most)), int64_t{vec});
    parts = static_cast<int>(ceil_div(n + vec - 1, share));
  }
};

// A block's part: `count` elements from `begin` on, the first one `shift` elements into a chunk.
struct RowPart {
  int64_t row, begin, count;
  int shift;

  __device__ __forceinline__ RowPart(const RowParts& of, int vec, unsigned block) {
    row = block / static_cast<unsigned>(of.parts);
    const auto part = static_cast<int>(block - row * of.parts);
    const int in_chunk = static_cast<int>(row * of.n % vec);
    const int64_t first = part * of.share - in_chunk;
    begin = max(first, int64_t{0});
    count = min(of.n, first + of.share) - begin;
    shift = part == 0 ? in_chunk : 0;
  }
};

// NOTE: the second launch begins with what the first one read last, which L2 may still have.
__device__ __forceinline__ unsigned block_from_end() { return gridDim.x - 1 - blockIdx.x; }

// The largest value of each part, and the sum relative to it.
template <class T, class O>
__global__ void __launch_bounds__(kStreamThreads, kPartBlocks<Compute<T>>)
    softmax_part_kernel(SoftmaxForward<T, O> p, RowParts parts, Compute<T>* found) {
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<T>;
  __shared__ RowSlot<C> slots[2 * kStreamThreads / 32];
  wait_for_predecessor();
  const RowPart part(parts, kVec, blockIdx.x);
  RowTeam<C> team(RowLayout{1, 0, 32, 1, 0}, slots);
  OnlineSum<O, C> seen;
  stream_row<T, kVec>(p.x + (part.row * p.x_stride + part.begin), part.count, part.shift,
                      team.index(), team.size(), [&](const auto& chunk) {
                        chunk.each([&](int e) { seen.raise(chunk.vec.at(e)); });
                        const C base = finite_top(seen.top);
                        chunk.each([&](int e) { seen.sum += exp_from<O>(chunk.vec.at(e), base); });
                      });
  const C warp_top = team.warp_max(seen.top);
  team.publish(warp_top, team.warp_sum(seen.sum * exp_from<O>(seen.top, finite_top(warp_top))));
  const C top = team.max_slot_a(), base = finite_top(top);
  const C sum = team.sum_slots([&](const RowSlot<C>& s) { return s.b * exp_from<O>(s.a, base); });
  if (threadIdx.x == 0) {
    found[2 * blockIdx.x] = top;
    found[2 * blockIdx.x + 1] = sum;
  }
}

// Every warp joins the parts of its row, in order.
template <class O, class C>
__device__ __forceinline__ RowNormaliser<C> join_parts(const C* found, int parts) {
  const int lane = threadIdx.x % 32;
  C top = -static_cast<C>(INFINITY);
#pragma unroll 1
  for (int i = lane; i < parts; i += 32) top = larger(top, found[2 * i]);
#pragma unroll
  for (int width = 16; width > 0; width /= 2) {
    top = larger(top, __shfl_xor_sync(~0u, top, width));
  }
  const C base = finite_top(top);
  C sum = 0;
#pragma unroll 1
  for (int i = lane; i < parts; i += 32) {
    sum += found[2 * i + 1] * exp_from<O>(found[2 * i], base);
  }
#pragma unroll
  for (int width = 16; width > 0; width /= 2) sum += __shfl_xor_sync(~0u, sum, width);
  return {base, sum};
}

template <class T, class O>
__global__ void __launch_bounds__(kStreamThreads, kPartBlocks<Compute<T>>)
    softmax_spread_kernel(SoftmaxForward<T, O> p, RowParts parts, const Compute<T>* found) {
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<T>;
  wait_for_predecessor();
  const RowPart part(parts, kVec, block_from_end());
  const SoftmaxOutput<O, C> output(join_parts<O>(found + part.row * parts.parts * 2, parts.parts),
                                   p.log);
  O* const y = p.y + (part.row * parts.n + part.begin);
  stream_row<T, kVec>(p.x + (part.row * p.x_stride + part.begin), part.count, part.shift,
                      threadIdx.x, kStreamThreads, [&](const auto& chunk) {
                        C out[kVec];
                        output(out, [&](int e) { return chunk.vec.at(e); });
                        store_like(y, chunk, out);
                      });
}

template <class T, class S>
__global__ void __launch_bounds__(kStreamThreads, kPartBlocks<Compute<T>>)
    softmax_backward_part_kernel(SoftmaxBackward<T, S> p, RowParts parts, Compute<T>* found) {
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<S>;
  __shared__ RowSlot<C> slots[2 * kStreamThreads / 32];
  wait_for_predecessor();
  const RowPart part(parts, kVec, blockIdx.x);
  RowTeam<C> team(RowLayout{1, 0, 32, 1, 0}, slots);
  const S* const y = p.y + (part.row * p.y_stride + part.begin);
  C sum = 0;
  stream_row<S, kVec>(
      p.dy + (part.row * p.dy_stride + part.begin), part.count, part.shift, team.index(),
      team.size(), [&](const auto& chunk) {
        const auto out = load_like(y, chunk);
        C some = 0;  // NOTE: of the chunk, since a chain over the whole row would round too often
        chunk.each([&](int e) { some += p.log ? chunk.vec.at(e) : chunk.vec.at(e) * out.at(e); });
        sum += some;
      });
  sum = team.sum(sum);
  if (threadIdx.x == 0) found[blockIdx.x] = sum;
}

template <class T, class S>
__global__ void __launch_bounds__(kStreamThreads, kPartBlocks<Compute<T>>)
    softmax_backward_spread_kernel(SoftmaxBackward<T, S> p, RowParts parts,
                                   const Compute<T>* found) {
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<S>;
  wait_for_predecessor();
  const RowPart part(parts, kVec, block_from_end());
  C sum = 0;
  for (int i = threadIdx.x % 32; i < parts.parts; i += 32) {
    sum += found[part.row * parts.parts + i];
  }
#pragma unroll
  for (int width = 16; width > 0; width /= 2) sum += __shfl_xor_sync(~0u, sum, width);
  const S* const y = p.y + (part.row * p.y_stride + part.begin);
  T* const dx = p.dx + (part.row * parts.n + part.begin);
  stream_row<S, kVec>(p.dy + (part.row * p.dy_stride + part.begin), part.count, part.shift,
                      threadIdx.x, kStreamThreads, [&](const auto& chunk) {
                        const auto out = load_like(y, chunk);
                        C grad[kVec];
                        softmax_grad<S>(
                            grad, [&](int e) { return chunk.vec.at(e); },
                            [&](int e) { return out.at(e); }, sum, p.log);
                        store_like(dx, chunk, grad);
                      });
}

// ---- other dims: (outer, n, inner), inner > 1; threads side by side along inner ----

inline constexpr int kColumnX = 32, kColumnY = 16;

struct ColumnShape {
  int64_t outer, n, inner;
};

// The columns of a block: kCols per thread; tiles are walked over by the grid.
template <int kCols>
struct ColumnTile {
  int64_t base;  // of element (0, column) in memory
  bool inside;
  __device__ __forceinline__ ColumnTile(const ColumnShape& shape, int64_t tile) {
    const int64_t per_outer = ceil_div(shape.inner, int64_t{kColumnX} * kCols);
    const int64_t column = (tile % per_outer * kColumnX + threadIdx.x) * kCols;
    base = tile / per_outer * shape.n * shape.inner + column;
    inside = column < shape.inner;
  }
  static int64_t count(const ColumnShape& shape) {
    return shape.outer * ceil_div(shape.inner, int64_t{kColumnX} * kCols);
  }
};

template <int kCols, class T, class C>
__device__ __forceinline__ void load_columns(const T* from, C (&value)[kCols]) {
  if constexpr (kCols == 1) {
    value[0] = to_compute(*from);
  } else {
    const auto chunk = load_packed<T, kCols>(from);
#pragma unroll
    for (int c = 0; c < kCols; ++c) value[c] = chunk.at(c);
  }
}

template <int kCols, class O, class C>
__device__ __forceinline__ void store_columns(O* to, const C (&value)[kCols]) {
  if constexpr (kCols == 1) {
    *to = from_compute<O>(value[0]);
  } else {
    store_packed(to, pack<O>(value));
  }
}

template <class T, class O, int kCols>
__global__ void __launch_bounds__(kColumnX* kColumnY)
    softmax_column_kernel(SoftmaxForward<T, O> p, ColumnShape shape, int64_t tiles) {
  using C = Compute<T>;
  using Online = OnlineSum<O, C>;
  __shared__ C tops[kColumnY][kCols][kColumnX], sums[kColumnY][kCols][kColumnX];
  wait_for_predecessor();
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const ColumnTile<kCols> tile(shape, t);
    Online seen[kCols];
    if (tile.inside) {
#pragma unroll 4
      for (int64_t r = threadIdx.y; r < shape.n; r += kColumnY) {
        C x[kCols];
        load_columns(p.x + tile.base + r * shape.inner, x);
#pragma unroll
        for (int c = 0; c < kCols; ++c) seen[c].add(x[c]);
      }
    }
#pragma unroll
    for (int c = 0; c < kCols; ++c) {
      tops[threadIdx.y][c][threadIdx.x] = seen[c].top;
      sums[threadIdx.y][c][threadIdx.x] = seen[c].sum;
    }
    __syncthreads();
    Online all[kCols];
    for (int y = 0; y < kColumnY; ++y) {
#pragma unroll
      for (int c = 0; c < kCols; ++c) {
        Online other;
        other.top = tops[y][c][threadIdx.x];
        other.sum = sums[y][c][threadIdx.x];
        all[c].join(other);
      }
    }
    __syncthreads();
    if (!tile.inside) continue;
    for (int64_t r = threadIdx.y; r < shape.n; r += kColumnY) {
      const int64_t at = tile.base + r * shape.inner;
      C x[kCols], y[kCols];
      load_columns(p.x + at, x);
#pragma unroll
      for (int c = 0; c < kCols; ++c) {
        C one[1];
        SoftmaxOutput<O, C>({finite_top(all[c].top), all[c].sum}, p.log)(one,
                                                                         [&](int) { return x[c]; });
        y[c] = one[0];
      }
      store_columns(p.y + at, y);
    }
  }
}

template <class T, class S, int kCols>
__global__ void __launch_bounds__(kColumnX* kColumnY)
    softmax_backward_column_kernel(SoftmaxBackward<T, S> p, ColumnShape shape, int64_t tiles) {
  using C = Compute<T>;
  __shared__ C sums[kColumnY][kCols][kColumnX];
  wait_for_predecessor();
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const ColumnTile<kCols> tile(shape, t);
    C sum[kCols] = {};
    if (tile.inside) {
#pragma unroll 4
      for (int64_t r = threadIdx.y; r < shape.n; r += kColumnY) {
        const int64_t at = tile.base + r * shape.inner;
        C dy[kCols], y[kCols];
        load_columns(p.dy + at, dy);
        load_columns(p.y + at, y);
#pragma unroll
        for (int c = 0; c < kCols; ++c) {
          sum[c] += p.log ? dy[c] : dy[c] * y[c];
        }
      }
    }
#pragma unroll
    for (int c = 0; c < kCols; ++c) sums[threadIdx.y][c][threadIdx.x] = sum[c];
    __syncthreads();
#pragma unroll
    for (int c = 0; c < kCols; ++c) {
      sum[c] = 0;
      for (int y = 0; y < kColumnY; ++y) sum[c] += sums[y][c][threadIdx.x];
    }
    __syncthreads();
    if (!tile.inside) continue;
    for (int64_t r = threadIdx.y; r < shape.n; r += kColumnY) {
      const int64_t at = tile.base + r * shape.inner;
      C dy[kCols], y[kCols];
      load_columns(p.dy + at, dy);
      load_columns(p.y + at, y);
      C dx[kCols];
#pragma unroll
      for (int c = 0; c < kCols; ++c) {
        C one[1];
        softmax_grad<S>(one, [&](int) { return dy[c]; }, [&](int) { return y[c]; }, sum[c], p.log);
        dx[c] = one[0];
      }
      store_columns(p.dx + at, dx);
    }
  }
}

}  // namespace fusedops
