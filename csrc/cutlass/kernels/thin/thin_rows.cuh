// d = act(x @ w.T + bias) where w has a side of at most 32: blocks keep w in shared memory and walk
// over tiles of rows of x, which come through a ring of stages. Sums go to shared memory in fp32;
// from there d leaves in pieces of 16 bytes: where the block has all columns a tile's rows of d are
// one run.
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
  bool runs;  // a tile of d begins at 16 bytes, as one of preact does
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
  static constexpr int kChain = 32;
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
    const float* x0 = x.data + (row + int(threadIdx.x % 32)) * x.row_stride;
    for (int first = 0; first < count; first += kChain) {
      add_chain(p, x, w + first * p.plan.w_stride + column, x0 + first * x.col_stride,
                min(kChain, count - first));
    }
  }
  __device__ __forceinline__ void add_chain(const RowsParams& p, const Tile<float>& x,
                                            const float* w, const float* x0, int count) {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) chunk[0][j] = chunk[1][j] = 0.0f;
    const float* x1 = x0 + 32 * x.row_stride;
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
    const int stride = p.plan.sum_stride;
    float* out = sums + (row + int(threadIdx.x % 32)) * stride + column;
    bias += column;
    const int count = part.count - column;
    if (kVec == 4 && stride % 4 == 0 && count >= kGroup) {
#pragma unroll
      for (int j = 0; j < kGroup; j += kVec) {
        Vec<float, kVec> first, second;
#pragma unroll
        for (int v = 0; v < kVec; ++v) {
          first.value[v] = sum[0][j + v] + bias[j + v];
          second.value[v] = sum[1][j + v] + bias[j + v];
        }
        *reinterpret_cast<Vec<float, kVec>*>(out + j) = first;
        *reinterpret_cast<Vec<float, kVec>*>(out + j + 32 * stride) = second;
      }
      return;
    }
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      if (j >= count) break;
      out[j] = sum[0][j] + bias[j];
      out[j + 32 * stride] = sum[1][j] + bias[j];
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

// kCount elements: the sums themselves, where they are wanted, and act(sums). Those from `begin` on
// and before `end` are stored; all of them as one access.
template <class T, int kCount>
__device__ __forceinline__ void store_unit(const RowsParams& p, const float (&values)[kCount],
                                           int64_t at, int begin, int end) {
  using Out = Vec<T, kCount>;
  Out before, after;
#pragma unroll
  for (int i = 0; i < kCount; ++i) before.value[i] = from_compute<T>(values[i]);
  with_activation(p.activation, [&]<Activation kActivation>() {
    resolve_rare<kActivation>(p.activation, [&]<Activation kNow>() {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        after.value[i] = from_compute<T>(activate_as<kNow, kAccuracyOf<T>>(values[i]));
      }
    });
  });
  T* d = static_cast<T*>(p.d) + at;
  T* z = p.preact ? static_cast<T*>(p.preact) + at : nullptr;
  if (begin <= 0 && end >= kCount) {
    if (z) *reinterpret_cast<Out*>(z) = before;
    *reinterpret_cast<Out*>(d) = after;
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i < begin || i >= end) continue;
    if (z) z[i] = before.value[i];
    d[i] = after.value[i];
  }
}

// A tile whose columns are all of d: one run, 16 bytes at a time.
template <class T>
__device__ __forceinline__ void store_run(const RowsParams& p, const float* sums, int64_t row,
                                          int rows) {
  constexpr int kCount = 16 / sizeof(T);
  const int total = rows * p.n, gap = p.plan.sum_stride - p.n;
  for (int i = int(threadIdx.x) * kCount; i < total; i += kThreads * kCount) {
    // NOTE: with gaps between the rows of sums a unit is inside of one (sum_stride).
    const float* from = sums + i + (gap ? i / p.n * gap : 0);
    float values[kCount];
#pragma unroll
    for (int j = 0; j < kCount; j += 4) {
      const auto four = *reinterpret_cast<const Vec<float, 4>*>(from + j);
#pragma unroll
      for (int v = 0; v < 4; ++v) values[j + v] = four.value[v];
    }
    store_unit<T>(p, values, row * p.n + i, 0, total - i);
  }
}

// Row by row, in words: lanes that read neighbours have no bank conflicts.
template <class T>
__device__ __forceinline__ void store_words(const RowsParams& p, Part part, const float* sums,
                                            int64_t row, int rows) {
  constexpr int kCount = 4 / sizeof(T);
  const int units = part.count / kCount + kCount - 1;  // with halves at both ends, one more
  const int step_rows = kThreads / units, step_units = kThreads % units;
  int r = int(threadIdx.x) / units, unit = int(threadIdx.x) % units;
  while (r < rows) {
    const int64_t first = (row + r) * p.n + part.first;
    const int c = unit * kCount - int(first & (kCount - 1));
    const float* from = sums + r * p.plan.sum_stride;
    float values[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = from[max(c + i, 0)];
    store_unit<T>(p, values, first + c, -c, part.count - c);
    r += step_rows;
    unit += step_units;
    if (unit >= units) unit -= units, ++r;
  }
}

template <class T>
__device__ __forceinline__ void store_rows(const RowsParams& p, Part part, const float* sums,
                                           int64_t row) {
  const int rows = int(min(int64_t{p.plan.tile_rows}, p.m - row));
  if (p.runs) {
    store_run<T>(p, sums, row, rows);
  } else {
    store_words<T>(p, part, sums, row, rows);
  }
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
      wait_for_copies<kStages - 2>();
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
  wait_for_copies();
}

}  // namespace fusedops::thin
