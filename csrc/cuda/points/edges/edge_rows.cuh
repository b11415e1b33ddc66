// What a warp does with 16 rows: it forms the first layer from gathered values and takes the hidden
// layers in registers, the accumulators of one being the operand of the next. What the rows after
// these gather is on its way meanwhile.
#pragma once

#include "csrc/common/device/async_copy.cuh"
#include "csrc/common/device/mma.cuh"
#include "csrc/cuda/points/edges/edge_problem.h"

namespace fusedops {

inline constexpr int kEdgeWarps = 8;
inline constexpr int kEdgeThreads = 32 * kEdgeWarps;
inline constexpr int kEdgePad = 8;      // elements behind a row in shared memory: no bank conflicts
inline constexpr int kEdgeSector = 32;  // bytes
inline constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x % 32); }
__device__ __forceinline__ int warp_id() { return static_cast<int>(threadIdx.x / 32); }

// A lane's two rows of 16, lane / 4 and lane / 4 + 8: their records. Rows behind the end repeat the
// first one of the tile with weight 0, and their neighbour is turned over: it is none.
struct EdgeTile {
  int row[2];
  int4 record[2];

  __device__ __forceinline__ int64_t point(int half) const { return record[half].x; }
  __device__ __forceinline__ int64_t group(int half) const { return record[half].y; }
  __device__ __forceinline__ int neighbour(int half) const { return record[half].z; }
  // The edge that is read, there for a row behind the end as well.
  __device__ __forceinline__ int64_t edge(int half, int k) const {
    const int place = record[half].z;
    return group(half) * k + (place < 0 ? ~place : place);
  }
  __device__ __forceinline__ float weight(int half) const { return __int_as_float(record[half].w); }
};

template <class T>
__device__ __forceinline__ EdgeTile load_tile(const EdgeProblem<T>& p, int first, int end) {
  EdgeTile tile;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + lane_id() / 4 + 8 * half;
    tile.row[half] = row < end ? row : first;
    tile.record[half] = __ldg(p.list + tile.row[half]);
    if (row >= end) tile.record[half].z = ~tile.record[half].z, tile.record[half].w = 0;
  }
  return tile;
}

// What a tile gathers: its rows, which are copied to the warp's place in shared memory, and its
// operands.
struct EdgeGathered {
  float* rows;  // [kEdgeRows][ld], or null
  int ld;
  uint32_t operand[4];  // 16 x 16, the second half 0 where there is one plane

  // Starts copying channels start .. start + columns of the tile's rows.
  template <class T>
  __device__ __forceinline__ void start_copy(const EdgeProblem<T>& p, const EdgeTile& tile,
                                             int start, int columns) {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(p.operands) + lane_id() % 4;
    constexpr int kWords = kEdgePlane / 2;
    if (p.planes > 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        operand[half] = __ldg(words + int64_t{tile.row[half]} * kWords);
      }
    }
    if (p.planes > 1) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        operand[2 + half] = __ldg(words + (p.edges + tile.row[half]) * kWords);
      }
    }
    if (!rows) return;
    __syncwarp();  // others have read
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* from = p.rows + tile.point(half) * p.first_width() + start;
      float* to = rows + (lane_id() / 4 + 8 * half) * ld;
      // NOTE: four lanes take 64 bytes side by side: whole sectors.
      for (int at = 4 * (lane_id() % 4); at < columns; at += 16) {
        copy_async(shared_address(to + (at ^ swizzle())), from + at);
      }
    }
    commit_copies();
  }

  // For what the lanes of the warp have copied.
  __device__ __forceinline__ void wait() const {
    if (!rows) return;
    wait_for_copies();
    __syncwarp();
  }

  // The lane's share of channels 32 c .. 32 c + 31 of a row.
  __device__ __forceinline__ const float* share(int half, int c) const {
    return rows + (lane_id() / 4 + 8 * half) * ld + 32 * c + (8 * (lane_id() % 4) ^ swizzle());
  }

  // Odd rows have the halves of 32 values the other way round, so that eight lanes write all banks.
  // NOTE: a sector of 32 bytes stays one: copies that tear sectors are several times slower.
  static __device__ __forceinline__ int swizzle() { return lane_id() / 4 % 2 * 16; }
};

// Adds a lane's share of a row to its half of a tile.
__device__ __forceinline__ void add_row(float (&y)[4][4], const float* row, int half) {
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const float4 v = reinterpret_cast<const float4*>(row)[pair];
    y[2 * pair][2 * half] += v.x;
    y[2 * pair][2 * half + 1] += v.y;
    y[2 * pair + 1][2 * half] += v.z;
    y[2 * pair + 1][2 * half + 1] += v.w;
  }
}

// y_1 of channels start + 32 c .. start + 32 c + 31; what is gathered starts at `start`. weight is
// first_weight in shared memory.
template <class T>
__device__ __forceinline__ void first_layer(const EdgeProblem<T>& p, const EdgeTile& tile,
                                            const EdgeGathered& gathered, const T* weight,
                                            int start, int c, float (&y)[4][4]) {
  const int q = lane_id() % 4;
  const int64_t at = start + 32 * c + 8 * q;
#pragma unroll
  for (int b = 0; b < 4; ++b) y[b][0] = y[b][1] = y[b][2] = y[b][3] = 0.f;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (gathered.rows) add_row(y, gathered.share(half, c), half);
    if (p.group_rows) {
      add_row(y, p.group_rows + tile.group(half) * p.first_width() + at, half);
    }
  }
  if (p.planes > 0) {
    const T* w = weight + (start + 32 * c + lane_id() / 4) * kEdgePlane + 2 * q;
    const T* second = w + p.first_width() * kEdgePlane;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const uint32_t b0 = *reinterpret_cast<const uint32_t*>(w + 8 * b * kEdgePlane);
      uint32_t b1 = 0;
      if (p.planes > 1) b1 = *reinterpret_cast<const uint32_t*>(second + 8 * b * kEdgePlane);
      mma_k16<T>(y[b], gathered.operand, b0, b1);
    }
  }
}

// The values of a layer of up to kWidth channels as the operand of a product.
template <int kWidth>
struct EdgeOperand {
  uint32_t a[kWidth / 16][4];
};

// Columns 32 c .. 32 c + 31 of x times the transpose of w, which is [columns][kWidth + kEdgePad] in
// shared memory.
template <class T, int kWidth>
__device__ __forceinline__ void product(const EdgeOperand<kWidth>& x, const T* w, int c,
                                        float (&y)[4][4]) {
  constexpr int kLd = kWidth + kEdgePad;
  const int lane = lane_id();
  const T* row = w + (lane / 16 * 8 + lane % 8) * kLd + lane / 8 % 2 * 8 + 32 * c * kLd;
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      uint32_t b[4];
      load_matrices(b, row + 16 * pair * kLd + 16 * k);
      if (k == 0) {
        mma_k16_first<T>(y[2 * pair], x.a[k], b[0], b[1]);
        mma_k16_first<T>(y[2 * pair + 1], x.a[k], b[2], b[3]);
      } else {
        mma_k16<T>(y[2 * pair], x.a[k], b[0], b[1]);
        mma_k16<T>(y[2 * pair + 1], x.a[k], b[2], b[3]);
      }
    }
  }
}

// scale y + shift of channels 32 c .. 32 c + 31.
__device__ __forceinline__ void apply_affine(const float4* affine, int c, float (&y)[4][4]) {
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    const float4 st = affine[16 * c + 4 * b + lane_id() % 4];
    y[b][0] = fmaf(y[b][0], st.x, st.y);
    y[b][1] = fmaf(y[b][1], st.z, st.w);
    y[b][2] = fmaf(y[b][2], st.x, st.y);
    y[b][3] = fmaf(y[b][3], st.z, st.w);
  }
}

__device__ __forceinline__ bool is_padding(float scale) {
  return __float_as_int(scale) == __float_as_int(kPaddingScale);
}

// Makes padded channels 0: their weights are, but an infinite operand makes them NaN.
__device__ __forceinline__ void clear_padding(const float4* affine, int c, float (&y)[4][4]) {
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    const float4 st = affine[16 * c + 4 * b + lane_id() % 4];
    if (is_padding(st.x)) y[b][0] = y[b][2] = 0.f;
    if (is_padding(st.z)) y[b][1] = y[b][3] = 0.f;
  }
}

__device__ __forceinline__ float max_or_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

template <class T>
__device__ __forceinline__ float edge_activation(const EdgeProblem<T>& p, float z) {
  if (p.is_relu) return max_or_nan(z, 0.f);
  return z < 0.f ? p.slope * z : z;
}

// Writes channels 32 c .. 32 c + 31 into an operand.
template <class T, int kWidth>
__device__ __forceinline__ void store_operand(const float (&y)[4][4], int c,
                                              EdgeOperand<kWidth>& to) {
#pragma unroll
  for (int b = 0; b < 4; ++b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      to.a[2 * c + b / 2][b % 2 * 2 + half] = pack_pair<T>(y[b][2 * half], y[b][2 * half + 1]);
    }
  }
}

// Likewise act(z). NOTE: one branch for all values; ReLU is part of the rounding.
template <class T, int kWidth>
__device__ __forceinline__ void store_activated(const EdgeProblem<T>& p, float (&z)[4][4], int c,
                                                EdgeOperand<kWidth>& to) {
  if (p.is_relu) {
#pragma unroll
    for (int b = 0; b < 4; ++b) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        to.a[2 * c + b / 2][b % 2 * 2 + half] = pack_relu<T>(z[b][2 * half], z[b][2 * half + 1]);
      }
    }
  } else {
#pragma unroll
    for (int b = 0; b < 4; ++b) {
#pragma unroll
      for (int i = 0; i < 4; ++i) z[b][i] = z[b][i] < 0.f ? p.slope * z[b][i] : z[b][i];
    }
    store_operand<T>(z, c, to);
  }
}

// Where the layers lie in shared memory. Rows of weights are kHidden + kEdgePad elements apart.
template <class T>
struct EdgeWeights {
  const T* first;        // [planes][width of the first layer][kEdgePlane]
  const T* hidden;       // of the layers between the first and the last
  const T* last;         // the block's rows
  const float4* affine;  // of the hidden layers
  const float4* signs;   // of a lone layer's scales: (sign, 0) of two channels
};

// Values of channels 32 c .. 32 c + 31 less `center`, rounded.
template <class T, int kWidth>
__device__ __forceinline__ void store_centred(const float (&y)[4][4], const float* center, int c,
                                              EdgeOperand<kWidth>& to) {
  float centred[4][4];
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    const float2 mean =
        center ? __ldg(reinterpret_cast<const float2*>(center + 32 * c + 8 * b) + lane_id() % 4)
               : float2{};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      centred[b][2 * half] = y[b][2 * half] - mean.x;
      centred[b][2 * half + 1] = y[b][2 * half + 1] - mean.y;
    }
  }
  store_operand<T>(centred, c, to);
}

// Turns y_l of channels 32 c .. 32 c + 31 into the next layer's operand. Where `centres`, y_l less
// `center` and rounded goes into `centred`.
template <class T, int kWidth>
__device__ __forceinline__ void activate(const EdgeProblem<T>& p, const float4* affine, int c,
                                         float (&y)[4][4], EdgeOperand<kWidth>& to, bool centres,
                                         const float* center, EdgeOperand<kWidth>& centred) {
  if (centres) store_centred<T>(y, center, c, centred);
  apply_affine(affine, c, y);
  store_activated<T>(p, y, c, to);
}

// The activations of the last hidden layer of a tile; `gathered` is the tile's before and the next
// one's after. Where kCentres, that layer's values before its scale, less `center` and rounded, go
// into `centred`.
template <class T, bool kCentres, int kWidth>
__device__ __forceinline__ void hidden_layers(const EdgeProblem<T>& p, const EdgeWeights<T>& w,
                                              const EdgeTile& tile, EdgeGathered& gathered,
                                              const EdgeTile& next, EdgeOperand<kWidth>& x,
                                              const float* center, EdgeOperand<kWidth>& centred) {
  gathered.wait();
  bool padded = is_padding(w.affine[kWidth / 2 - 1].z);
#pragma unroll
  for (int c = 0; c < kWidth / 32; ++c) {
    float y[4][4];
    first_layer(p, tile, gathered, w.first, 0, c, y);
    if (padded) clear_padding(w.affine, c, y);
    activate<T>(p, w.affine, c, y, x, kCentres && p.layers == 2, center, centred);
  }
  gathered.start_copy(p, next, 0, kWidth);
  const T* weight = w.hidden;
  const float4* affine = w.affine;
#pragma unroll 1
  for (int l = 1; l < p.layers - 1; ++l) {
    affine += kWidth / 2;
    padded = is_padding(affine[kWidth / 2 - 1].z);
    EdgeOperand<kWidth> following;
#pragma unroll
    for (int c = 0; c < kWidth / 32; ++c) {
      float y[4][4];
      product<T>(x, weight, c, y);
      if (padded) clear_padding(affine, c, y);
      activate<T>(p, affine, c, y, following, kCentres && l == p.layers - 2, center, centred);
    }
    x = following;
    weight += kWidth * (kWidth + kEdgePad);
  }
}

// Shared memory is dealt out from the front, 16 bytes at a time.
struct SharedTaker {
  unsigned char* at;

  template <class V>
  __device__ V* take(int count) {
    V* result = reinterpret_cast<V*>(at);
    at += (count * static_cast<int>(sizeof(V)) + 15) / 16 * 16;
    return result;
  }

  // Rows that are gathered, which begin with a sector.
  __device__ float* take_rows(int count) {
    at += -reinterpret_cast<uintptr_t>(at) % kEdgeSector;
    return take<float>(count);
  }
};

// A warp's place for the rows that it gathers, `columns` wide.
template <class T>
__device__ __forceinline__ EdgeGathered take_gathered(const EdgeProblem<T>& p, int columns,
                                                      SharedTaker& shared) {
  EdgeGathered gathered{nullptr, columns, {}};
  if (p.rows) {
    float* all = shared.take_rows(kEdgeWarps * kEdgeRows * gathered.ld);
    gathered.rows = all + warp_id() * kEdgeRows * gathered.ld;
  }
  return gathered;
}

// Eight elements of a row of `width`, with the other sign where scales are given and its is
// negative.
template <class T>
__device__ __forceinline__ uint4 load_piece(const T* from, int row, int width, int piece,
                                            const float2* affine) {
  uint4 values = __ldg(reinterpret_cast<const uint4*>(from + int64_t{row} * width) + piece);
  if (affine && affine[row].x < 0.f) {
    constexpr uint32_t kSigns = 0x80008000u;
    values = {values.x ^ kSigns, values.y ^ kSigns, values.z ^ kSigns, values.w ^ kSigns};
  }
  return values;
}

// Copies `rows` rows of `width` elements (a multiple of 8) to rows of width + kEdgePad; rows whose
// scale is negative with the other sign, where scales are given.
template <class T>
__device__ __forceinline__ void copy_weights(const T* from, int rows, int width,
                                             const float2* affine, T* to) {
  const int pieces = width / 8;
  for (int i = static_cast<int>(threadIdx.x); i < rows * pieces; i += kEdgeThreads) {
    const int row = i / pieces, piece = i % pieces;
    reinterpret_cast<uint4*>(to + row * (width + kEdgePad))[piece] =
        load_piece(from, row, width, piece, affine);
  }
}

template <class V>
__device__ __forceinline__ void copy_values(const V* from, int count, V* to) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kEdgeThreads) to[i] = from[i];
}

__device__ __forceinline__ void copy_signs(const float4* from, int count, float4* to) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kEdgeThreads) {
    const float4 st = from[i];
    to[i] = {st.x < 0.f ? -1.f : 1.f, 0.f, st.z < 0.f ? -1.f : 1.f, 0.f};
  }
}

// Brings all layers into shared memory; of the last one rows `start` .. `start + columns`, with the
// signs of its scales where `probes`.
template <class T>
__device__ __forceinline__ EdgeWeights<T> load_layers(const EdgeProblem<T>& p, int start,
                                                      int columns, bool probes,
                                                      SharedTaker& shared) {
  const int width = p.hidden, ld = width + kEdgePad, between = max(p.layers - 2, 0);
  const int hidden_pairs = (p.layers - 1) * width / 2;
  const int first_count = p.planes * p.first_width() * kEdgePlane;
  T* first = shared.take<T>(first_count);
  T* hidden = shared.take<T>(between * width * ld);
  T* last = shared.take<T>(p.layers > 1 ? columns * ld : 0);
  float4* affine = shared.take<float4>(hidden_pairs);
  float4* signs = shared.take<float4>(p.layers > 1 ? 0 : columns / 2);
  const float4* last_affine = p.affine + hidden_pairs + start / 2;
  copy_values(reinterpret_cast<const uint4*>(p.first_weight), first_count / 8,
              reinterpret_cast<uint4*>(first));
  if (p.layers > 1) {
    copy_weights<T>(p.weights, between * width, width, nullptr, hidden);
    copy_weights(p.weights + int64_t{between * width + start} * width, columns, width,
                 probes ? reinterpret_cast<const float2*>(last_affine) : nullptr, last);
  } else {
    copy_signs(last_affine, columns / 2, signs);
  }
  copy_values(p.affine, hidden_pairs, affine);
  return {first, hidden, last, affine, signs};
}

}  // namespace fusedops
