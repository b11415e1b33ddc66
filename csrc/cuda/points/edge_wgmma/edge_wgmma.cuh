// WGMMA for layers of an edge MLP: y (64, 64) = x (64, K) @ w (64, K)^T, x in registers and w
// in shared memory. A warp's 16 rows lie as in edge_rows.cuh, so that each of the four warps has
// rows of its own groups. sm_90a only.
#pragma once

#include "csrc/cuda/points/edge_wgmma/wgmma.cuh"
#include "csrc/cuda/points/edges/edge_rows.cuh"

namespace fusedops {

// Starts d = x w^T for the columns that `w` begins at, of a matrix of `rows` rows.
template <class T, int kWidth>
__device__ __forceinline__ void start_product(EdgePart& d, const EdgeOperand<kWidth>& x, uint64_t w,
                                              int rows) {
  edge_fence();
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
    const uint64_t at = w + static_cast<uint64_t>(2 * k * rows);
    if (k == 0) {
      edge_multiply_first<T>(d, x.a[k], at);
    } else {
      edge_multiply<T>(d, x.a[k], at);
    }
  }
  edge_commit();
}

// start(i, part) starts the products of part i of kParts, take(i, part) gets their results. With
// two buffers the products of a part run while the part before is taken.
template <int kParts, int kBuffers, class Start, class Take>
__device__ __forceinline__ void take_parts(Start&& start, Take&& take) {
  EdgePart parts[kBuffers];
  start(0, parts[0]);
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    if (kBuffers > 1 && i + 1 < kParts) {
      start(i + 1, parts[(i + 1) % kBuffers]);
      edge_wait<1>();
    } else {
      edge_wait<0>();
    }
    parts[i % kBuffers].settle();
    take(i, parts[i % kBuffers]);
    if (kBuffers == 1 && i + 1 < kParts) start(i + 1, parts[0]);
  }
}

// Brings a matrix of `rows` rows (a multiple of 8) of `width` values (of 8) into pieces: piece
// k / 8 of row n at (k / 8) * rows + n; rows whose scale is negative with the other sign, where
// scales are given. A warp takes up to 4 pieces of 8 rows.
template <class T>
__device__ __forceinline__ void copy_pieces(const T* from, int rows, int width,
                                            const float2* affine, T* to) {
  const int across = (width + 31) / 32, count = rows / 8 * across;
  for (int i = warp_id(); i < count; i += static_cast<int>(blockDim.x) / 32) {
    const int row = i / across * 8 + lane_id() % 8, piece = i % across * 4 + lane_id() / 8;
    if (piece >= width / 8) continue;
    reinterpret_cast<uint4*>(to)[piece * rows + row] = load_piece(from, row, width, piece, affine);
  }
}

// Where the layers lie in shared memory, as descriptors but for what is read by threads.
struct EdgeWgmmaWeights {
  uint64_t first;        // [2 pieces][kFirst]
  uint64_t hidden;       // of the layers between the first and the last
  uint64_t last;         // the block's rows
  uint64_t transposed;   // the same
  const float4* affine;  // of the hidden layers
};

// Brings all layers into shared memory, as load_layers does. kFirst: kHidden, or less where there
// are three layers.
template <class T, int kFirst, int kHidden, int kLast>
__device__ __forceinline__ EdgeWgmmaWeights load_wgmma_layers(const EdgeProblem<T>& p, int start,
                                                              bool probes, SharedTaker& shared) {
  const int between = p.layers - 2, pairs = p.before_last() / 2;
  T* first = shared.take<T>(2 * kFirst * kEdgePlane);
  T* hidden = shared.take<T>(between * kHidden * kFirst);
  T* last = shared.take<T>(kLast * kHidden);
  float4* affine = shared.take<float4>(pairs);
  const int threads = static_cast<int>(blockDim.x);
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kFirst; i += threads) {
    const bool is_there = i < p.planes * kFirst;
    reinterpret_cast<uint4*>(first)[i] =
        is_there ? __ldg(reinterpret_cast<const uint4*>(p.first_weight) + i) : uint4{};
  }
  for (int l = 0; l < between; ++l) {
    const int64_t at = int64_t{l} * kHidden * kFirst;
    copy_pieces<T>(p.weights + at, kHidden, kFirst, nullptr, hidden + at);
  }
  copy_pieces<T>(p.weights + between * kHidden * kFirst + start * kHidden, kLast, kHidden,
                 probes ? reinterpret_cast<const float2*>(p.affine + pairs + start / 2) : nullptr,
                 last);
  for (int i = static_cast<int>(threadIdx.x); i < pairs; i += threads) affine[i] = p.affine[i];
  publish_operands();
  return {edge_descriptor(first, kFirst, 8), edge_descriptor(hidden, kHidden, 8),
          edge_descriptor(last, kLast, 8), edge_descriptor(last, 8, kLast), affine};
}

// What the products of part i of the first layer are added to.
template <class T, int kHidden>
__device__ __forceinline__ void gather_part(const EdgeProblem<T>& p, const EdgeGathered& gathered,
                                            const EdgeTile& tile, int i, EdgePart& part) {
  part.clear();
#pragma unroll
  for (int c = 0; c < kEdgePart / 32; ++c) {
    const int at = 2 * i + c;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (gathered.rows) add_row(part.y[c], gathered.share(half, at), half);
      if (p.group_rows) {
        const int64_t row = tile.group(half) * kHidden + 32 * at + 8 * (lane_id() % 4);
        add_row(part.y[c], p.group_rows + row, half);
      }
    }
  }
}

// hidden_layers by WGMMA: the four warps of a warpgroup come here together.
template <class T, bool kCentres, int kFirst, int kHidden>
__device__ __forceinline__ void wgmma_hidden_layers(const EdgeProblem<T>& p,
                                                    const EdgeWgmmaWeights& w, const EdgeTile& tile,
                                                    EdgeGathered& gathered, const EdgeTile& next,
                                                    EdgeOperand<kHidden>& x, const float* center,
                                                    EdgeOperand<kHidden>& centred) {
  constexpr int kParts = kHidden / kEdgePart;
  const float4* affine = w.affine;
  bool padded = is_padding(affine[kFirst / 2 - 1].z);
  const auto activate_part = [&](int i, EdgePart& part, EdgeOperand<kHidden>& to, bool is_last) {
#pragma unroll
    for (int c = 0; c < kEdgePart / 32; ++c) {
      if (padded) clear_padding(affine, 2 * i + c, part.y[c]);
      activate<T>(p, affine, 2 * i + c, part.y[c], to, kCentres && is_last, center, centred);
    }
  };
  const auto start_first = [&](int i, EdgePart& part) {
    gather_part<T, kFirst>(p, gathered, tile, i, part);
    edge_fence();
    edge_multiply<T>(part, gathered.operand, w.first + static_cast<uint64_t>(i * kEdgePart));
    edge_commit();
  };
  gathered.wait();
  // NOTE: one buffer: ptxas serialises WGMMAs beside which registers of others are written.
  if constexpr (kFirst != kHidden) {
    EdgeOperand<kFirst> below;
    take_parts<kFirst / kEdgePart, 1>(start_first, [&](int i, EdgePart& part) {
#pragma unroll
      for (int c = 0; c < kEdgePart / 32; ++c) {
        if (padded) clear_padding(affine, 2 * i + c, part.y[c]);
        apply_affine(affine, 2 * i + c, part.y[c]);
        store_activated<T>(p, part.y[c], 2 * i + c, below);
      }
    });
    gathered.start_copy(p, next, 0, kFirst);
    affine += kFirst / 2;
    padded = is_padding(affine[kHidden / 2 - 1].z);
    take_parts<kParts, 1>(
        [&](int i, EdgePart& part) {
          start_product<T>(part, below, w.hidden + static_cast<uint64_t>(i * kEdgePart), kHidden);
        },
        [&](int i, EdgePart& part) { activate_part(i, part, x, true); });
    return;
  }
  take_parts<kParts, 1>(start_first,
                        [&](int i, EdgePart& part) { activate_part(i, part, x, p.layers == 2); });
  gathered.start_copy(p, next, 0, kFirst);
  uint64_t weight = w.hidden;
#pragma unroll 1
  for (int l = 1; l < p.layers - 1; ++l) {
    affine += kHidden / 2;
    padded = is_padding(affine[kHidden / 2 - 1].z);
    EdgeOperand<kHidden> following;
    take_parts<kParts, 1>(
        [&](int i, EdgePart& part) {
          start_product<T>(part, x, weight + static_cast<uint64_t>(i * kEdgePart), kHidden);
        },
        [&](int i, EdgePart& part) { activate_part(i, part, following, l == p.layers - 2); });
    x = following;
    weight += kHidden * kHidden / kEdgePlane;
  }
}

// Rows that are there to be read, for a warp that has none.
__device__ __forceinline__ EdgeTile no_tile() { return {{0, 0}, {{0, 0, ~0, 0}, {0, 0, ~0, 0}}}; }

// Bytes of shared memory for the layers, `columns` of the last one, and the rows that are gathered.
template <class T>
int edge_wgmma_bytes(const EdgeProblem<T>& p, int first, int hidden, int columns) {
  int bytes = 2 * first * kEdgePlane * 2;
  bytes += ((p.layers - 2) * first + columns) * hidden * 2;
  bytes += p.before_last() / 2 * 16;
  if (p.rows) bytes += kEdgeWarps * kEdgeRows * first * 4 + kEdgeSector;
  return bytes;
}

}  // namespace fusedops
