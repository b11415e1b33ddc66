// An MLP over edges, backward through its layer l (l >= 2): from the gradient of y_l to that of W_l
// and of the values before the activation of layer l - 1, whose rows are stored for the next pass
// and whose sums give the gradients of that layer's scale and shift.
//
// The gradient of y_l of an edge of weight w is (what comes from above) + w (A + B y_l), where A
// and B are those of the batch statistics, and from above comes, in the last layer, the gradient of
// a maximum at its place, else scale_l times the row that the pass before stored.
//
// All warps of a block step together: their tiles of 16 rows are operands of the block's dW_l.
#pragma once

#include "csrc/cuda/points/edges/edge_forward.cuh"

namespace fusedops {

// dX += dY W for 32 rows of W: dY is an operand 16 x 32.
template <class T, int kWidth>
__device__ __forceinline__ void product_back(const uint32_t (&dy)[2][4], const T* w,
                                             float (&dx)[kWidth / 8][4]) {
  constexpr int kLd = kWidth + kEdgePad;
  const int lane = lane_id();
  const T* row = w + (lane / 8 % 2 * 8 + lane % 8) * kLd + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
#pragma unroll
    for (int pair = 0; pair < kWidth / 16; ++pair) {
      uint32_t b[4];
      load_transposed(b, row + 16 * k * kLd + 16 * pair);
      mma_k16<T>(dx[2 * pair], dy[k], b[0], b[1]);
      mma_k16<T>(dx[2 * pair + 1], dy[k], b[2], b[3]);
    }
  }
}

// What comes from above to 32 channels of a lane's two rows, as it is read.
struct EdgeAbove {
  uint2 raw[4][2];  // two winners, or a pair of T and nothing

  // at: where a row's channels begin, those of the lane.
  template <class T>
  __device__ __forceinline__ void load(const EdgeBackward<T>& a, const int64_t (&at)[2], int c) {
    a.winners ? load<true>(a, at, c) : load<false>(a, at, c);
  }
  template <bool kWinners, class T>
  __device__ __forceinline__ void load(const EdgeBackward<T>& a, const int64_t (&at)[2], int c) {
    if constexpr (kWinners) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint2* from = reinterpret_cast<const uint2*>(a.winners + at[half] + 32 * c);
#pragma unroll
        for (int b = 0; b < 4; ++b) raw[b][half] = __ldg(from + 4 * b);
      }
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t* from = reinterpret_cast<const uint32_t*>(a.above + at[half] + 32 * c);
#pragma unroll
        for (int b = 0; b < 4; ++b) raw[b][half].x = from[4 * b];  // will be written
      }
    }
  }
};

// The lower half of a winner as a number, where its neighbour (shifted up by 16 bits) is this one.
template <class T>
__device__ __forceinline__ float gradient_of(uint32_t winner, uint32_t neighbour) {
  const float value = unpack_pair<T>(winner).x;
  return (winner ^ neighbour) < 0x10000u ? value : 0.f;
}

// y = weight (A + B y) + above of two channels.
__device__ __forceinline__ void add_dense(float weight, const float4& ab, float2 above, float* y) {
  y[0] = fmaf(weight, fmaf(ab.y, y[0], ab.x), above.x);
  y[1] = fmaf(weight, fmaf(ab.w, y[1], ab.z), above.y);
}

// The gradient of y_l of 32 channels, from y_l. affine and dense begin at the lane's channels. A
// row behind the end has weight 0 and is no neighbour: it gets 0.
template <bool kWinners, class T>
__device__ __forceinline__ void output_gradient(const EdgeBackward<T>& a, const EdgeTile& tile,
                                                const EdgeAbove& from, const float4* affine,
                                                const float4* dense, float (&y)[4][4]) {
  float4 ab[4] = {};
  if (a.dense) {
#pragma unroll
    for (int b = 0; b < 4; ++b) ab[b] = __ldg(dense + 4 * b);
  }
  if constexpr (kWinners) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t neighbour = static_cast<uint32_t>(tile.neighbour(half)) << 16;
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const uint2 won = from.raw[b][half];
        add_dense(tile.weight(half), ab[b],
                  {gradient_of<T>(won.x, neighbour), gradient_of<T>(won.y, neighbour)},
                  y[b] + 2 * half);
      }
    }
  } else {
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const float4 st = __ldg(affine + 4 * b);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float weight = tile.weight(half);
        const float2 dz = unpack_pair<T>(weight > 0.f ? from.raw[b][half].x : 0u);
        add_dense(weight, ab[b], {st.x * dz.x, st.z * dz.y}, y[b] + 2 * half);
      }
    }
  }
}

template <class T>
__device__ __forceinline__ void output_gradient(const EdgeBackward<T>& a, const EdgeTile& tile,
                                                const EdgeAbove& from, const float4* affine,
                                                const float4* dense, float (&y)[4][4]) {
  a.winners ? output_gradient<true>(a, tile, from, affine, dense, y)
            : output_gradient<false>(a, tile, from, affine, dense, y);
}

// Rows of a warp in shared memory, 16 of them, `ld` elements apart.
template <class T>
__device__ __forceinline__ void store_fragment(const uint32_t (&a)[4], T* rows, int ld,
                                               int column) {
  T* to = rows + lane_id() / 4 * ld + column + 2 * (lane_id() % 4);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    *reinterpret_cast<uint32_t*>(to + i % 2 * 8 * ld + i / 2 * 8) = a[i];
  }
}

// A block's gradient of a weight matrix, kOut x kIn: warps take quarters of its rows (halves of 32)
// and halves of its columns.
template <int kOut, int kIn>
struct EdgeWeightGradient {
  static constexpr int kParts = kOut < 64 ? 2 : 4;
  static constexpr int kTiles = kOut / kParts / 16, kColumns = kIn / 16;
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

  static __device__ __forceinline__ int first_row() { return warp_id() % kParts * (kOut / kParts); }
  static __device__ __forceinline__ int first_column() { return warp_id() / kParts * (kIn / 2); }

  // Adds dY^T X of the block's rows.
  template <class T>
  __device__ __forceinline__ void add(const T* dy, int dy_ld, const T* x, int x_ld) {
    const int i = lane_id() / 8, r = lane_id() % 8;
    if (first_column() >= kIn) return;
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

  // to: [kOut][kIn].
  __device__ __forceinline__ void write(float* to) const {
    if (first_column() >= kIn) return;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row() + 16 * m + 8 * half + lane_id() / 4;
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
          const int column = first_column() + 8 * n + 2 * (lane_id() % 4);
          *reinterpret_cast<float2*>(to + row * kIn + column) = {sum[m][n][2 * half],
                                                                 sum[m][n][2 * half + 1]};
        }
      }
    }
  }
};

// The sums of layer l - 1 that a lane has: of columns 64 i + 2 lane and the next.
template <int kWidth>
struct EdgeColumnSums {
  static constexpr int kPairs = kWidth < 64 ? 1 : kWidth / 64;
  float2 dz[kPairs] = {}, dzy[kPairs] = {};

  // dz of the 16 rows of a warp.
  uint32_t rows[kPairs][kEdgeRows];

  __device__ __forceinline__ static bool has_column(int i) {
    return kWidth % 64 == 0 || 64 * i + 2 * lane_id() < kWidth;
  }

  template <class T>
  __device__ __forceinline__ void add_gradients(const T* from, int ld) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
#pragma unroll
      for (int row = 0; row < kEdgeRows; ++row) {
        if (!has_column(i)) continue;
        const int at = row * ld + 64 * i + 2 * lane_id();
        rows[i][row] = *reinterpret_cast<const uint32_t*>(from + at);
        const float2 d = unpack_pair<T>(rows[i][row]);
        dz[i].x += d.x;
        dz[i].y += d.y;
      }
    }
  }

  // The centred values that belong to them.
  template <class T>
  __device__ __forceinline__ void add_products(const T* from, int ld) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
#pragma unroll
      for (int row = 0; row < kEdgeRows; ++row) {
        if (!has_column(i)) continue;
        const int at = row * ld + 64 * i + 2 * lane_id();
        const float2 d = unpack_pair<T>(rows[i][row]);
        const float2 y = unpack_pair<T>(*reinterpret_cast<const uint32_t*>(from + at));
        dzy[i].x = fmaf(d.x, y.x, dzy[i].x);
        dzy[i].y = fmaf(d.y, y.y, dzy[i].y);
      }
    }
  }
};

// Sums the warps' columns in their order: to is [2][kWidth].
template <int kWidth>
__device__ __forceinline__ void write_column_sums(const EdgeColumnSums<kWidth>& sums, float* stage,
                                                  float* to) {
  __syncthreads();
#pragma unroll
  for (int i = 0; i < EdgeColumnSums<kWidth>::kPairs; ++i) {
    const int column = 64 * i + 2 * lane_id();
    if (column >= kWidth) continue;
    float* at = stage + warp_id() * 2 * kWidth + column;
    *reinterpret_cast<float2*>(at) = sums.dz[i];
    *reinterpret_cast<float2*>(at + kWidth) = sums.dzy[i];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kWidth; i += kEdgeThreads) {
    float sum = 0.f;
    for (int w = 0; w < kEdgeWarps; ++w) sum += stage[w * 2 * kWidth + i];
    to[i] = sum;
  }
}

// A block's tiles of dY and of X in shared memory; dz and centred y pass through that of X as well.
template <class T, int kHidden, int kOut, EdgePass kPass>
struct EdgeTiles {
  static constexpr int kX = kHidden + kEdgePad;  // elements of a row
  static constexpr int kDy = kPass == EdgePass::kData ? 0 : kOut + kEdgePad;
  static constexpr int kRows = kEdgeWarps * kEdgeRows;
  static constexpr int kBytes = kRows * (kX + kDy) * 2;

  T* dy;
  T* x;

  // The warp's rows.
  __device__ __forceinline__ T* dy_rows() const { return dy + warp_id() * kEdgeRows * kDy; }
  __device__ __forceinline__ T* x_rows() const { return x + warp_id() * kEdgeRows * kX; }

  // A warp without rows adds nothing to dW.
  __device__ __forceinline__ void clear_rows() const {
    for (int i = lane_id(); i < kEdgeRows * kDy / 2; i += 32) {
      reinterpret_cast<uint32_t*>(dy_rows())[i] = 0;
    }
    for (int i = lane_id(); i < kEdgeRows * kX / 2; i += 32) {
      reinterpret_cast<uint32_t*>(x_rows())[i] = 0;
    }
  }

  __device__ __forceinline__ void stage(const EdgeOperand<kHidden>& values) const {
    __syncwarp();
#pragma unroll
    for (int k = 0; k < kHidden / 16; ++k) store_fragment(values.a[k], x_rows(), kX, 16 * k);
    __syncwarp();
  }

  // Writes dz of the first `rows` of a tile's rows and adds it to the sums, with centred y.
  __device__ __forceinline__ void write_rows(const EdgeBackward<T>& a, const EdgeTile& tile,
                                             int rows, const EdgeOperand<kHidden>& dz,
                                             const EdgeOperand<kHidden>& centred,
                                             EdgeColumnSums<kHidden>& sums) const {
    stage(dz);
    sums.add_gradients(x_rows(), kX);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane_id() / 4 + 8 * half;
      if (row >= rows) continue;
      T* to = a.below + tile.edge(half, a.problem.k) * kHidden;
#pragma unroll
      for (int at = 8 * (lane_id() % 4); at < kHidden; at += 32) {
        *reinterpret_cast<uint4*>(to + at) =
            *reinterpret_cast<const uint4*>(x_rows() + row * kX + at);
      }
    }
    stage(centred);
    sums.add_products(x_rows(), kX);
    __syncwarp();
  }
};

// All bits of each half where a value is positive, or NaN.
template <class T>
__device__ __forceinline__ uint32_t positive_mask(uint32_t pair) {
  if constexpr (__is_same(T, __half)) {
    const __half zero = __ushort_as_half(0);
    return __hgtu2_mask(*reinterpret_cast<const __half2*>(&pair), __half2(zero, zero));
  } else {
    const __nv_bfloat16 zero = __ushort_as_bfloat16(0);
    return __hgtu2_mask(*reinterpret_cast<const __nv_bfloat162*>(&pair),
                        __nv_bfloat162(zero, zero));
  }
}

// Turns the values of a layer into the gradients before its activation; dx: those behind it.
template <class T, int kWidth>
__device__ __forceinline__ void through_activation(const EdgeProblem<T>& p,
                                                   const float (&dx)[kWidth / 8][4],
                                                   EdgeOperand<kWidth>& x) {
  if (p.is_relu) {
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* d = &dx[2 * k + i / 2][i % 2 * 2];
        x.a[k][i] = pack_pair<T>(d[0], d[1]) & positive_mask<T>(x.a[k][i]);
      }
    }
  } else {
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 act = unpack_pair<T>(x.a[k][i]);
        const float* d = &dx[2 * k + i / 2][i % 2 * 2];
        x.a[k][i] = pack_pair<T>(act.x <= 0.f ? p.slope * d[0] : d[0],
                                 act.y <= 0.f ? p.slope * d[1] : d[1]);
      }
    }
  }
}

// kHidden: at least the widths before layer l. kOut: at least that of layer l with kBoth; a block's
// slice of it with kWeights; with kData it does not matter.
template <class T, int kHidden, int kOut, EdgePass kPass>
struct EdgeBackwardPass {
  static constexpr bool kData = kPass != EdgePass::kWeights, kWeights = kPass != EdgePass::kData;
  using Tiles = EdgeTiles<T, kHidden, kOut, kPass>;

  const EdgeBackward<T>& a;
  EdgeWeights<T> w;
  int start, columns;  // of layer l
  Tiles tiles;
  EdgeWeightGradient<kOut, kHidden> dw;
  EdgeColumnSums<kHidden> sums;
  EdgeGathered gathered;
  EdgeOperand<kHidden> x, centred;

  // The operands of dW go into shared memory, dz takes the place of x.
  __device__ __forceinline__ void compute(const EdgeTile& tile, const EdgeTile& next) {
    const EdgeProblem<T>& p = a.problem;
    hidden_layers<T, kData>(p, w, tile, gathered, next, x, a.center, centred);
    const int channel = start + 2 * (lane_id() % 4);
    int64_t at[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = a.winners ? tile.group(half) : tile.edge(half, p.k);
      at[half] = row * p.width + channel;
    }
    const float4* affine = p.affine + ((p.layers - 1) * kHidden + channel) / 2;
    const float4* dense = a.dense + channel / 2;
    float dx[kHidden / 8][4] = {};
#pragma unroll 1
    for (int c = 0; 32 * c < columns; ++c, affine += 16, dense += 16) {
      EdgeAbove above;
      above.load(a, at, c);
      float y[4][4] = {};
      if (a.dense) product<T>(x, w.last, c, y);
      output_gradient(a, tile, above, affine, dense, y);
      EdgeOperand<32> dy;
      store_operand<T>(y, 0, dy);
      if constexpr (kWeights) {
        store_fragment(dy.a[0], tiles.dy_rows(), Tiles::kDy, 32 * c);
        store_fragment(dy.a[1], tiles.dy_rows(), Tiles::kDy, 32 * c + 16);
      }
      if constexpr (kData) {
        product_back<T, kHidden>(dy.a, w.last + 32 * c * (kHidden + kEdgePad), dx);
      }
    }
#pragma unroll
    for (int k = 0; k < kHidden / 16; ++k) {
      if constexpr (kWeights) store_fragment(x.a[k], tiles.x_rows(), Tiles::kX, 16 * k);
    }
    if constexpr (kData) through_activation<T>(p, dx, x);
  }

  __device__ __forceinline__ void run() {
    const EdgeProblem<T>& p = a.problem;
    const int end = __ldg(p.ends + p.groups - 1);
    const int64_t stride = int64_t{gridDim.x} * kEdgeWarps * kEdgeRows;
    int64_t block_first = int64_t{blockIdx.x} * kEdgeWarps * kEdgeRows;
    int64_t first = block_first + warp_id() * kEdgeRows;
    EdgeTile tile, done;
    if (first < end) {
      tile = load_tile(p, static_cast<int>(first), end);
      gathered.start_copy(p, tile, 0, kHidden);
    }
    for (; block_first < end; block_first += stride, first += stride) {
      const bool has_rows = first < end;
      if (has_rows) {
        const int64_t following = first + stride < end ? first + stride : first;
        const EdgeTile next = load_tile(p, static_cast<int>(following), end);
        compute(tile, next);
        done = tile;
        tile = next;
      } else if constexpr (kWeights) {
        tiles.clear_rows();
      }
      if constexpr (kWeights) {
        __syncthreads();
        dw.add(tiles.dy, Tiles::kDy, tiles.x, Tiles::kX);
        __syncthreads();
      }
      if constexpr (kData) {
        if (!has_rows) continue;
        const int rows = static_cast<int>(min(end - first, int64_t{kEdgeRows}));
        tiles.write_rows(a, done, rows, x, centred, sums);
      }
    }
    gathered.wait();
  }
};

template <class T, int kHidden, int kOut, EdgePass kPass>
__global__ void __launch_bounds__(kEdgeThreads, edge_blocks_of_sm(kHidden > kOut ? kHidden : kOut))
    edge_backward_kernel(const __grid_constant__ EdgeBackward<T> a) {
  using Pass = EdgeBackwardPass<T, kHidden, kOut, kPass>;
  using Tiles = typename Pass::Tiles;
  extern __shared__ __align__(16) unsigned char memory[];
  const EdgeProblem<T>& p = a.problem;
  const bool slices = kPass == EdgePass::kWeights;
  const int start = slices ? static_cast<int>(blockIdx.y) * kOut : 0;
  const int columns = kPass == EdgePass::kData ? p.width : kOut;
  SharedTaker shared{memory};
  const Tiles tiles{shared.take<T>(Tiles::kRows * Tiles::kDy),
                    shared.take<T>(Tiles::kRows * Tiles::kX)};
  const EdgeWeights<T> w = load_layers(p, start, columns, false, shared);
  Pass pass{a, w, start, columns, tiles, {}, {}, take_gathered(p, kHidden, shared), {}, {}};
  if constexpr (Pass::kWeights) pass.dw.clear();
  __syncthreads();
  pass.run();
  if constexpr (Pass::kWeights) {
    pass.dw.write(a.weight_sums + (int64_t{blockIdx.x} * p.width + start) * kHidden);
  }
  if constexpr (Pass::kData) {
    write_column_sums(pass.sums, reinterpret_cast<float*>(tiles.x),
                      a.below_sums + int64_t{blockIdx.x} * 2 * kHidden);
  }
}

}  // namespace fusedops
