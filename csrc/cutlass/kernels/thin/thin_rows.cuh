// d = act(x @ w.T + bias) where w has a side of at most 32: blocks keep w in shared memory and walk
// over tiles of rows of x, which come through a ring of stages. Sums go to shared memory in fp32;
// from there d leaves as one run of words, since a tile's rows of d lie one after the other.
//
// fp32: FMA, lanes are rows; a chain of additions is at most 32 long. 16 bit: mma.sync, with sums
// in fp32.
#pragma once

#include "csrc/common/device/activation.cuh"
#include "csrc/common/device/vec.cuh"
#include "csrc/cutlass/kernels/thin/thin_tile.cuh"

namespace fusedops::thin {

struct RowsParams {
  Source x;
  RowsPlan plan;
  int64_t m;
  int n, k;
  const void* w;
  int64_t w_stride_n, w_stride_k;
  const void* bias;
  void* d;
  void* preact;
  Activation activation;
};

// The columns of d that a block forms.
struct Part {
  int first, count;
};

// ---- fp32 ----

// kVectors: rows of x are read 16 bytes at a time.
template <int kGroup, bool kVectors>
struct FmaItem {
  using T = float;
  static constexpr int kRows = 64;
  static constexpr int kVec = kGroup < 4 ? kGroup : 4;
  float sum[2][kGroup], chunk[2][kGroup];

  // w as (k, columns): one vector serves all lanes.
  static __device__ __forceinline__ void load_w(const RowsParams& p, Part part, float* w) {
    const auto* source = static_cast<const float*>(p.w) + part.first * p.w_stride_n;
    const int columns = p.plan.w_stride;
    for (int i = threadIdx.x; i < p.plan.padded_k * columns; i += kThreads) {
      const int k = i / columns, n = i % columns;
      const bool inside = k < p.k && n < part.count;
      w[i] = inside ? source[n * p.w_stride_n + k * p.w_stride_k] : 0.0f;
    }
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) sum[0][j] = sum[1][j] = 0.0f;
  }
  __device__ __forceinline__ void add(const float* w, float a0, float a1) {
#pragma unroll
    for (int j = 0; j < kGroup; j += kVec) {
      const auto b = *reinterpret_cast<const Vec<float, kVec>*>(w + j);
#pragma unroll
      for (int v = 0; v < kVec; ++v) {
        chunk[0][j + v] = fmaf(a0, b.value[v], chunk[0][j + v]);
        chunk[1][j + v] = fmaf(a1, b.value[v], chunk[1][j + v]);
      }
    }
  }
  // The products of `count` of K.
  __device__ __forceinline__ void multiply(const RowsParams& p, const Tile<float>& x,
                                           const float* w, int row, int column, int count) {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) chunk[0][j] = chunk[1][j] = 0.0f;
    const float* x0 = x.data + (row + int(threadIdx.x % 32)) * x.row_stride;
    const float* x1 = x0 + 32 * x.row_stride;
    w += column;
    if constexpr (kVectors) {
#pragma unroll 2
      for (int k = 0; k < count; k += 4) {
        const auto a0 = *reinterpret_cast<const Vec<float, 4>*>(x0 + k);
        const auto a1 = *reinterpret_cast<const Vec<float, 4>*>(x1 + k);
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          add(w + (k + v) * p.plan.w_stride, a0.value[v], a1.value[v]);
        }
      }
    } else {
#pragma unroll 4
      for (int k = 0; k < count; ++k) {
        add(w + k * p.plan.w_stride, x0[k * x.col_stride], x1[k * x.col_stride]);
      }
    }
#pragma unroll
    for (int j = 0; j < kGroup; ++j) sum[0][j] += chunk[0][j], sum[1][j] += chunk[1][j];
  }
  __device__ __forceinline__ void store(const RowsParams& p, Part part, float* sums,
                                        const float* bias, int row, int column) const {
    float* out = sums + (row + int(threadIdx.x % 32)) * p.plan.sum_stride;
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      if (column + j >= part.count) break;
      out[column + j] = sum[0][j] + bias[column + j];
      out[column + j + 32 * p.plan.sum_stride] = sum[1][j] + bias[column + j];
    }
  }
};

// ---- 16 bit ----

// kPairs: rows of x begin with a word.
template <class Half, int kGroup, bool kPairs>
struct MmaItem {
  using T = Half;
  static constexpr int kRows = 32;
  static constexpr int kTiles = kGroup / 8;
  float sum[2][kTiles][4];

  // w as (columns, k): pairs along K are words.
  static __device__ __forceinline__ void load_w(const RowsParams& p, Part part, float* words) {
    const T* source = static_cast<const T*>(p.w) + part.first * p.w_stride_n;
    T* w = reinterpret_cast<T*>(words);
    const int columns = p.plan.groups * p.plan.group, line = p.plan.w_stride * 2;
    for (int i = threadIdx.x; i < columns * line; i += kThreads) {
      const int n = i / line, k = i % line;
      const bool inside = k < p.k && n < part.count;
      w[i] = inside ? source[n * p.w_stride_n + k * p.w_stride_k] : T(0.0f);
    }
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < 2 * kTiles * 4; ++i) (&sum[0][0][0])[i] = 0.0f;
  }
  // Zero from `count` on: a flat tile has the next row there.
  static __device__ __forceinline__ uint32_t x_pair(const Tile<T>& x, int row, int k, int count) {
    if constexpr (kPairs) {
      return k < count ? x.pair(row, k) : 0;
    } else {
      const T zero(0.0f);
      return join(k < count ? x.at(row, k) : zero, k + 1 < count ? x.at(row, k + 1) : zero);
    }
  }
  // w begins at the first of the `count` of K.
  __device__ __forceinline__ void multiply(const RowsParams& p, const Tile<T>& x, const float* w,
                                           int row, int column, int count) {
    const int lane = threadIdx.x % 32, group = lane / 4, place = lane % 4;
    const auto* words = reinterpret_cast<const uint32_t*>(w) + (column + group) * p.plan.w_stride;
    for (int k = 0; k < count; k += 16) {
      uint32_t a[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          a[i][j] = x_pair(x, row + i * 16 + group + j % 2 * 8, k + place * 2 + j / 2 * 8, count);
        }
      }
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        const uint32_t* b = words + j * 8 * p.plan.w_stride + k / 2 + place;
        const uint32_t b0 = b[0], b1 = b[4];
        mma_k16<T>(sum[0][j], a[0], b0, b1);
        mma_k16<T>(sum[1][j], a[1], b0, b1);
      }
    }
  }
  __device__ __forceinline__ void store(const RowsParams& p, Part part, float* sums,
                                        const float* bias, int row, int column) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          const int r = row + i * 16 + lane / 4 + v / 2 * 8;
          const int c = column + j * 8 + lane % 4 * 2 + v % 2;
          if (c < part.count) sums[r * p.plan.sum_stride + c] = sum[i][j][v] + bias[c];
        }
      }
    }
  }
};

// ---- the result ----

// act(sums) and, where it is wanted, the sums themselves. kVec elements are a store: where rows of
// d are whole stores, or where the part is all of them, so that the tile is one run.
template <class T, int kVec>
__device__ __forceinline__ void store_rows(const RowsParams& p, Part part, const float* sums,
                                           int64_t row) {
  using Out = Vec<T, kVec>;
  const int rows = int(min(int64_t{p.plan.tile_rows}, p.m - row)), stride = p.plan.sum_stride;
  const int64_t first = row * p.n + part.first;
  T* d = static_cast<T*>(p.d) + first;
  T* z = p.preact ? static_cast<T*>(p.preact) + first : nullptr;
  constexpr int kStep = kThreads * kVec;
  const int step_rows = kStep / part.count, step_columns = kStep % part.count;
  const int begin = threadIdx.x * kVec;
  with_activation(p.activation, [&]<Activation kActivation>() {
    int r = begin / part.count, c = begin % part.count;
    while (r < rows) {
      // NOTE: the element after the last one is not stored, but it has to be one.
      const bool wraps = kVec > 1 && c + 1 == part.count, last = wraps && r + 1 == rows;
      const float* from = sums + r * stride + c;
      const float v[2] = {from[0], kVec == 1 || last ? 0.0f : from[wraps ? stride - c : 1]};
      Out before, after;
#pragma unroll
      for (int j = 0; j < kVec; ++j) before.value[j] = from_compute<T>(v[j]);
      resolve_rare<kActivation>(p.activation, [&]<Activation kNow>() {
#pragma unroll
        for (int j = 0; j < kVec; ++j) {
          after.value[j] = from_compute<T>(activate_as<kNow, kAccuracyOf<T>>(v[j]));
        }
      });
      const int64_t at = int64_t{r} * p.n + c;
      if (!last) {
        if (z) *reinterpret_cast<Out*>(z + at) = before;
        *reinterpret_cast<Out*>(d + at) = after;
      } else {
        if (z) z[at] = before.value[0];
        d[at] = after.value[0];
      }
      r += step_rows;
      c += step_columns;
      if (c >= part.count) c -= part.count, ++r;
    }
  });
}

template <class T>
__device__ __forceinline__ void store_rows(const RowsParams& p, Part part, const float* sums,
                                           int64_t row) {
  if constexpr (sizeof(T) == 2) {
    if (p.plan.parts == 1 || p.n % 2 == 0) return store_rows<T, 2>(p, part, sums, row);
  }
  store_rows<T, 1>(p, part, sums, row);
}

// ---- kernel ----

template <class Item>
__global__ void __launch_bounds__(kThreads, 4) rows_kernel(const __grid_constant__ RowsParams p) {
  using T = typename Item::T;
  extern __shared__ __align__(16) uint32_t shared_words[];
  const RowsPlan& plan = p.plan;
  uint32_t* ring = shared_words;
  float* w = reinterpret_cast<float*>(ring + kStages * plan.x.total);
  float* bias = w + plan.w_words;
  float* sums = bias + plan.bias_words;
  const int warp = threadIdx.x / 32;
  // Blocks of a tile's parts are neighbours: they share x in L2.
  const int64_t first_tile = blockIdx.x / plan.parts, step = gridDim.x / plan.parts;
  Part part{int(blockIdx.x % plan.parts) * plan.part, 0};
  part.count = min(plan.part, p.n - part.first);

  // NOTE: what no copy writes are the zeros beside x.
  for (int i = threadIdx.x; i < kStages * plan.x.total; i += kThreads) ring[i] = 0;
  wait_for_predecessor();
  Item::load_w(p, part, w);
  for (int i = threadIdx.x; i < plan.bias_words; i += kThreads) {
    const bool inside = p.bias && i < part.count;
    bias[i] = inside ? to_compute(static_cast<const T*>(p.bias)[part.first + i]) : 0.0f;
  }
  __syncthreads();

  // A step is a chunk of K of a tile.
  const int64_t tiles = (p.m - 1) / plan.tile_rows + 1;
  int64_t next_tile = first_tile;
  int next_chunk = 0, next_stage = 0;
  const auto start_next = [&] {
    if (next_tile < tiles) {
      start_tile<T, kThreads>(p.x, ring + next_stage * plan.x.total, next_tile * plan.tile_rows,
                              int64_t{next_chunk} * plan.chunk);
      if (++next_chunk == plan.chunks) next_chunk = 0, next_tile += step;
    }
    next_stage = next_stage + 1 == kStages ? 0 : next_stage + 1;
    commit_copies();
  };
  for (int i = 0; i < kStages - 1; ++i) start_next();

  int stage = 0;
  Item item;
  for (int64_t tile = first_tile; tile < tiles; tile += step) {
    const int64_t row = tile * plan.tile_rows;
    for (int chunk = 0; chunk < plan.chunks; ++chunk) {
      wait_copies<kStages - 2>();
      __syncthreads();
      start_next();
      const int k = chunk * plan.chunk;
      const Tile<T> x(p.x, ring + stage * plan.x.total, row, k);
      const float* w_chunk = w + (sizeof(T) == 2 ? k / 2 : k * plan.w_stride);
      const int count = min(plan.chunk, p.k - k);
      // NOTE: with several chunks there is at most one item to a warp, whose sums stay.
      for (int i = warp; i < plan.items; i += kThreads / 32) {
        const int first = i / plan.groups * Item::kRows, column = i % plan.groups * plan.group;
        if (chunk == 0) item.clear();
        item.multiply(p, x, w_chunk, first, column, count);
        if (chunk == plan.chunks - 1) item.store(p, part, sums, bias, first, column);
      }
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    __syncthreads();
    store_rows<T>(p, part, sums, row);
  }
  wait_copies<0>();
}

}  // namespace fusedops::thin
