// An MLP over edges, forward: what the last layer's values v = scale y + shift are over a group (their
// maximum and where it is) and over all edges (sums of v and v^2, weighted).
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

// v beats best where it is larger, or NaN where best is none.
__device__ __forceinline__ bool beats(float v, float best) { return !(v <= best) && best == best; }

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

  // Channels 32 c .. 32 c + 31 of step `step`.
  template <bool kWhich>
  __device__ __forceinline__ void add(const float (&v)[4][4], int c, int step) {
#pragma unroll
    for (int b = 0; b < 4; ++b) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int i = 8 * c + 2 * b + h;
        const float low = v[b][h], high = v[b][2 + h];
        if constexpr (kWhich) {
          const bool second = beats(high, low);
          const float value = second ? high : low;
          if (beats(value, best[i])) {
            best[i] = value;
            const uint32_t found = 2 * step + (second ? 1 : 0);
            code[i / 4] = __byte_perm(code[i / 4], found, place_of(i % 4));
          }
        } else {
          best[i] = max_or_nan(best[i], max_or_nan(low, high));
        }
      }
    }
  }

 private:
  // The selector that puts a byte of the second operand at `byte` of the first.
  static __host__ __device__ constexpr uint32_t place_of(int byte) {
    return (0x3210u & ~(0xfu << 4 * byte)) | 4u << 4 * byte;
  }
  static __device__ __forceinline__ float max_or_nan(float a, float b) {
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
  }
};

// The position of a living entry for one that may be dead: of the step's lowest living one, whose
// values a dead row has.
template <class T>
__device__ __forceinline__ int living_position(const EdgeProblem<T>& p, const EdgeGroup& g,
                                               int position) {
  if (position >= 8 * 255) return g.first_live;  // nothing beat -Inf
  const auto lives = [&](int at) {
    const int64_t j = at < p.k ? __ldg(g.idx + at) : -1;
    return is_row(j, p.n) && !(at > 0 && j == g.first);
  };
  if (lives(position)) return position;
  int at = position / kEdgeStepRows * kEdgeStepRows;
  while (!lives(at)) ++at;
  return at;
}

template <class T, int kColumns, bool kWhich>
__device__ __forceinline__ void write_group(const EdgeForward<T>& a, const EdgeGroup& g,
                                            const EdgeMaxima<kColumns>& found, EdgeStage& stage,
                                            int start) {
  const int q = lane_id() % 4, r = lane_id() / 4;
#pragma unroll
  for (int part = 0; part < kColumns / kEdgeStage; ++part) {
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
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int column = 2 * lane_id() + h;
      float best = stage.best[0][column];
      int position = kWhich ? 8 * stage.code[0][column] : 0;
#pragma unroll
      for (int row = 1; row < 8; ++row) {
        const float v = stage.best[row][column];
        if constexpr (kWhich) {
          const int at = 8 * stage.code[row][column] + row;
          const bool tie = v == best || (v != v && best != best);
          if (beats(v, best) || (tie && at < position)) best = v, position = at;
        } else {
          if (beats(v, best)) best = v;
        }
      }
      const int channel = first + column;
      if (channel >= a.channels) continue;
      const bool empty = g.first_live < 0;
      const int64_t to = g.id * a.channels + channel;
      if (a.out) a.out[to] = from_compute<T>(empty ? 0.f : edge_activation(a.problem, best));
      if constexpr (kWhich) {
        a.best[to] = empty ? 0.f : best;
        a.which[to] =
            static_cast<int16_t>(empty ? -1 : living_position(a.problem, g, position));
      }
    }
  }
}

// Weighted sums of the rows that a lane has seen.
template <int kColumns>
struct EdgeSums {
  float v[kColumns / 4], v2[kColumns / 4], weight;

  __device__ __forceinline__ void clear() {
    weight = 0.f;
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) v[i] = v2[i] = 0.f;
  }

  __device__ __forceinline__ void add(const float (&y)[4][4], int c, const EdgeStep& s) {
#pragma unroll
    for (int b = 0; b < 4; ++b) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int i = 8 * c + 2 * b + h;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          // NOTE: a dead row of weight 0 may hold Inf, as the living row it copies.
          const float value = s.weight[half] > 0.f ? y[b][2 * half + h] : 0.f;
          const float weighted = s.weight[half] * value;
          v[i] += weighted;
          v2[i] = fmaf(weighted, value, v2[i]);
        }
      }
    }
  }
};

// The block's sums, rows of a warp first, then its warps, always in the same order.
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
#pragma unroll
  for (int i = 0; i < kColumns / 4; ++i) {
    const float v = over_rows(sums.v[i]), v2 = over_rows(sums.v2[i]);
    const int column = 8 * (i / 2) + 2 * q + i % 2;
    if (lane_id() < 4) {
      stage[warp_id() * 2 * kColumns + column] = v;
      stage[warp_id() * 2 * kColumns + kColumns + column] = v2;
    }
  }
  const float weight = over_rows(sums.weight);
  if (lane_id() == 0) stage[kEdgeWarps * 2 * kColumns + warp_id()] = weight;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i <= 2 * kColumns; i += kEdgeThreads) {
    const bool counts = i == 2 * kColumns;
    const int column = start + i % kColumns;
    if (counts ? start > 0 : column >= width) continue;
    float sum = 0.f;
    for (int w = 0; w < kEdgeWarps; ++w) {
      sum += counts ? stage[kEdgeWarps * 2 * kColumns + w] : stage[w * 2 * kColumns + i];
    }
    to[counts ? 2 * width : i / kColumns * width + column] = sum;
  }
}

// kHidden: the widest layer but the last, 0 where there is one layer only.
template <class T, int kHidden, int kLast, bool kPool, bool kWhich, bool kSums>
__global__ void __launch_bounds__(kEdgeThreads) edge_forward_kernel(EdgeForward<T> a) {
  extern __shared__ __align__(16) unsigned char memory[];
  const EdgeProblem<T>& p = a.problem;
  SharedTaker shared{memory};
  EdgeStage* stages = shared.take<EdgeStage>(kEdgeWarps);
  const int last = p.layers - 1, width = p.width[last];
  const int start = static_cast<int>(blockIdx.y) * kLast;
  const int columns = min(kLast, width - start);
  const EdgeWeights<T> w = load_layers(p, p.layers, start, columns, shared);
  __syncthreads();
  EdgeMaxima<kLast> maxima;
  EdgeSums<kLast> sums;
  if constexpr (kSums) sums.clear();
  for (int64_t id = int64_t{blockIdx.x} * kEdgeWarps + warp_id(); id < p.groups;
       id += int64_t{gridDim.x} * kEdgeWarps) {
    const EdgeGroup g = open_group(p, id);
    if constexpr (kPool) maxima.clear();
    for (int step = 0; step * kEdgeStepRows <= g.last_live; ++step) {
      EdgeStep s;
      if (!open_step(p, g, step, s)) continue;
      EdgeOperand<kHidden ? kHidden : 32> x;
      uint32_t offsets[2] = {};
      if constexpr (kHidden > 0) {
        hidden_layers<T, kHidden>(p, w, g, s, last, x, nullptr, nullptr);
      } else if (p.offset_weight) {
        load_offsets(p, g, s, offsets);
      }
#pragma unroll
      for (int c = 0; c < kLast / 32; ++c) {
        if (32 * c >= columns) continue;
        float v[4][4];
        if constexpr (kHidden > 0) {
          product<T>(x, p.width[last - 1], w.layer[last], p.width[last - 1] + kEdgePad, c, v);
        } else {
          first_layer(p, g, s, offsets, w.offset, start / 32 + c, v);
        }
        apply_affine(w.affine[last], c, v);
        if constexpr (kPool) maxima.template add<kWhich>(v, c, step);
        if constexpr (kSums) sums.add(v, c, s);
      }
      if constexpr (kSums) {
        if (lane_id() % 4 == 0) sums.weight += s.weight[0] + s.weight[1];
      }
    }
    if constexpr (kPool) {
      write_group<T, kLast, kWhich>(a, g, maxima, stages[warp_id()], start);
    }
  }
  if constexpr (kSums) {
    write_sums(sums, reinterpret_cast<float*>(stages), start, width,
               a.sums + int64_t{blockIdx.x} * (2 * width + 1));
  }
}

// Bytes of shared memory for the layers, all but `last_rows` rows of the last one left out.
template <class T>
int edge_layer_bytes(const EdgeProblem<T>& p, int layers, int last_rows) {
  const auto rounded = [](int bytes) { return (bytes + 15) / 16 * 16; };
  int bytes = p.offset_weight ? rounded(p.width[0] * kEdgeOffsetColumns * 2) : 0;
  for (int l = 0; l < layers; ++l) {
    const int rows = l == layers - 1 ? last_rows : p.width[l];
    if (l > 0) bytes += rounded(rows * (p.width[l - 1] + kEdgePad) * 2);
    bytes += rounded(rows / 2 * 16);
  }
  return bytes;
}

static_assert(sizeof(EdgeStage) * kEdgeWarps >=
                  sizeof(float) * kEdgeWarps * (2 * kEdgeSlice + 1),
              "a block's sums take the place of its stages");

// The grid's x: blocks that are resident at once, or -1 on an error of the runtime.
template <auto kKernel>
int edge_grid(int bytes, int sm_count, int64_t groups, int slices, int warps) {
  int blocks = 0;
  if (allow_any_shared_memory<kKernel>() != cudaSuccess ||
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kKernel, kEdgeThreads, bytes) !=
          cudaSuccess) {
    return -1;
  }
  const int64_t resident = std::max<int64_t>(int64_t{blocks} * sm_count / slices, 1);
  return static_cast<int>(std::min(resident, ceil_div(groups, int64_t{warps})));
}

}  // namespace fusedops
