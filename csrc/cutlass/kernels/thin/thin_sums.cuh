// d (n, k) = the sums over m rows of a[:, :, None] * b[:, None, :]: a weight gradient, or a product
// whose contraction is what is long. Blocks walk over tiles of rows, which come through a ring of
// stages, and keep their sums in registers; threads or warps that share a tile's rows add theirs at
// the end in a fixed order, and a second kernel adds those of the blocks.
//
// fp32: FMA, the sums of a tile's rows before they meet those of all rows. 16 bit: mma.sync, with
// sums in fp32.
#pragma once

#include "csrc/cutlass/kernels/thin/thin_tile.cuh"

namespace fusedops::thin {

struct SumsParams {
  Source a, b;
  SumsPlan plan;
  int64_t m;
  int n, k;
  float* partial;  // (gridDim.x, n, k)
};

// ---- fp32: an owner is a thread ----

template <int kOwnN, int kOwnK>
struct FmaSums {
  using T = float;
  static constexpr int kOwners = kSumThreads, kLanes = 1;
  float sum[kOwnN][kOwnK];

  static __device__ __forceinline__ int owner() { return threadIdx.x; }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kOwnN * kOwnK; ++i) (&sum[0][0])[i] = 0.0f;
  }
  // An owner's columns are `tiles` apart, so that lanes read neighbours.
  static __device__ __forceinline__ int n_of(const SumsPlan& plan, int tile, int i) {
    return tile / plan.tiles_k + i * plan.tiles_n;
  }
  static __device__ __forceinline__ int k_of(const SumsPlan& plan, int tile, int j) {
    return tile % plan.tiles_k + j * plan.tiles_k;
  }
  __device__ __forceinline__ void add_tile(const SumsPlan& plan, const Tile<float>& a,
                                           const Tile<float>& b, int tile, int split) {
    float rows[kOwnN][kOwnK] = {};
    const int n = n_of(plan, tile, 0) * a.col_stride, k = k_of(plan, tile, 0) * b.col_stride;
    const int step_n = plan.tiles_n * a.col_stride, step_k = plan.tiles_k * b.col_stride;
#pragma unroll 2
    for (int row = split; row < plan.tile_rows; row += plan.splits) {
      const float* from_a = a.data + row * a.row_stride + n;
      const float* from_b = b.data + row * b.row_stride + k;
      float x[kOwnN], y[kOwnK];
#pragma unroll
      for (int i = 0; i < kOwnN; ++i) x[i] = from_a[i * step_n];
#pragma unroll
      for (int j = 0; j < kOwnK; ++j) y[j] = from_b[j * step_k];
#pragma unroll
      for (int i = 0; i < kOwnN; ++i) {
#pragma unroll
        for (int j = 0; j < kOwnK; ++j) rows[i][j] = fmaf(x[i], y[j], rows[i][j]);
      }
    }
#pragma unroll
    for (int i = 0; i < kOwnN; ++i) {
#pragma unroll
      for (int j = 0; j < kOwnK; ++j) sum[i][j] += rows[i][j];
    }
  }
  // Calls visit(n, k, sum) for each of its sums.
  template <class Visit>
  __device__ __forceinline__ void visit(const SumsPlan& plan, int tile, Visit&& visit) const {
#pragma unroll
    for (int i = 0; i < kOwnN; ++i) {
#pragma unroll
      for (int j = 0; j < kOwnK; ++j) visit(n_of(plan, tile, i), k_of(plan, tile, j), sum[i][j]);
    }
  }
};

// ---- 16 bit: an owner is a warp ----

template <class Half, int kOwnN, int kOwnK>
struct MmaSums {
  using T = Half;
  static constexpr int kOwners = kSumThreads / 32, kLanes = 32;
  static constexpr int kTilesN = kOwnN / 16, kTilesK = kOwnK / 8;
  float sum[kTilesN][kTilesK][4];

  static __device__ __forceinline__ int owner() { return threadIdx.x / 32; }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kTilesN * kTilesK * 4; ++i) (&sum[0][0][0])[i] = 0.0f;
  }
  __device__ __forceinline__ void add_tile(const SumsPlan& plan, const Tile<T>& a, const Tile<T>& b,
                                           int tile, int split) {
    const int lane = threadIdx.x % 32, group = lane / 4, place = lane % 4 * 2;
    const int n = tile / plan.tiles_k * kOwnN + group, k = tile % plan.tiles_k * kOwnK + group;
    const auto pair = [](const Tile<T>& x, int row, int col) {
      return join(x.at(row, col), x.at(row + 1, col));
    };
    for (int row = split * 16; row < plan.tile_rows; row += plan.splits * 16) {
      uint32_t x[kTilesN][4];
#pragma unroll
      for (int i = 0; i < kTilesN; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          x[i][j] = pair(a, row + place + j / 2 * 8, n + i * 16 + j % 2 * 8);
        }
      }
#pragma unroll
      for (int j = 0; j < kTilesK; ++j) {
        const uint32_t y0 = pair(b, row + place, k + j * 8);
        const uint32_t y1 = pair(b, row + place + 8, k + j * 8);
#pragma unroll
        for (int i = 0; i < kTilesN; ++i) mma_k16<T>(sum[i][j], x[i], y0, y1);
      }
    }
  }
  template <class Visit>
  __device__ __forceinline__ void visit(const SumsPlan& plan, int tile, Visit&& visit) const {
    const int lane = threadIdx.x % 32;
    const int n = tile / plan.tiles_k * kOwnN + lane / 4;
    const int k = tile % plan.tiles_k * kOwnK + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kTilesN; ++i) {
#pragma unroll
      for (int j = 0; j < kTilesK; ++j) {
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          visit(n + i * 16 + v / 2 * 8, k + j * 8 + v % 2, sum[i][j][v]);
        }
      }
    }
  }
};

// ---- kernel ----

// The sum of `splits` floats that lie `stride` apart, in a fixed order. Eight chains, so that none
// is longer than 16: one of 128 would round more than all else of an fp32 sum.
__device__ __forceinline__ float join_splits(const float* sums, int stride, int splits) {
  constexpr int kChains = 8;
  float chain[kChains] = {};
  for (int first = 0; first < splits; first += kChains) {
#pragma unroll
    for (int i = 0; i < kChains; ++i) {
      if (first + i < splits) chain[i] += sums[(first + i) * stride];
    }
  }
#pragma unroll
  for (int step = kChains / 2; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i < step; ++i) chain[i] += chain[i + step];
  }
  return chain[0];
}

// blockIdx.y: the part of the sums.
template <class Owned>
__global__ void __launch_bounds__(kSumThreads, 2)
    sums_kernel(const __grid_constant__ SumsParams p) {
  using T = typename Owned::T;
  extern __shared__ __align__(16) uint32_t shared_words[];
  const SumsPlan& plan = p.plan;
  const int stage_words = plan.a.total + plan.b.total;
  const int first_n = int(blockIdx.y) / plan.blocks_k * plan.block_n;
  const int first_k = int(blockIdx.y) % plan.blocks_k * plan.block_k;
  const int tile = Owned::owner() % plan.tiles(), split = Owned::owner() / plan.tiles();

  // NOTE: columns beside a's and b's are read for sums that nobody wants, as zeros.
  for (int i = threadIdx.x; i < kStages * stage_words; i += kSumThreads) shared_words[i] = 0;
  wait_for_predecessor();
  __syncthreads();

  const int64_t tiles = (p.m - 1) / plan.tile_rows + 1;
  int64_t next = blockIdx.x;
  int next_stage = 0;
  const auto start_next = [&] {
    if (next < tiles) {
      uint32_t* words = shared_words + next_stage * stage_words;
      start_tile<T, kSumThreads>(p.a, words, next * plan.tile_rows, first_n);
      start_tile<T, kSumThreads>(p.b, words + plan.a.total, next * plan.tile_rows, first_k);
      next += gridDim.x;
    }
    next_stage = next_stage + 1 == kStages ? 0 : next_stage + 1;
    commit_copies();
  };
  for (int i = 0; i < kStages - 1; ++i) start_next();

  Owned owned;
  owned.clear();
  int stage = 0;
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    wait_for_copies<kStages - 2>();
    __syncthreads();
    start_next();
    const uint32_t* words = shared_words + stage * stage_words;
    const Tile<T> a(p.a, words, t * plan.tile_rows, first_n);
    const Tile<T> b(p.b, words + plan.a.total, t * plan.tile_rows, first_k);
    if (split < plan.splits) owned.add_tile(plan, a, b, tile, split);
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  wait_for_copies();
  __syncthreads();

  // Sums of all splits, (splits, n, k) of the block, in order
  const int width = plan.tiles_k * plan.own_k, all = plan.tiles() * plan.own_n * plan.own_k;
  float* shared = reinterpret_cast<float*>(shared_words);
  if (split < plan.splits) {
    owned.visit(plan, tile,
                [&](int n, int k, float sum) { shared[split * all + n * width + k] = sum; });
  }
  __syncthreads();
  const int count_n = min(plan.block_n, p.n - first_n), count_k = min(plan.block_k, p.k - first_k);
  float* partial = p.partial + blockIdx.x * int64_t{p.n} * p.k;
  for (int i = threadIdx.x; i < count_n * count_k; i += kSumThreads) {
    const int n = i / count_k, k = i % count_k;
    partial[int64_t{first_n + n} * p.k + first_k + k] =
        join_splits(shared + n * width + k, all, plan.splits);
  }
}

}  // namespace fusedops::thin
