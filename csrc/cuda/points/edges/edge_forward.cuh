// An MLP over edges, forward: what the last layer's values v = sign(scale) y are over a group
// (their maximum and where it is) and over all edges (sums of v and v^2, weighted). Weights are in
// shared memory with that sign; scale and shift come to the maximum, as they keep the order.
//
// A warp owns a group: the maxima stay in its registers until the group's end. Blocks (x, s) take
// columns s * kLast to (s + 1) * kLast of the last layer.
#pragma once

#include <algorithm>

#include "csrc/common/device/shared_memory.cuh"
#include "csrc/common/device/vec.cuh"
#include "csrc/common/int_math.h"
#include "csrc/cuda/points/edges/edge_arguments.h"
#include "csrc/cuda/points/edges/edge_rows.cuh"

namespace fusedops {

inline constexpr int kEdgeStage = 64;  // columns that are reduced over the rows of a warp at a time

// What the lanes of a warp found for 64 columns, [lane / 4][column].
struct EdgeStage {
  static constexpr int kStride = kEdgeStage + 8;
  float best[8][kStride];
  unsigned short code[8][kStride];
};

inline constexpr int kEdgePivots = kEdgeWarps * kEdgeSlice;  // of a block's sums

// The maxima of the rows that a lane has seen. A code is 2 * step + half, 255 before any.
template <int kColumns>
struct EdgeMaxima {
  static constexpr int kValues = kColumns / 4;
  float best[kValues];
  uint32_t code[kValues / 4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kValues; ++i) best[i] = -INFINITY;
#pragma unroll
    for (int i = 0; i < kValues / 4; ++i) code[i] = 0xffffffffu;
  }

  // Channels 32 c .. 32 c + 31 of step `step`. `fixed`: a bit for each of the lane's channels whose
  // scale is 0: all of their values tie, and the group's first row has the lowest place.
  template <bool kWhich>
  __device__ __forceinline__ void add(const float (&v)[4][4], int c, int step, uint32_t fixed) {
    if (kWhich && fixed != 0) return add_fixed(v, c, step, fixed);
#pragma unroll
    for (int b = 0; b < 4; ++b) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int i = 8 * c + 2 * b + h;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float value = v[b][2 * half + h];
          const float larger = max_or_nan(best[i], value);
          if constexpr (kWhich) {
            // NOTE: v is never -0, and NaN has one form: a first NaN changes bits, others do not.
            if (__float_as_int(larger) != __float_as_int(best[i])) {
              code[i / 4] = __byte_perm(code[i / 4], 2 * step + half, place_of(i % 4));
            }
          }
          best[i] = larger;
        }
      }
    }
  }

 private:
  // v is larger than best, or the first NaN.
  static __device__ __forceinline__ bool beats(float v, float best) {
    return !(v <= best) && best == best;
  }

  __device__ __forceinline__ void add_fixed(const float (&v)[4][4], int c, int step,
                                            uint32_t fixed) {
#pragma unroll
    for (int b = 0; b < 4; ++b) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int i = 8 * c + 2 * b + h;
        const bool is_fixed = fixed >> i & 1;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float value = v[b][2 * half + h];
          const bool first = step == 0 && half == 0 && lane_id() < 4;
          if (is_fixed ? first : beats(value, best[i])) {
            code[i / 4] = __byte_perm(code[i / 4], 2 * step + half, place_of(i % 4));
            best[i] = value;
          }
        }
      }
    }
  }

  // The selector that puts a byte of the second operand at `byte` of the first.
  static __host__ __device__ constexpr uint32_t place_of(int byte) {
    return (0x3210u & ~(0xfu << 4 * byte)) | 4u << 4 * byte;
  }
};

inline constexpr int kEdgeNoPlace = 8 * 255;

// The largest values of a warp's rows in columns 2 lane and 2 lane + 1 of a stage, NaN before all,
// and the lowest places that have them. NOTE: equal values have equal bits: v is never -0, and NaN
// has one form.
template <bool kWhich>
__device__ __forceinline__ void best_of_rows(const EdgeStage& stage, float (&best)[2],
                                             int (&place)[2]) {
  const int column = 2 * lane_id();
  float2 v[8];
#pragma unroll
  for (int row = 0; row < 8; ++row) {
    v[row] = *reinterpret_cast<const float2*>(&stage.best[row][column]);
    best[0] = row > 0 ? max_or_nan(best[0], v[row].x) : v[row].x;
    best[1] = row > 0 ? max_or_nan(best[1], v[row].y) : v[row].y;
  }
  if constexpr (kWhich) {
    place[0] = place[1] = kEdgeNoPlace;
#pragma unroll
    for (int row = 0; row < 8; ++row) {
      const ushort2 code = *reinterpret_cast<const ushort2*>(&stage.code[row][column]);
      const int x = 8 * code.x + row, y = 8 * code.y + row;
      if (__float_as_int(v[row].x) == __float_as_int(best[0])) place[0] = min(place[0], x);
      if (__float_as_int(v[row].y) == __float_as_int(best[1])) place[1] = min(place[1], y);
    }
  }
}

template <class T, int kColumns, bool kWhich>
__device__ __forceinline__ void write_group(const EdgeForward<T>& a, int64_t group, int2 rows,
                                            const EdgeMaxima<kColumns>& found, EdgeStage& stage,
                                            int start) {
  constexpr int kParts = kColumns / kEdgeStage;
  const int q = lane_id() % 4, r = lane_id() / 4, column = 2 * lane_id();
  const bool empty = rows.x >= rows.y;
  float best[kParts][2];
  int place[kParts][2], winner[kParts][2];
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const int first = start + part * kEdgeStage;
    if (first >= a.channels) break;
    __syncwarp();
#pragma unroll
    for (int b = 0; b < 8; ++b) {
      const int i = 16 * part + 2 * b;
      *reinterpret_cast<float2*>(&stage.best[r][8 * b + 2 * q]) = {found.best[i],
                                                                   found.best[i + 1]};
      if constexpr (kWhich) {
        const uint32_t pair = found.code[i / 4] >> 16 * (b % 2);
        *reinterpret_cast<uint32_t*>(&stage.code[r][8 * b + 2 * q]) =
            (pair & 0xffu) | (pair & 0xff00u) << 8;
      }
    }
    __syncwarp();
    best_of_rows<kWhich>(stage, best[part], place[part]);
    if constexpr (kWhich) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        // NOTE: where nothing beats -Inf, it is the first row's.
        const int row = rows.x + (place[part][h] < kEdgeNoPlace ? place[part][h] : 0);
        winner[part][h] = empty ? -1 : __ldg(&a.problem.list[row].z);
      }
    }
  }
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int channel = start + part * kEdgeStage + column + h;
      if (channel >= a.channels) continue;
      const int64_t to = group * a.channels + channel;
      if constexpr (!kWhich) {
        const EdgeProblem<T>& p = a.problem;
        const float2 st =
            __ldg(reinterpret_cast<const float2*>(p.affine) + p.before_last() + channel);
        const float z = fmaf(best[part][h], fabsf(st.x), st.y);
        a.out[to] = from_compute<T>(empty ? 0.f : edge_activation(p, z));
      } else {
        a.best[to] = empty ? 0.f : best[part][h];
        a.which[to] = static_cast<int16_t>(winner[part][h]);
      }
    }
  }
}

// Weighted sums of the rows that a lane has seen, of distances to the first row of its warp that
// counts: sums of squares lose what is small beside the mean.
template <int kColumns>
struct EdgeSums {
  float v[kColumns / 4], v2[kColumns / 4], weight;
  float* pivots;  // [kColumns] of the warp

  __device__ __forceinline__ void clear() {
    weight = 0.f;
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) v[i] = v2[i] = 0.f;
  }

  // The first row of the tile that counts, or 0; whether there is one.
  __device__ __forceinline__ bool set_pivots(const float (&y)[4][4], int c, const EdgeTile& tile) {
    const unsigned low = __ballot_sync(kAllLanes, tile.weight(0) > 0.f);
    const unsigned high = __ballot_sync(kAllLanes, tile.weight(1) > 0.f);
    const unsigned counts = low != 0 ? low : high;
    const int row = counts != 0 ? (__ffs(static_cast<int>(counts)) - 1) / 4 : 0;
    if (lane_id() / 4 == row) {
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        float2 pivot = low != 0 ? float2{y[b][0], y[b][1]} : float2{y[b][2], y[b][3]};
        if (counts == 0) pivot = {0.f, 0.f};
        *reinterpret_cast<float2*>(pivots + 32 * c + 8 * b + 2 * (lane_id() % 4)) = pivot;
      }
    }
    __syncwarp();
    return counts != 0;
  }

  __device__ __forceinline__ void add(const float (&y)[4][4], int c, const EdgeTile& tile) {
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const int column = 32 * c + 8 * b + 2 * (lane_id() % 4);
      const float2 pivot = *reinterpret_cast<const float2*>(pivots + column);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int i = 8 * c + 2 * b + h;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float value = y[b][2 * half + h] - (h == 0 ? pivot.x : pivot.y);
          const float weighted = tile.weight(half) * value;
          v[i] += weighted;
          v2[i] = fmaf(weighted, value, v2[i]);
        }
      }
    }
  }
};

// The block's mean, squared distances to it and count, those of its warps first, always in the same
// order.
template <int kColumns>
__device__ __forceinline__ void write_sums(const EdgeSums<kColumns>& sums, float* stage, int start,
                                           int width, float* to) {
  const int q = lane_id() % 4;
  const auto over_rows = [](float value) {
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) value += __shfl_xor_sync(kAllLanes, value, mask);
    return value;
  };
  __syncthreads();
  const float weight = __shfl_sync(kAllLanes, over_rows(sums.weight), 0);
  const float some = weight > 0.f ? weight : 1.f;
#pragma unroll
  for (int i = 0; i < kColumns / 4; ++i) {
    const float v = over_rows(sums.v[i]), v2 = over_rows(sums.v2[i]);
    const int column = 8 * (i / 2) + 2 * q + i % 2;
    if (lane_id() < 4) {
      const float rest = v2 - v * (v / some);
      stage[warp_id() * 2 * kColumns + column] =
          weight > 0.f ? sums.pivots[column] + v / some : 0.f;
      stage[warp_id() * 2 * kColumns + kColumns + column] = rest < 0.f ? 0.f : rest;  // NaN stays
    }
  }
  if (lane_id() == 0) stage[kEdgeWarps * 2 * kColumns + warp_id()] = weight;
  __syncthreads();
  const float* weights = stage + kEdgeWarps * 2 * kColumns;
  for (int i = static_cast<int>(threadIdx.x); i < kColumns; i += kEdgeThreads) {
    if (start + i >= width) continue;
    double n = 0, mean = 0, square = 0;
    for (int w = 0; w < kEdgeWarps; ++w) {
      if (!(weights[w] > 0.f)) continue;
      const double more = weights[w], distance = stage[w * 2 * kColumns + i] - mean;
      square +=
          stage[w * 2 * kColumns + kColumns + i] + distance * distance * n * more / (n + more);
      n += more;
      mean += distance * more / n;
    }
    to[start + i] = static_cast<float>(mean);
    to[width + start + i] = static_cast<float>(square);
    if (start + i == 0) to[2 * width] = static_cast<float>(n);
  }
}

// A bit for each of a lane's channels in `EdgeMaxima` whose scale is 0.
template <int kColumns, class T>
__device__ __forceinline__ uint32_t channels_of_scale_0(const EdgeProblem<T>& p, int start) {
  const float2* affine = reinterpret_cast<const float2*>(p.affine) + p.before_last() + start;
  uint32_t fixed = 0;
  for (int i = 0; i < kColumns / 4; ++i) {
    const int column = 8 * (i / 2) + 2 * (lane_id() % 4) + i % 2;
    if (__ldg(affine + column).x == 0.f) fixed |= 1u << i;
  }
  return fixed;
}

// The rows of a group.
template <class T>
__device__ __forceinline__ int2 rows_of_group(const EdgeProblem<T>& p, int64_t group) {
  if (group >= p.groups) return {};
  const int end = __ldg(p.ends + group);
  if (p.spaced) return {static_cast<int>(group) * p.k, end};
  return {group > 0 ? __ldg(p.ends + group - 1) : 0, end};
}

// What a warp found: the maxima of a group and the sums of all of its rows.
template <int kColumns, bool kPool, bool kWhich, bool kSums>
struct EdgeFound {
  uint32_t fixed = 0;  // the lane's channels of scale 0
  EdgeMaxima<kColumns> maxima;
  EdgeSums<kColumns> sums;
  bool has_pivots = false;

  template <class T>
  __device__ __forceinline__ void begin(const EdgeProblem<T>& p, int start, float* pivots) {
    if constexpr (kSums) {
      sums.clear();
      sums.pivots = pivots + warp_id() * kColumns;
    }
    if constexpr (kWhich) fixed = channels_of_scale_0<kColumns>(p, start);
  }

  // Channels 32 c .. 32 c + 31 of a tile; `counts` becomes whether one of its rows counts.
  __device__ __forceinline__ void add(const float (&v)[4][4], int c, const EdgeTile& tile, int step,
                                      bool& counts) {
    if constexpr (kPool) maxima.template add<kWhich>(v, c, step, fixed);
    if constexpr (kSums) {
      if (!has_pivots) counts = sums.set_pivots(v, c, tile);
      sums.add(v, c, tile);
    }
  }
};

// kHidden: at least the widest layer but the last, 0 where there is one layer only.
template <class T, int kHidden, int kLast, bool kPool, bool kWhich, bool kSums>
struct EdgeForwardPass {
  static constexpr int kFirst = kHidden ? kHidden : kLast;

  const EdgeForward<T>& a;
  EdgeWeights<T> w;
  int start;  // the first of the last layer's columns
  EdgeFound<kLast, kPool, kWhich, kSums> found;
  EdgeGathered gathered;

  __device__ __forceinline__ void gather(const EdgeTile& tile) {
    const EdgeProblem<T>& p = a.problem;
    gathered.start_copy(p, tile, kHidden ? 0 : start, kFirst);
  }

  // A tile whose values are gathered; those of `next` are afterwards.
  __device__ __forceinline__ void add(const EdgeTile& tile, const EdgeTile& next, int step) {
    const EdgeProblem<T>& p = a.problem;
    EdgeOperand<kFirst> x, unused;
    if constexpr (kHidden > 0) {
      hidden_layers<T, false>(p, w, tile, gathered, next, x, nullptr, unused);
    } else {
      gathered.wait();
    }
    bool counts = found.has_pivots;
#pragma unroll
    for (int c = 0; c < kLast / 32; ++c) {
      float v[4][4];
      if constexpr (kHidden > 0) {
        product<T>(x, w.last, c, v);
      } else {
        first_layer(p, tile, gathered, w.first, start, c, v);
        apply_affine(w.signs, c, v);
      }
      found.add(v, c, tile, step, counts);
    }
    if constexpr (kHidden == 0) gather(next);
    if constexpr (kSums) {
      found.has_pivots = counts;
      if (lane_id() % 4 == 0) found.sums.weight += tile.weight(0) + tile.weight(1);
    }
  }

  // A warp owns a group.
  __device__ __forceinline__ void run_groups(EdgeStage& stage) {
    const EdgeProblem<T>& p = a.problem;
    const int stride = static_cast<int>(gridDim.x) * kEdgeWarps;
    int group = static_cast<int>(blockIdx.x) * kEdgeWarps + warp_id();
    int2 rows = rows_of_group(p, group);
    bool ready = false;
    EdgeTile tile, next;
    while (group < p.groups) {
      const int2 next_rows = rows_of_group(p, int64_t{group} + stride);
      found.maxima.clear();
      for (int first = rows.x, step = 0; first < rows.y; first += kEdgeRows, ++step) {
        if (!ready) {
          gathered.wait();  // for a copy that nobody has read
          tile = load_tile(p, first, rows.y);
          gather(tile);
        }
        const bool more = first + kEdgeRows < rows.y;
        const int2 following = more ? int2{first + kEdgeRows, rows.y} : next_rows;
        ready = following.x < following.y;
        next = ready ? load_tile(p, following.x, following.y) : tile;
        add(tile, next, step);
        tile = next;
      }
      write_group<T, kLast, kWhich>(a, group, rows, found.maxima, stage, start);
      if (group > p.groups - stride) break;
      group += stride;
      rows = next_rows;
    }
    gathered.wait();
  }

  // Any rows in a warp.
  __device__ __forceinline__ void run_rows() {
    const EdgeProblem<T>& p = a.problem;
    const int end = __ldg(p.ends + p.groups - 1);
    const int64_t stride = int64_t{gridDim.x} * kEdgeWarps * kEdgeRows;
    int64_t first = (int64_t{blockIdx.x} * kEdgeWarps + warp_id()) * kEdgeRows;
    if (first >= end) return;
    EdgeTile tile = load_tile(p, static_cast<int>(first), end);
    gather(tile);
    for (; first < end; first += stride) {
      const int64_t following = first + stride < end ? first + stride : first;
      const EdgeTile next = load_tile(p, static_cast<int>(following), end);
      add(tile, next, 0);
      tile = next;
    }
    gathered.wait();
  }
};

// Blocks of a kernel that an SM is to hold: the narrow ones hide each other's latencies.
__host__ __device__ constexpr int edge_blocks_of_sm(int widest, bool is_lean = false) {
  return widest <= 64 || is_lean ? 2 : 1;
}

template <class T, int kHidden, int kLast, bool kPool, bool kWhich, bool kSums>
__global__ void __launch_bounds__(kEdgeThreads,
                                  edge_blocks_of_sm(kHidden > kLast ? kHidden : kLast,
                                                    kHidden <= 64 && !kWhich && !kSums))
    edge_forward_kernel(const __grid_constant__ EdgeForward<T> a) {
  extern __shared__ __align__(16) unsigned char memory[];
  const EdgeProblem<T>& p = a.problem;
  SharedTaker shared{memory};
  EdgeStage* stages = shared.take<EdgeStage>(kEdgeWarps);
  float* pivots = shared.take<float>(kEdgePivots);
  const int start = static_cast<int>(blockIdx.y) * kLast;
  const EdgeWeights<T> w = load_layers(p, start, kLast, true, shared);
  using Pass = EdgeForwardPass<T, kHidden, kLast, kPool, kWhich, kSums>;
  Pass pass{a, w, start, {}, take_gathered(p, Pass::kFirst, shared)};
  __syncthreads();
  pass.found.begin(p, start, pivots);
  if constexpr (kPool) {
    pass.run_groups(stages[warp_id()]);
  } else {
    pass.run_rows();
  }
  if constexpr (kSums) {
    write_sums(pass.found.sums, reinterpret_cast<float*>(stages), start, p.width,
               a.sums + int64_t{blockIdx.x} * (2 * p.width + 1));
  }
}

// Bytes of shared memory for the layers, `columns` of the last one, and the rows that are gathered,
// `gathered` wide.
template <class T>
int edge_layer_bytes(const EdgeProblem<T>& p, int columns, int gathered) {
  const auto rounded = [](int bytes) { return (bytes + 15) / 16 * 16; };
  const int ld = p.hidden + kEdgePad, between = std::max(p.layers - 2, 0);
  int bytes = p.planes * p.first_width() * kEdgePlane * 2;
  bytes += rounded(between * p.hidden * ld * 2);
  if (p.layers > 1) bytes += rounded(columns * ld * 2);
  bytes += ((p.layers - 1) * p.hidden + (p.layers > 1 ? 0 : columns)) / 2 * 16;
  if (p.rows) bytes += kEdgeWarps * kEdgeRows * gathered * 4 + kEdgeSector;
  return bytes;
}

static_assert(sizeof(EdgeStage) * kEdgeWarps >= sizeof(float) * kEdgeWarps * (2 * kEdgeSlice + 1),
              "a block's sums take the place of its stages");

// Tiles of all groups' rows, at most.
template <class T>
int64_t most_tiles(const EdgeProblem<T>& p) {
  return ceil_div(int64_t{p.groups} * p.k, int64_t{kEdgeRows});
}

// The grid's x: blocks that are resident at once, or -1 on an error of the runtime.
template <auto kKernel>
int edge_grid(int bytes, int sm_count, int64_t groups, int slices, int warps) {
  int blocks = 0;
  if (allow_any_shared_memory<kKernel>() != cudaSuccess ||
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kKernel, 32 * warps, bytes) !=
          cudaSuccess) {
    return -1;
  }
  const int64_t resident = std::max<int64_t>(int64_t{blocks} * sm_count / slices, 1);
  return static_cast<int>(std::min(resident, ceil_div(groups, int64_t{warps})));
}

}  // namespace fusedops
