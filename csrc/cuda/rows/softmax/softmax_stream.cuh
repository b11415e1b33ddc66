// softmax, log_softmax and their backward where a row is read twice: rows that no team can hold,
// and dims that are not the innermost.
#pragma once

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

// ---- long rows: a block per row ----

template <class T, class O>
__global__ void __launch_bounds__(kStreamThreads, kStreamBlocks)
    softmax_long_kernel(SoftmaxForward<T, O> p, int64_t rows, int64_t n) {
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<T>;
  __shared__ RowSlot<C> slots[2 * kStreamThreads / 32];
  wait_for_predecessor();
  RowTeam<C> team(RowLayout{rows, 0, 32, 1, 0}, slots);
  for (int64_t row = team.first(); row < rows; row += team.stride()) {
    const T* x = p.x + row * p.x_stride;
    O* y = p.y + row * n;
    const int shift = static_cast<int>(row * n % kVec);
    OnlineSum<O, C> seen;
    stream_row<T, kVec>(x, n, shift, team.index(), team.size(), [&](const auto& chunk) {
      chunk.each([&](int e) { seen.raise(chunk.vec.at(e)); });
      const C base = finite_top(seen.top);
      chunk.each([&](int e) { seen.sum += exp_from<O>(chunk.vec.at(e), base); });
    });
    const C top = team.warp_max(seen.top);
    const C sum = team.warp_sum(seen.sum * exp_from<O>(seen.top, finite_top(top)));
    const SoftmaxOutput<O, C> output(join_normaliser<O>(team, top, sum), p.log);
    stream_row<T, kVec>(x, n, shift, team.index(), team.size(), [&](const auto& chunk) {
      C out[kVec];
      output(out, [&](int e) { return chunk.vec.at(e); });
      store_like(y, chunk, out);
    });
  }
}

template <class T, class S>
__global__ void __launch_bounds__(kStreamThreads, kStreamBlocks)
    softmax_backward_long_kernel(SoftmaxBackward<T, S> p, int64_t rows, int64_t n) {
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<S>;
  __shared__ RowSlot<C> slots[2 * kStreamThreads / 32];
  wait_for_predecessor();
  RowTeam<C> team(RowLayout{rows, 0, 32, 1, 0}, slots);
  for (int64_t row = team.first(); row < rows; row += team.stride()) {
    const S* dy = p.dy + row * p.dy_stride;
    const S* y = p.y + row * p.y_stride;
    T* dx = p.dx + row * n;
    const int shift = static_cast<int>(row * n % kVec);
    C sum = 0;
    stream_row<S, kVec>(dy, n, shift, team.index(), team.size(), [&](const auto& chunk) {
      const auto out = load_like(y, chunk);
      C part = 0;  // NOTE: of the chunk, since a chain over the whole row would round too often
      chunk.each([&](int e) { part += p.log ? chunk.vec.at(e) : chunk.vec.at(e) * out.at(e); });
      sum += part;
    });
    sum = team.sum(sum);
    stream_row<S, kVec>(dy, n, shift, team.index(), team.size(), [&](const auto& chunk) {
      const auto out = load_like(y, chunk);
      C grad[kVec];
      softmax_grad<S>(
          grad, [&](int e) { return chunk.vec.at(e); }, [&](int e) { return out.at(e); }, sum,
          p.log);
      store_like(dx, chunk, grad);
    });
  }
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
