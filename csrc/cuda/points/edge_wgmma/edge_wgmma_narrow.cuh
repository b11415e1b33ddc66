// edge_wgmma_backward.cuh for layers of 32 or 64 channels. A warpgroup has rows and a sum of dW of
// its own: it waits for no other before the end.
#pragma once

#include <type_traits>

#include "csrc/cuda/points/edge_wgmma/edge_wgmma.cuh"
#include "csrc/cuda/points/edge_wgmma/wgmma_columns.cuh"
#include "csrc/cuda/points/edges/edge_backward.cuh"

namespace fusedops {

inline constexpr int kEdgeNarrowOut = 64;  // at most, columns of dY in shared memory

// Where row lane % 8 of matrix lane / 8 of 16 x 16 values is, of rows `ld` elements apart or of
// pieces (8 rows take 8 ld elements then).
template <class T>
__device__ __forceinline__ T* matrix_row(T* rows, int ld, bool pieces) {
  const int i = lane_id() / 8, r = lane_id() % 8;
  return pieces ? rows + i % 2 * 8 * ld + i / 2 * 64 + 8 * r
                : rows + (i % 2 * 8 + r) * ld + i / 2 * 8;
}

// EdgeColumnSums of 32 columns without shared memory: a lane sums its own columns.
struct EdgeLaneSums {
  static constexpr int kWidth = 32;
  float2 dz[kWidth / 8] = {}, dzy[kWidth / 8] = {};

  template <class T>
  __device__ __forceinline__ void add(const EdgeOperand<kWidth>& gradients,
                                      const EdgeOperand<kWidth>& values) {
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int block = 2 * k + i / 2;
        const float2 d = unpack_pair<T>(gradients.a[k][i]), y = unpack_pair<T>(values.a[k][i]);
        dz[block].x += d.x;
        dz[block].y += d.y;
        dzy[block].x = fmaf(d.x, y.x, dzy[block].x);
        dzy[block].y = fmaf(d.y, y.y, dzy[block].y);
      }
    }
  }

  // As write_column_sums does.
  __device__ __forceinline__ void write(float* stage, float* to) {
    __syncthreads();
    float* own = stage + warp_id() * 2 * kWidth + 2 * (lane_id() % 4);
#pragma unroll
    for (int b = 0; b < kWidth / 8; ++b) {
      float* values[] = {&dz[b].x, &dz[b].y, &dzy[b].x, &dzy[b].y};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float sum = *values[i];
#pragma unroll
        for (int mask = 4; mask < 32; mask *= 2) sum += __shfl_xor_sync(kAllLanes, sum, mask);
        if (lane_id() < 4) own[i / 2 * kWidth + 8 * b + i % 2] = sum;
      }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < 2 * kWidth; i += kEdgeThreads) {
      float sum = 0.f;
      for (int w = 0; w < kEdgeWarps; ++w) sum += stage[w * 2 * kWidth + i];
      to[i] = sum;
    }
  }
};

// Writes dz of the first `rows` of a tile's rows and adds it to the sums, with centred y.
template <class T, class Tiles, class Sums, int kHidden>
__device__ __forceinline__ void write_wgmma_rows(const EdgeBackward<T>& a, const Tiles& tiles,
                                                 const EdgeTile& tile, int rows,
                                                 const EdgeOperand<kHidden>& dz,
                                                 const EdgeOperand<kHidden>& centred, Sums& sums) {
  const T* from = tiles.x_rows();
  T* at = matrix_row(tiles.x_rows(), Tiles::kX, false);
#pragma unroll
  for (int k = 0; k < kHidden / 16; ++k) edge_store_matrices(at + 16 * k, dz.a[k]);
  __syncwarp();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane_id() / 4 + 8 * half;
    if (row >= rows) continue;
    T* to = a.below + tile.edge(half, a.problem.k) * kHidden;
#pragma unroll
    for (int column = 8 * (lane_id() % 4); column < kHidden; column += 32) {
      *reinterpret_cast<uint4*>(to + column) =
          *reinterpret_cast<const uint4*>(from + row * Tiles::kX + column);
    }
  }
  if constexpr (std::is_same_v<Sums, EdgeLaneSums>) {
    sums.template add<T>(dz, centred);
  } else {
    sums.add_gradients(from, Tiles::kX);
    __syncwarp();
#pragma unroll
    for (int k = 0; k < kHidden / 16; ++k) edge_store_matrices(at + 16 * k, centred.a[k]);
    __syncwarp();
    sums.add_products(from, Tiles::kX);
  }
  __syncwarp();
}

// kWinners: what comes from above is a maximum's gradient; else rows are there.
template <class T, int kHidden, int kOut, bool kWinners>
struct EdgeNarrowBackward {
  static constexpr int kChunk = 32;
  static constexpr bool kByLane = kHidden == EdgeLaneSums::kWidth;
  // NOTE: WGMMA reads 64 columns of dY, whatever is behind kOut: they must be its own rows'.
  using Tiles = EdgeTiles<T, kHidden, kEdgeNarrowOut, EdgePass::kBoth>;
  using Sums = std::conditional_t<kByLane, EdgeLaneSums, EdgeColumnSums<kHidden>>;
  static_assert(kHidden <= 64 && kOut <= kEdgeNarrowOut && kEdgeWarps == 8);

  const EdgeBackward<T>& a;
  EdgeWgmmaWeights w;
  Tiles tiles;              // dY and x in pieces
  EdgeColumns<kHidden> dw;  // of 64 rows; those behind kOut hold anything
  Sums sums;
  EdgeGathered gathered;
  EdgeOperand<kHidden> x, centred;

  __device__ __forceinline__ void activate_chunk(const float4* affine, int c,
                                                 EdgeColumns<kChunk>& y, EdgeOperand<kHidden>& to,
                                                 bool is_last, const float* center) {
    if (is_padding(affine[kHidden / 2 - 1].z)) clear_padding(affine, c, y.y);
    activate<T>(a.problem, affine, c, y.y, to, is_last, center, centred);
  }

  // Starts y = from W^T for the columns that `weight` begins at, of a matrix of `rows` rows.
  __device__ __forceinline__ void start_chunk(EdgeColumns<kChunk>& y,
                                              const EdgeOperand<kHidden>& from, uint64_t weight,
                                              int rows) {
    edge_fence();
    multiply_columns_first<T>(y, from.a[0], weight);
#pragma unroll
    for (int k = 1; k < kHidden / 16; ++k) {
      multiply_columns<T>(y, from.a[k], weight + static_cast<uint64_t>(2 * k * rows));
    }
    edge_commit();
  }

  // wgmma_hidden_layers with as few registers.
  __device__ __forceinline__ void hidden(const EdgeTile& tile, const EdgeTile& next) {
    const EdgeProblem<T>& p = a.problem;
    const float4* affine = w.affine;
    const float* center = edge_reread(a.center);
    gathered.wait();
#pragma unroll
    for (int c = 0; c < kHidden / kChunk; ++c) {
      EdgeColumns<kChunk> y;
      y.clear();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (gathered.rows) add_row(y.y, gathered.share(half, c), half);
        if (p.group_rows) {
          const int64_t row = tile.group(half) * kHidden + kChunk * c + 8 * (lane_id() % 4);
          add_row(y.y, p.group_rows + row, half);
        }
      }
      edge_fence();
      multiply_columns<T>(y, gathered.operand, w.first + static_cast<uint64_t>(c * kChunk));
      edge_commit();
      edge_wait<0>();
      y.settle();
      activate_chunk(affine, c, y, x, p.layers == 2, center);
    }
    gathered.start_copy(p, next, 0, kHidden);
    uint64_t weight = w.hidden;
#pragma unroll 1
    for (int l = 1; l < p.layers - 1; ++l) {
      affine += kHidden / 2;
      EdgeOperand<kHidden> following;
#pragma unroll
      for (int c = 0; c < kHidden / kChunk; ++c) {
        EdgeColumns<kChunk> y;
        start_chunk(y, x, weight + static_cast<uint64_t>(c * kChunk), kHidden);
        edge_wait<0>();
        y.settle();
        activate_chunk(affine, c, y, following, l == p.layers - 2, center);
      }
      x = following;
      weight += kHidden * kHidden / kEdgePlane;
    }
  }

  // x and the gradient of y_l of a warp's rows go into shared memory.
  __device__ __forceinline__ void compute(const EdgeTile& tile, const EdgeTile& next) {
    const EdgeProblem<T>& p = a.problem;
    const int channel = 2 * (lane_id() % 4);
    int64_t at[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = kWinners ? tile.group(half) : tile.edge(half, p.k);
      at[half] = row * kOut + channel;
    }
    EdgeAbove above;
    if constexpr (kByLane) above.load<kWinners>(a, at, 0);
    hidden(tile, next);
    T* x_at = matrix_row(tiles.x_rows(), Tiles::kX, true);
    T* dy_at = matrix_row(tiles.dy_rows(), Tiles::kDy, true);
    const float4* affine = edge_reread(p.affine) + ((p.layers - 1) * kHidden + channel) / 2;
    const float4* dense = edge_reread(a.dense) + channel / 2;
#pragma unroll
    for (int c = 0; c < kOut / kChunk; ++c) {
      EdgeColumns<kChunk> y;
      start_chunk(y, x, w.last + static_cast<uint64_t>(c * kChunk), kOut);
      if (!kByLane || c > 0) above.load<kWinners>(a, at, c);
      if (c == 0) {
#pragma unroll
        for (int k = 0; k < kHidden / 16; ++k) edge_store_matrices(x_at + 8 * 16 * k, x.a[k]);
      }
      edge_wait<0>();
      y.settle();
      if (!a.dense) y.clear();
      output_gradient<kWinners>(a, tile, above, affine + 16 * c, dense + 16 * c, y.y);
      EdgeOperand<kChunk> dy;
      store_operand<T>(y.y, 0, dy);
      edge_store_matrices(dy_at + 8 * kChunk * c, dy.a[0]);
      edge_store_matrices(dy_at + 8 * (kChunk * c + 16), dy.a[1]);
    }
  }

  // dz takes the place of x, dW gets the warpgroup's rows.
  __device__ __forceinline__ void multiply() {
    const int first = edge_warpgroup() * 4 * kEdgeRows;
    const T* rows = tiles.dy + first * Tiles::kDy;
    const uint64_t dy = edge_descriptor(rows, 8, Tiles::kDy);
    EdgeColumns<kHidden> dx;
    edge_fence();
    multiply_columns_first<T, false>(dx, dy, w.transposed);
#pragma unroll
    for (int k = 1; k < kOut / 16; ++k) {
      multiply_columns<T, false>(dx, dy + 16 * k, w.transposed + 16 * k);
    }
    edge_commit();
    uint64_t gradients = edge_descriptor(rows, Tiles::kDy, 8);
    uint64_t values = edge_descriptor(tiles.x + first * Tiles::kX, Tiles::kX, 8);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      multiply_columns<T, true>(dw, gradients, values);
      gradients += 2 * Tiles::kDy;
      values += 2 * Tiles::kX;
    }
    edge_commit();
    edge_wait<1>();
    dx.settle();
    through_activation<T>(a.problem, dx.y, x);
    edge_wait<0>();
    dw.settle();
  }

  __device__ __forceinline__ void run() {
    const EdgeProblem<T>& p = a.problem;
    const int end = __ldg(p.ends + p.groups - 1);
    const int64_t stride = int64_t{gridDim.x} * kEdgeWarps * kEdgeRows;
    const auto load = [&](int64_t first) {
      return first < end ? load_tile(p, static_cast<int>(first), end) : no_tile();
    };
    int64_t common = (int64_t{blockIdx.x} * kEdgeWarps + edge_warpgroup() * 4) * kEdgeRows;
    const int own = warp_id() % 4 * kEdgeRows;
    EdgeTile tile = load(common + own);
    gathered.start_copy(p, tile, 0, kHidden);
    for (; common < end; common += stride) {
      const int64_t first = common + own;
      const EdgeTile next = load(first + stride);
      compute(tile, next);
      if (first >= end) {
        __syncwarp();
        tiles.clear_rows();
      }
      publish_operands();
      edge_warpgroup_barrier();
      multiply();
      edge_warpgroup_barrier();
      if (first < end) {
        const int rows = static_cast<int>(min(end - first, int64_t{kEdgeRows}));
        write_wgmma_rows(a, tiles, tile, rows, x, centred, sums);
      }
      tile = next;
    }
    gathered.wait();
  }

  // The sum of both warpgroups' dW; to: [kOut][kHidden].
  __device__ __forceinline__ void write_weights(float* stage, float* to) const {
    const int row = warp_id() % 4 * 16 + lane_id() / 4, column = 2 * (lane_id() % 4);
    const auto each = [&](auto&& with) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (row + 8 * half >= kOut) continue;
#pragma unroll
        for (int b = 0; b < kHidden / 8; ++b) {
          with((row + 8 * half) * kHidden + 8 * b + column, dw.y[b][2 * half],
               dw.y[b][2 * half + 1]);
        }
      }
    };
    __syncthreads();
    if (edge_warpgroup() == 1) {
      each([&](int at, float d, float e) { *reinterpret_cast<float2*>(stage + at) = {d, e}; });
    }
    __syncthreads();
    if (edge_warpgroup() == 0) {
      each([&](int at, float d, float e) {
        const float2 other = *reinterpret_cast<const float2*>(stage + at);
        *reinterpret_cast<float2*>(to + at) = {d + other.x, e + other.y};
      });
    }
  }
};

template <class T, int kHidden, int kOut, bool kWinners>
__global__ void __launch_bounds__(kEdgeThreads, 2)
    edge_wgmma_narrow_kernel(const __grid_constant__ EdgeBackward<T> a) {
  using Pass = EdgeNarrowBackward<T, kHidden, kOut, kWinners>;
  using Tiles = typename Pass::Tiles;
  static_assert(Tiles::kBytes >= 4 * (kOut * kHidden + 2 * kHidden * kEdgeWarps));
  extern __shared__ __align__(16) unsigned char memory[];
  const EdgeProblem<T>& p = a.problem;
  SharedTaker shared{memory};
  const Tiles tiles{shared.take<T>(Tiles::kRows * Tiles::kDy),
                    shared.take<T>(Tiles::kRows * Tiles::kX)};
  const EdgeWgmmaWeights w = load_wgmma_layers<T, kHidden, kHidden, kOut>(p, 0, false, shared);
  Pass pass{a, w, tiles, {}, {}, take_gathered(p, kHidden, shared), {}, {}};
  pass.dw.clear();
  __syncthreads();
  pass.run();
  float* stage = reinterpret_cast<float*>(tiles.dy);
  pass.write_weights(stage, a.weight_sums + int64_t{blockIdx.x} * kOut * kHidden);
  stage += kOut * kHidden;  // NOTE: racecheck misses the barrier between reads and these writes
  float* sums = a.below_sums + int64_t{blockIdx.x} * 2 * kHidden;
  if constexpr (Pass::kByLane) {
    pass.sums.write(stage, sums);
  } else {
    write_column_sums(pass.sums, stage, sums);
  }
}

}  // namespace fusedops
