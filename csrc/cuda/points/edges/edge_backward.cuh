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

// The gradient of y_l of channels 32 c .. 32 c + 31, from y_l, of rows first .. first + 15.
template <class T>
__device__ __forceinline__ void output_gradient(const EdgeBackward<T>& a, const EdgeTile& tile,
                                                int64_t first, int c, float (&y)[4][4]) {
  const int q = lane_id() % 4, r = lane_id() / 4;
  const int width = a.problem.width[a.problem.layers - 1];
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    const int channel = 32 * c + 8 * b + 2 * q;
    const float4 dense = a.dense ? __ldg(a.dense + channel / 2) : float4{};
    const float4 affine =
        a.winners ? float4{} : __ldg(layer_affine(a.problem) + channel / 2);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float weight = tile.weight(half);
      float2 above{};
      if (a.winners) {
        const int2 won = __ldg(reinterpret_cast<const int2*>(
            a.winners + tile.group(half) * width + channel));
        const float2 g = unpack_pair<T>(__byte_perm(won.x, won.y, 0x5410));
        above = {won.x >> 16 == tile.neighbour(half) ? g.x : 0.f,
                 won.y >> 16 == tile.neighbour(half) ? g.y : 0.f};
      } else if (weight > 0.f) {
        const float2 dz = unpack_pair<T>(__ldg(reinterpret_cast<const uint32_t*>(
            a.above + (first + r + 8 * half) * width + channel)));
        above = {affine.x * dz.x, affine.z * dz.y};
      }
      float& y0 = y[b][2 * half];
      float& y1 = y[b][2 * half + 1];
      y0 = weight > 0.f ? above.x + weight * fmaf(dense.y, y0, dense.x) : 0.f;
      y1 = weight > 0.f ? above.y + weight * fmaf(dense.w, y1, dense.z) : 0.f;
    }
  }
}

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
    for (int k = 0; k < kEdgeWarps * kEdgeRows; k += 16) {
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
  float2 dz[kPairs] = {}, dzy[kPairs] = {};

  // Adds the 16 rows of a warp.
  template <class T>
  __device__ __forceinline__ void add(const T* dz_rows, int dz_ld, const T* y_rows, int y_ld,
                                      int width) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int column = 64 * i + 2 * lane_id();
      if (column >= width) continue;
      for (int row = 0; row < kEdgeRows; ++row) {
        const float2 d = unpack_pair<T>(
            *reinterpret_cast<const uint32_t*>(dz_rows + row * dz_ld + column));
        const float2 y =
            unpack_pair<T>(*reinterpret_cast<const uint32_t*>(y_rows + row * y_ld + column));
        dz[i].x += d.x;
        dz[i].y += d.y;
        dzy[i].x = fmaf(d.x, y.x, dzy[i].x);
        dzy[i].y = fmaf(d.y, y.y, dzy[i].y);
      }
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
  static constexpr int kRows = kEdgeWarps * kEdgeRows;
  static constexpr int kBytes = kRows * (kX + kDy) * 2;
};

// kHidden: at least the widths before layer l. kOut: at least that of layer l with kBoth; a block's
// slice of it with kWeights; with kData it does not matter.
template <class T, int kHidden, int kOut, EdgePass kPass>
struct EdgeBackwardPass {
  static constexpr bool kData = kPass != EdgePass::kWeights, kWeights = kPass != EdgePass::kData;
  using Tiles = EdgeTiles<kHidden, kOut, kPass>;

  const EdgeBackward<T>& a;
  const EdgeWeights<T>& w;
  int start, columns;  // of layer l
  T* dy_tile;
  T* x_tile;
  EdgeWeightGradient<kOut, kHidden> dw;
  EdgeColumnSums<kHidden> sums;
  EdgeGathered<T> gathered;
  EdgeOperand<kHidden> x, centred;

  __device__ __forceinline__ T* dy_rows() const {
    return dy_tile + warp_id() * kEdgeRows * Tiles::kDy;
  }
  __device__ __forceinline__ T* x_rows() const {
    return x_tile + warp_id() * kEdgeRows * Tiles::kX;
  }

  // The operands of dW go into shared memory, dz takes the place of x.
  __device__ __forceinline__ void compute(const EdgeTile& tile, const EdgeTile& next,
                                          int64_t first) {
    const EdgeProblem<T>& p = a.problem;
    const int last = p.layers - 1, width_in = p.width[last - 1], ld = width_in + kEdgePad;
    hidden_layers<T, kHidden>(p, w, tile, gathered, next, last, x, a.center,
                              kData ? &centred : nullptr);
    float dx[kHidden / 8][4] = {};
    for (int c = 0; 32 * c < columns; ++c) {
      float y[4][4] = {};
      if (a.dense) product<T>(x, width_in, w.layer[last], ld, c, y);
      output_gradient(a, tile, first, start / 32 + c, y);
      EdgeOperand<32> dy;
      store_operand<T>(y, 0, dy);
      if constexpr (kWeights) {
        store_fragment(dy.a[0], dy_rows(), Tiles::kDy, 32 * c);
        store_fragment(dy.a[1], dy_rows(), Tiles::kDy, 32 * c + 16);
      }
      if constexpr (kData) {
        product_back<T, kHidden>(dy.a, w.layer[last] + 32 * c * ld, ld, width_in, dx);
      }
    }
#pragma unroll
    for (int k = 0; k < kHidden / 16; ++k) {
      if (16 * k >= width_in) continue;
      if constexpr (kWeights) store_fragment(x.a[k], x_rows(), Tiles::kX, 16 * k);
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
  }

  // A warp without rows adds nothing to dW.
  __device__ __forceinline__ void clear_rows() {
    for (int i = lane_id(); i < kEdgeRows * Tiles::kDy / 2; i += 32) {
      reinterpret_cast<uint32_t*>(dy_rows())[i] = 0;
    }
    for (int i = lane_id(); i < kEdgeRows * Tiles::kX / 2; i += 32) {
      reinterpret_cast<uint32_t*>(x_rows())[i] = 0;
    }
  }

  // dz, which is in x, into its rows and sums.
  __device__ __forceinline__ void write_rows(int64_t first, int64_t end) {
    const int width_in = a.problem.width[a.problem.layers - 2];
    __syncwarp();
#pragma unroll
    for (int k = 0; k < kHidden / 16; ++k) {
      if (16 * k >= width_in) continue;
      store_fragment(x.a[k], x_rows(), Tiles::kX, 16 * k);
      store_fragment(centred.a[k], dy_rows(), Tiles::kDy, 16 * k);
    }
    __syncwarp();
    sums.add(x_rows(), Tiles::kX, dy_rows(), Tiles::kDy, width_in);
    const int pieces = width_in / 8;
    const int rows = static_cast<int>(min(end - first, int64_t{kEdgeRows}));
    for (int i = lane_id(); i < rows * pieces; i += 32) {
      const int row = i / pieces, piece = i % pieces;
      reinterpret_cast<uint4*>(a.below + (first + row) * width_in)[piece] =
          reinterpret_cast<const uint4*>(x_rows() + row * Tiles::kX)[piece];
    }
    __syncwarp();
  }

  __device__ __forceinline__ void run() {
    const EdgeProblem<T>& p = a.problem;
    const int width_in = p.width[p.layers - 2];
    const int end = __ldg(p.ends + p.groups - 1);
    const int64_t stride = int64_t{gridDim.x} * kEdgeWarps * kEdgeRows;
    int64_t block_first = int64_t{blockIdx.x} * kEdgeWarps * kEdgeRows;
    int64_t first = block_first + warp_id() * kEdgeRows;
    EdgeTile tile;
    if (first < end) {
      tile = load_tile(p, static_cast<int>(first), end);
      gathered.start_copy(p, tile, 0, p.width[0]);
    }
    for (; block_first < end; block_first += stride, first += stride) {
      const bool has_rows = first < end;
      if (has_rows) {
        const int64_t following = first + stride < end ? first + stride : first;
        const EdgeTile next = load_tile(p, static_cast<int>(following), end);
        compute(tile, next, first);
        tile = next;
      } else if constexpr (kWeights) {
        clear_rows();
      }
      if constexpr (kWeights) {
        __syncthreads();
        dw.add(dy_tile, Tiles::kDy, x_tile, Tiles::kX, columns, width_in);
        __syncthreads();
      }
      if constexpr (kData) {
        if (has_rows) write_rows(first, end);
      }
    }
  }
};

template <class T, int kHidden, int kOut, EdgePass kPass>
__global__ void __launch_bounds__(kEdgeThreads, edge_blocks_of_sm(kHidden > kOut ? kHidden : kOut))
    edge_backward_kernel(const __grid_constant__ EdgeBackward<T> a) {
  using Pass = EdgeBackwardPass<T, kHidden, kOut, kPass>;
  using Tiles = typename Pass::Tiles;
  extern __shared__ __align__(16) unsigned char memory[];
  const EdgeProblem<T>& p = a.problem;
  const int last = p.layers - 1, width = p.width[last], width_in = p.width[last - 1];
  const int start = kPass == EdgePass::kWeights ? static_cast<int>(blockIdx.y) * kOut : 0;
  const int columns = kPass == EdgePass::kWeights ? min(kOut, width - start) : width;
  SharedTaker shared{memory};
  T* dy_tile = shared.take<T>(Tiles::kRows * Tiles::kDy);
  T* x_tile = shared.take<T>(Tiles::kRows * Tiles::kX);
  __shared__ EdgeWeights<T> w;
  const EdgeWeights<T> found = load_layers(p, p.layers, start, columns, shared);
  if (threadIdx.x == 0) w = found;
  __syncthreads();
  Pass pass{a,  w,  start, columns, dy_tile, x_tile, {}, {}, take_gathered(p, p.width[0], shared),
            {}, {}};
  if constexpr (Pass::kWeights) pass.dw.clear();
  pass.run();
  if constexpr (Pass::kWeights) {
    pass.dw.write(a.weight_sums + (int64_t{blockIdx.x} * width + start) * width_in, columns,
                  width_in);
  }
  if constexpr (Pass::kData) {
    write_column_sums(pass.sums, reinterpret_cast<float*>(dy_tile), width_in,
                      a.below_sums + int64_t{blockIdx.x} * 2 * width_in);
  }
}

}  // namespace fusedops
