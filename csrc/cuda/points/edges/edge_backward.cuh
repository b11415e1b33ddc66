// An MLP over edges, backward through its layer l (l >= 2): from the gradient of y_l to that of W_l
// and of the values before the activation of layer l - 1, whose rows are stored for the next pass
// and whose sums give the gradients of that layer's scale and shift.
//
// The gradient of y_l of an edge of weight w is (what comes from above) + w (A + B y_l), where A and
// B are those of the batch statistics, and from above comes, in the last layer, the gradient of a
// maximum at its place, else scale_l times the row that the pass before stored.
//
// All warps of a block step together: their tiles of 16 rows are operands of the block's dW_l.
#pragma once

#include "csrc/cuda/points/edges/edge_forward.cuh"

namespace fusedops {

// dX += dY W for 32 rows of W: dY is an operand 16 x 32.
template <class T, int kWidth>
__device__ __forceinline__ void product_back(const uint32_t (&dy)[2][4], const T* w, int ld,
                                             int width, float (&dx)[kWidth / 8][4]) {
  const int lane = lane_id();
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const T* row = w + (16 * k + lane / 8 % 2 * 8 + lane % 8) * ld + lane / 16 * 8;
#pragma unroll
    for (int pair = 0; pair < kWidth / 16; ++pair) {
      if (16 * pair < width) {
        uint32_t b[4];
        load_transposed(b, row + 16 * pair);
        mma_k16<T>(dx[2 * pair], dy[k], b[0], b[1]);
        mma_k16<T>(dx[2 * pair + 1], dy[k], b[2], b[3]);
      }
    }
  }
}

// (scale, shift) of the problem's last layer.
template <class T>
__device__ __forceinline__ const float4* layer_affine(const EdgeProblem<T>& p) {
  const float4* affine = p.affine;
  for (int l = 0; l < p.layers - 1; ++l) affine += p.width[l] / 2;
  return affine;
}

// The gradient of y_l of channels 32 c .. 32 c + 31, from y_l.
template <class T>
__device__ __forceinline__ void output_gradient(const EdgeBackward<T>& a, const EdgeGroup& g,
                                                const EdgeStep& s, int c, float (&y)[4][4]) {
  const int q = lane_id() % 4, r = lane_id() / 4;
  const int width = a.problem.width[a.problem.layers - 1];
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    const int channel = 32 * c + 8 * b + 2 * q;
    const float4 dense = a.dense ? __ldg(a.dense + channel / 2) : float4{};
    float best[2] = {};
    float4 affine = {};
    int which[2] = {-1, -1};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (a.best_grad && channel + h < a.channels) {
        best[h] = __ldg(a.best_grad + g.id * a.channels + channel + h);
        which[h] = __ldg(a.which + g.id * a.channels + channel + h);
      }
    }
    if (!a.best_grad) affine = __ldg(layer_affine(a.problem) + channel / 2);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float weight = s.weight[half];
      const int position = s.position + r + 8 * half;
      float2 from_above = {which[0] == position ? best[0] : 0.f,
                           which[1] == position ? best[1] : 0.f};
      if (!a.best_grad && weight > 0.f) {
        const int64_t row = g.id * a.problem.k + position;
        const float2 dz = unpack_pair<T>(
            __ldg(reinterpret_cast<const uint32_t*>(a.above + row * width + channel)));
        from_above = {affine.x * dz.x, affine.z * dz.y};
      }
      float& y0 = y[b][2 * half];
      float& y1 = y[b][2 * half + 1];
      const bool lives = weight > 0.f;
      y0 = lives ? from_above.x + weight * fmaf(dense.y, y0, dense.x) : 0.f;
      y1 = lives ? from_above.y + weight * fmaf(dense.w, y1, dense.z) : 0.f;
    }
  }
}

// A warp's way through the steps of its groups, one after the other.
struct EdgeWalk {
  EdgeGroup g;
  EdgeStep s;
  int64_t next_id;
  int next_step;

  template <class T>
  __device__ __forceinline__ explicit EdgeWalk(const EdgeProblem<T>&)
      : g{}, s{}, next_id(int64_t{blockIdx.x} * kEdgeWarps + warp_id()), next_step(0) {
    g.last_live = -1;
  }

  // To the next step with a living row. False where there is none.
  template <class T>
  __device__ __forceinline__ bool advance(const EdgeProblem<T>& p) {
    while (true) {
      while (next_step * kEdgeStepRows <= g.last_live) {
        if (open_step(p, g, next_step++, s)) return true;
      }
      if (next_id >= p.groups) return false;
      g = open_group(p, next_id);
      next_step = 0;
      next_id += int64_t{gridDim.x} * kEdgeWarps;
    }
  }
};

// Rows of a warp in shared memory, 16 of them, `ld` elements apart.
template <class T>
__device__ __forceinline__ void store_fragment(const uint32_t (&a)[4], T* rows, int ld, int column) {
  T* to = rows + lane_id() / 4 * ld + column + 2 * (lane_id() % 4);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    *reinterpret_cast<uint32_t*>(to + i % 2 * 8 * ld + i / 2 * 8) = a[i];
  }
}

// A block's gradient of a weight matrix, kOut x kIn: warps take quarters of its rows and halves of its
// columns.
template <int kOut, int kIn>
struct EdgeWeightGradient {
  static constexpr int kTiles = kOut / 64, kColumns = kIn / 16;
  float sum[kTiles][kColumns][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[m][n][i] = 0.f;
      }
    }
  }

  static __device__ __forceinline__ int first_row() { return warp_id() % 4 * (kOut / 4); }
  static __device__ __forceinline__ int first_column() { return warp_id() / 4 * (kIn / 2); }

  // Adds dY^T X of the block's rows.
  template <class T>
  __device__ __forceinline__ void add(const T* dy, int dy_ld, const T* x, int x_ld, int rows,
                                      int columns) {
    const int i = lane_id() / 8, r = lane_id() % 8;
    if (first_row() >= rows || first_column() >= columns) return;
    for (int k = 0; k < kEdgeWarps * kEdgeStepRows; k += 16) {
      uint32_t a[kTiles][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        load_transposed(a[m], dy + (k + i / 2 * 8 + r) * dy_ld + first_row() + 16 * m + i % 2 * 8);
      }
#pragma unroll
      for (int n = 0; n < kColumns; n += 2) {
        uint32_t b[4];
        load_transposed(b, x + (k + i % 2 * 8 + r) * x_ld + first_column() + 8 * n + i / 2 * 8);
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          mma_k16<T>(sum[m][n], a[m], b[0], b[1]);
          mma_k16<T>(sum[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  // to: [rows][columns].
  __device__ __forceinline__ void write(float* to, int rows, int columns) const {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row() + 16 * m + 8 * half + lane_id() / 4;
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
          const int column = first_column() + 8 * n + 2 * (lane_id() % 4);
          if (row < rows && column < columns) {
            *reinterpret_cast<float2*>(to + int64_t{row} * columns + column) = {
                sum[m][n][2 * half], sum[m][n][2 * half + 1]};
          }
        }
      }
    }
  }
};

// The sums of layer l - 1 that a lane has: of columns 64 i + 2 lane and the next.
template <int kWidth>
struct EdgeColumnSums {
  static constexpr int kPairs = kWidth / 64;
  float2 dz[kPairs] = {}, dzy[kPairs] = {}, group[kPairs] = {};

  // Adds the 16 rows of a warp.
  template <class T>
  __device__ __forceinline__ void add(const T* dz_rows, int dz_ld, const T* y_rows, int y_ld,
                                      int width) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int column = 64 * i + 2 * lane_id();
      if (column >= width) continue;
      float2 sum = {};
      for (int row = 0; row < kEdgeStepRows; ++row) {
        const float2 d = unpack_pair<T>(
            *reinterpret_cast<const uint32_t*>(dz_rows + row * dz_ld + column));
        const float2 y =
            unpack_pair<T>(*reinterpret_cast<const uint32_t*>(y_rows + row * y_ld + column));
        sum.x += d.x;
        sum.y += d.y;
        dzy[i].x = fmaf(d.x, y.x, dzy[i].x);
        dzy[i].y = fmaf(d.y, y.y, dzy[i].y);
      }
      group[i].x += sum.x;
      group[i].y += sum.y;
    }
  }

  // The end of a group: its sums go to `to` where that is not null.
  __device__ __forceinline__ void end_group(float* to, int width) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int column = 64 * i + 2 * lane_id();
      dz[i].x += group[i].x;
      dz[i].y += group[i].y;
      if (to && column < width) *reinterpret_cast<float2*>(to + column) = group[i];
      group[i] = {};
    }
  }
};

// Sums the warps' columns in their order: to is [2][width].
template <int kWidth>
__device__ __forceinline__ void write_column_sums(const EdgeColumnSums<kWidth>& sums, float* stage,
                                                  int width, float* to) {
  __syncthreads();
#pragma unroll
  for (int i = 0; i < EdgeColumnSums<kWidth>::kPairs; ++i) {
    float* at = stage + warp_id() * 2 * kWidth + 64 * i + 2 * lane_id();
    *reinterpret_cast<float2*>(at) = sums.dz[i];
    *reinterpret_cast<float2*>(at + kWidth) = sums.dzy[i];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kWidth; i += kEdgeThreads) {
    if (i % kWidth >= width) continue;
    float sum = 0.f;
    for (int w = 0; w < kEdgeWarps; ++w) sum += stage[w * 2 * kWidth + i];
    to[i / kWidth * width + i % kWidth] = sum;
  }
}

// Elements of a row of the tiles of dY (or centred y) and of X (or dz).
template <int kHidden, int kOut, EdgePass kPass>
struct EdgeTiles {
  static constexpr int kX = kHidden + kEdgePad;
  static constexpr int kDy =
      (kPass == EdgePass::kData || kOut < kHidden ? kHidden : kOut) + kEdgePad;
  static constexpr int kRows = kEdgeWarps * kEdgeStepRows;
  static constexpr int kBytes = kRows * (kX + kDy) * 2;
};

// kHidden: at least the widths before layer l. kOut: at least that of layer l with kBoth; a block's
// slice of it with kWeights; with kData it does not matter.
template <class T, int kHidden, int kOut, EdgePass kPass>
__global__ void __launch_bounds__(kEdgeThreads) edge_backward_kernel(EdgeBackward<T> a) {
  constexpr bool kData = kPass != EdgePass::kWeights, kWeights = kPass != EdgePass::kData;
  using Tiles = EdgeTiles<kHidden, kOut, kPass>;
  extern __shared__ __align__(16) unsigned char memory[];
  const EdgeProblem<T>& p = a.problem;
  const int last = p.layers - 1, width = p.width[last], width_in = p.width[last - 1];
  const int start = kPass == EdgePass::kWeights ? static_cast<int>(blockIdx.y) * kOut : 0;
  const int columns = kPass == EdgePass::kWeights ? min(kOut, width - start) : width;
  SharedTaker shared{memory};
  T* dy_tile = shared.take<T>(Tiles::kRows * Tiles::kDy);
  T* x_tile = shared.take<T>(Tiles::kRows * Tiles::kX);
  const EdgeWeights<T> w = load_layers(p, p.layers, start, columns, shared);
  __syncthreads();
  T* dy_rows = dy_tile + warp_id() * kEdgeStepRows * Tiles::kDy;
  T* x_rows = x_tile + warp_id() * kEdgeStepRows * Tiles::kX;

  EdgeWeightGradient<kOut, kHidden> dw;
  EdgeColumnSums<kHidden> sums;
  if constexpr (kWeights) dw.clear();
  EdgeWalk walk(p);
  bool has_step = walk.advance(p);
  while (kWeights ? __syncthreads_or(has_step) : has_step) {
    EdgeOperand<kHidden> x, centred;
    if (has_step) {
      hidden_layers<T, kHidden>(p, w, walk.g, walk.s, last, x, a.center, kData ? &centred : nullptr);
      float dx[kHidden / 8][4] = {};
      for (int c = 0; 32 * c < columns; ++c) {
        float y[4][4] = {};
        if (a.dense) product<T>(x, width_in, w.layer[last], width_in + kEdgePad, c, y);
        output_gradient(a, walk.g, walk.s, start / 32 + c, y);
        EdgeOperand<32> dy;
        store_operand<T>(y, 0, dy);
        if constexpr (kWeights) {
          store_fragment(dy.a[0], dy_rows, Tiles::kDy, 32 * c);
          store_fragment(dy.a[1], dy_rows, Tiles::kDy, 32 * c + 16);
        }
        if constexpr (kData) {
          product_back<T, kHidden>(dy.a, w.layer[last] + 32 * c * (width_in + kEdgePad),
                                   width_in + kEdgePad, width_in, dx);
        }
      }
#pragma unroll
      for (int k = 0; k < kHidden / 16; ++k) {
        if (16 * k >= width_in) continue;
        if constexpr (kWeights) store_fragment(x.a[k], x_rows, Tiles::kX, 16 * k);
        if constexpr (kData) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 act = unpack_pair<T>(x.a[k][i]);
            const float* d = &dx[2 * k + i / 2][i % 2 * 2];
            x.a[k][i] = pack_pair<T>(act.x > 0.f ? d[0] : p.slope * d[0],
                                     act.y > 0.f ? d[1] : p.slope * d[1]);
          }
        }
      }
    } else {
      // NOTE: only with kWeights: the block's other warps still have rows.
      for (int i = lane_id(); i < kEdgeStepRows * Tiles::kDy / 2; i += 32) {
        reinterpret_cast<uint32_t*>(dy_rows)[i] = 0;
      }
      for (int i = lane_id(); i < kEdgeStepRows * Tiles::kX / 2; i += 32) {
        reinterpret_cast<uint32_t*>(x_rows)[i] = 0;
      }
    }
    if constexpr (kWeights) {
      __syncthreads();
      dw.add(dy_tile, Tiles::kDy, x_tile, Tiles::kX, columns, width_in);
      __syncthreads();
    }
    if (!has_step) continue;
    if constexpr (kData) {
      __syncwarp();
#pragma unroll
      for (int k = 0; k < kHidden / 16; ++k) {
        if (16 * k >= width_in) continue;
        store_fragment(x.a[k], x_rows, Tiles::kX, 16 * k);
        store_fragment(centred.a[k], dy_rows, Tiles::kDy, 16 * k);
      }
      __syncwarp();
      sums.add(x_rows, Tiles::kX, dy_rows, Tiles::kDy, width_in);
      const int pieces = width_in / 8;
      for (int i = lane_id(); i < kEdgeStepRows * pieces; i += 32) {
        const int row = i / pieces, piece = i % pieces;
        if (!(walk.s.live >> row & 1)) continue;
        const int64_t to = walk.g.id * p.k + walk.s.position + row;
        reinterpret_cast<uint4*>(a.below + to * width_in)[piece] =
            reinterpret_cast<const uint4*>(x_rows + row * Tiles::kX)[piece];
      }
      __syncwarp();
    }
    const int64_t id = walk.g.id;
    has_step = walk.advance(p);
    if constexpr (kData) {
      if (!has_step || walk.g.id != id) {
        sums.end_group(a.group_sums ? a.group_sums + id * width_in : nullptr, width_in);
      }
    }
  }
  if constexpr (kWeights) {
    dw.write(a.weight_sums + (int64_t{blockIdx.x} * width + start) * width_in, columns, width_in);
  }
  if constexpr (kData) {
    write_column_sums(sums, reinterpret_cast<float*>(dy_tile), width_in,
                      a.below_sums + int64_t{blockIdx.x} * 2 * width_in);
  }
}

}  // namespace fusedops
