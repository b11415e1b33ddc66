// edge_backward.cuh with WGMMA, both gradients in one pass, for a layer of 128 channels above
// hidden ones of 64 or 128. The gradient of y_l lies in shared memory as the operand of both of its
// products: with W_l, by the warpgroup that has its rows, and with x, over the block's rows, where
// each of two warpgroups takes 64 rows of dW_l.
#pragma once

#include "csrc/common/dispatch.h"
#include "csrc/cuda/points/edge_wgmma/edge_wgmma.cuh"
#include "csrc/cuda/points/edge_wgmma/edge_wgmma_narrow.cuh"
#include "csrc/cuda/points/edges/edge_backward.cuh"
#include "csrc/cuda/points/edges/edge_launch.h"

namespace fusedops {

inline constexpr int kEdgeWgmmaOut = 128;

// kWinners: what comes from above is a maximum's gradient; else rows are there.
template <class T, int kFirst, int kHidden, bool kWinners>
struct EdgeWgmmaBackward {
  static constexpr int kOut = kEdgeWgmmaOut, kParts = kHidden / kEdgePart;
  using Tiles = EdgeTiles<T, kHidden, kOut, EdgePass::kBoth>;
  static_assert(kEdgeWarps == 8 && kOut == 2 * kEdgePart, "a warpgroup has half of dW's rows");

  const EdgeBackward<T>& a;
  EdgeWgmmaWeights w;
  // [8 rows a time][pieces of a row and one to spare][row][8]; dz and centred y are row by row.
  Tiles tiles;
  EdgePart dw[kParts];
  EdgeColumnSums<kHidden> sums;
  EdgeGathered gathered;
  EdgeOperand<kHidden> x, centred;

  // x and the gradient of y_l of a warp's rows go into shared memory.
  __device__ __forceinline__ void compute(const EdgeTile& tile, const EdgeTile& next) {
    const EdgeProblem<T>& p = a.problem;
    wgmma_hidden_layers<T, true, kFirst>(p, w, tile, gathered, next, x, a.center, centred);
    const int channel = 2 * (lane_id() % 4);
    int64_t at[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = kWinners ? tile.group(half) : tile.edge(half, p.k);
      at[half] = row * p.width + channel;
    }
    const float4* affine = p.affine + (p.before_last() + channel) / 2;
    const float4* dense = a.dense + channel / 2;
    T* dy_at = matrix_row(tiles.dy_rows(), Tiles::kDy, true);
    EdgeAbove above[kEdgePart / 32];
    take_parts<kOut / kEdgePart, 1>(
        [&](int i, EdgePart& part) {
          start_product<T>(part, x, w.last + static_cast<uint64_t>(i * kEdgePart), kOut);
#pragma unroll
          for (int c = 0; c < kEdgePart / 32; ++c)
            above[c].template load<kWinners>(a, at, 2 * i + c);
        },
        [&](int i, EdgePart& part) {
          if (!a.dense) part.clear();
#pragma unroll
          for (int c = 0; c < kEdgePart / 32; ++c) {
            output_gradient<kWinners>(a, tile, above[c], affine + 16 * (2 * i + c),
                                      dense + 16 * (2 * i + c), part.y[c]);
            EdgeOperand<32> dy;
            store_operand<T>(part.y[c], 0, dy);
            const int column = kEdgePart * i + 32 * c;
            edge_store_matrices(dy_at + 8 * column, dy.a[0]);
            edge_store_matrices(dy_at + 8 * (column + 16), dy.a[1]);
          }
        });
    T* x_at = matrix_row(tiles.x_rows(), Tiles::kX, true);
#pragma unroll
    for (int k = 0; k < kHidden / 16; ++k) edge_store_matrices(x_at + 8 * 16 * k, x.a[k]);
  }

  // Starts dW += dY^T x over the block's rows.
  __device__ __forceinline__ void add_weights() {
    uint64_t dy = edge_descriptor(tiles.dy + edge_warpgroup() * 64 * kEdgePart / 8, Tiles::kDy, 8);
    uint64_t from = edge_descriptor(tiles.x, Tiles::kX, 8);
    edge_fence();
#pragma unroll
    for (int k = 0; k < kEdgeWarps; ++k) {
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        edge_multiply<T, true>(dw[i], dy, from + static_cast<uint64_t>(i * kEdgePart));
      }
      dy += 2 * Tiles::kDy;
      from += 2 * Tiles::kX;
    }
    edge_commit();
  }

  // Starts columns 64 i .. 64 i + 63 of dX = dY W of the warpgroup's rows.
  __device__ __forceinline__ void start_back(int i, EdgePart& dx) {
    const T* rows = tiles.dy + edge_warpgroup() * 4 * kEdgeRows * Tiles::kDy;
    const uint64_t dy = edge_descriptor(rows, 8, Tiles::kDy);
    const uint64_t weight = w.transposed + static_cast<uint64_t>(i * (kEdgePart / 8) * kOut);
    edge_fence();
#pragma unroll
    for (int k = 0; k < kOut / 16; ++k) {
      if (k == 0) {
        edge_multiply_first<T, false>(dx, dy, weight);
      } else {
        edge_multiply<T, false>(dx, dy + 16 * k, weight + 16 * k);
      }
    }
    edge_commit();
  }

  // Takes them through the activation: dz takes the place of x. NOTE: one branch for all values.
  __device__ __forceinline__ void take_back(int i, EdgePart& dx) {
    dx.settle();
    const EdgeProblem<T>& p = a.problem;
    const auto replace = [&](auto&& with) {
#pragma unroll
      for (int k = 0; k < kEdgePart / 16; ++k) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          uint32_t& value = x.a[i * (kEdgePart / 16) + k][j];
          value = with(&dx.y[k / 2][k % 2 * 2 + j / 2][j % 2 * 2], value);
        }
      }
    };
    if (p.is_relu) {
      replace([](const float* d, uint32_t value) {
        return pack_pair<T>(d[0], d[1]) & positive_mask<T>(value);
      });
    } else {
      replace([&](const float* d, uint32_t value) {
        const float2 act = unpack_pair<T>(value);
        return pack_pair<T>(act.x <= 0.f ? p.slope * d[0] : d[0],
                            act.y <= 0.f ? p.slope * d[1] : d[1]);
      });
    }
  }

  __device__ __forceinline__ void run() {
    const EdgeProblem<T>& p = a.problem;
    const int end = __ldg(p.ends + p.groups - 1);
    const int64_t stride = int64_t{gridDim.x} * kEdgeWarps * kEdgeRows;
    const auto load = [&](int64_t first) {
      return first < end ? load_tile(p, static_cast<int>(first), end) : no_tile();
    };
    int64_t block_first = int64_t{blockIdx.x} * kEdgeWarps * kEdgeRows;
    int64_t first = block_first + warp_id() * kEdgeRows;
    EdgeTile tile = load(first);
    gathered.start_copy(p, tile, 0, kFirst);
    for (; block_first < end; block_first += stride, first += stride) {
      const EdgeTile next = load(first + stride);
      compute(tile, next);
      if (first >= end) {
        __syncwarp();
        tiles.clear_rows();
      }
      publish_operands();
      __syncthreads();
      // NOTE: dW is multiplied while the first part of dX goes through the activation.
      EdgePart dx;
      start_back(0, dx);
      add_weights();
      edge_wait<1>();
      take_back(0, dx);
#pragma unroll
      for (int i = 1; i < kParts; ++i) {
        start_back(i, dx);
        edge_wait<0>();
        take_back(i, dx);
      }
      if constexpr (kParts == 1) edge_wait<0>();
#pragma unroll
      for (int i = 0; i < kParts; ++i) dw[i].settle();
      __syncthreads();
      if (first < end) {
        const int rows = static_cast<int>(min(end - first, int64_t{kEdgeRows}));
        write_wgmma_rows(a, tiles, tile, rows, x, centred, sums);
      }
      tile = next;
    }
    gathered.wait();
  }

  // to: [kOut][kHidden].
  __device__ __forceinline__ void write_weights(float* to) const {
    const int row = warp_id() * 16 + lane_id() / 4;
#pragma unroll
    for (int i = 0; i < kParts * 2; ++i) {
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const float* d = dw[i / 2].y[i % 2][b];
        float* at = to + row * kHidden + 32 * i + 8 * b + 2 * (lane_id() % 4);
        *reinterpret_cast<float2*>(at) = {d[0], d[1]};
        *reinterpret_cast<float2*>(at + 8 * kHidden) = {d[2], d[3]};
      }
    }
  }
};

template <class T, int kFirst, int kHidden, bool kWinners>
__global__ void __launch_bounds__(kEdgeThreads, 1)
    edge_wgmma_backward_kernel(const __grid_constant__ EdgeBackward<T> a) {
  using Pass = EdgeWgmmaBackward<T, kFirst, kHidden, kWinners>;
  using Tiles = typename Pass::Tiles;
  extern __shared__ __align__(16) unsigned char memory[];
  const EdgeProblem<T>& p = a.problem;
  SharedTaker shared{memory};
  const Tiles tiles{shared.take<T>(Tiles::kRows * Tiles::kDy),
                    shared.take<T>(Tiles::kRows * Tiles::kX)};
  const EdgeWgmmaWeights w = load_wgmma_layers<T, kFirst, kHidden, Pass::kOut>(p, 0, false, shared);
  Pass pass{a, w, tiles, {}, {}, take_gathered(p, kFirst, shared), {}, {}};
#pragma unroll
  for (int i = 0; i < Pass::kParts; ++i) pass.dw[i].clear();
  __syncthreads();
  pass.run();
  pass.write_weights(a.weight_sums + int64_t{blockIdx.x} * Pass::kOut * kHidden);
  write_column_sums(pass.sums, reinterpret_cast<float*>(tiles.x),
                    a.below_sums + int64_t{blockIdx.x} * 2 * kHidden);
}

// Calls fn with the kernel and its bytes of shared memory; gives 0 where there is none.
template <class T, class Fn>
int with_wgmma_kernel(const EdgeBackward<T>& a, EdgePass pass, const EdgeDevice& device, Fn&& fn) {
  const EdgeProblem<T>& p = a.problem;
  if (pass != EdgePass::kBoth || p.layers < 2) return 0;
  const auto call = [&]<int kHidden, int kOut, int kFirst = kHidden>() -> int {
    constexpr int kColumns = kOut < kEdgeNarrowOut ? kEdgeNarrowOut : kOut;
    const int bytes = EdgeTiles<T, kHidden, kColumns, EdgePass::kBoth>::kBytes +
                      edge_wgmma_bytes(p, kFirst, kHidden, kOut);
    const bool fits = p.hidden == kFirst && p.middle == kHidden && p.width == kOut;
    if (!fits || bytes > device.shared_memory) return 0;
    if constexpr (kOut <= 64) {
      // NOTE: 32 channels are never the last layer's, and others than the hidden ones always.
      if (!a.winners) {
        if constexpr (kHidden != kOut) return 0;
        return fn(Tag<&edge_wgmma_narrow_kernel<T, kHidden, kHidden, false>>{}, bytes);
      }
      if constexpr (kOut == 32) return 0;
      return fn(Tag<&edge_wgmma_narrow_kernel<T, kHidden, 64, true>>{}, bytes);
    } else {
      if (a.winners) return fn(Tag<&edge_wgmma_backward_kernel<T, kFirst, kHidden, true>>{}, bytes);
      if constexpr (kFirst != kHidden) return 0;  // the last of three layers
      return fn(Tag<&edge_wgmma_backward_kernel<T, kHidden, kHidden, false>>{}, bytes);
    }
  };
  const int narrow = call.template operator()<32, 32>() + call.template operator()<32, 64>() +
                     call.template operator()<64, 64>();
  if (narrow != 0) return narrow;
  return call.template operator()<64, kEdgeWgmmaOut>() +
         call.template operator()<128, kEdgeWgmmaOut>() +
         call.template operator()<kEdgeTaper.middle, kEdgeWgmmaOut, kEdgeTaper.first>();
}

template <class T>
int edge_wgmma_blocks(const EdgeBackward<T>& a, EdgePass pass, const EdgeDevice& device) {
  return with_wgmma_kernel(a, pass, device, [&]<auto kKernel>(Tag<kKernel>, int bytes) {
    return edge_grid<kKernel>(bytes, device.sm_count, most_tiles(a.problem), 1, kEdgeWarps);
  });
}

template <class T>
void launch_edge_wgmma(const EdgeBackward<T>& a, EdgePass pass, int blocks,
                       const EdgeDevice& device) {
  with_wgmma_kernel(a, pass, device, [&]<auto kKernel>(Tag<kKernel>, int bytes) {
    kKernel<<<static_cast<unsigned>(blocks), kEdgeThreads, bytes, device.stream>>>(a);
    return 1;
  });
}

}  // namespace fusedops
