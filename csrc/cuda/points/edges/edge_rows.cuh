// What a warp does with the edges of a group: it walks them in steps of 16 rows, forms the first
// layer from gathered rows and takes the hidden layers in registers, the accumulators of one being
// the operand of the next.
//
// Entries that repeat the group's first one, as searches pad, count through that one's weight; a
// row without an entry of its own is dead: it computes what the step's lowest living row does.
#pragma once

#include "csrc/cuda/points/edges/edge_mma.cuh"
#include "csrc/cuda/points/edges/edge_problem.h"

namespace fusedops {

inline constexpr int kEdgeWarps = 8;
inline constexpr int kEdgeThreads = 32 * kEdgeWarps;
inline constexpr int kEdgeStepRows = 16;
inline constexpr int kEdgePad = 8;  // elements behind a row in shared memory: no bank conflicts
inline constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x % 32); }
__device__ __forceinline__ int warp_id() { return static_cast<int>(threadIdx.x / 32); }

// A group as its warp knows it.
struct EdgeGroup {
  const int64_t* idx;
  int64_t id, cloud_start;
  int64_t first;    // the entry that repeats are merged into, or -1
  float repeats;    // how often it is repeated
  int first_live;   // position of the first valid entry, or -1 in an empty group
  int last_live;    // and of the last that is no repeat
};

__device__ __forceinline__ bool is_row(int64_t j, int64_t n) {
  return static_cast<uint64_t>(j) < static_cast<uint64_t>(n);
}

template <class T>
__device__ __forceinline__ EdgeGroup open_group(const EdgeProblem<T>& p, int64_t id) {
  EdgeGroup g{p.idx + id * p.k, id, id / p.groups_per_cloud * p.n, -1, 0.f, -1, -1};
  const int64_t first = __ldg(g.idx);
  if (is_row(first, p.n)) g.first = first;
  int repeats = 0;
  for (int start = 0; start < p.k; start += 32) {
    const int at = start + lane_id();
    const int64_t j = at < p.k ? __ldg(g.idx + at) : -1;
    const bool valid = is_row(j, p.n), repeat = valid && at > 0 && j == g.first;
    repeats += __popc(__ballot_sync(kAllLanes, repeat));
    const unsigned live = __ballot_sync(kAllLanes, valid && !repeat);
    if (live == 0) continue;
    if (g.first_live < 0) g.first_live = start + __ffs(static_cast<int>(live)) - 1;
    g.last_live = start + 31 - __clz(static_cast<int>(live));
  }
  g.repeats = static_cast<float>(repeats);
  return g;
}

// 16 rows of a group; a lane knows of its rows r = lane / 4 and r + 8.
struct EdgeStep {
  unsigned live;      // a bit a row
  int64_t row[2];     // of points and rows
  float weight[2];    // 0 where dead
  int position;       // of row 0 in the group
};

// False where all of them are dead.
template <class T>
__device__ __forceinline__ bool open_step(const EdgeProblem<T>& p, const EdgeGroup& g, int step,
                                          EdgeStep& s) {
  s.position = step * kEdgeStepRows;
  const int at = s.position + lane_id() % kEdgeStepRows;
  const int64_t j = at < p.k ? __ldg(g.idx + at) : -1;
  const bool live = is_row(j, p.n) && !(at > 0 && j == g.first);
  s.live = __ballot_sync(kAllLanes, live) & 0xffffu;
  if (s.live == 0) return false;
  const int64_t lowest = __shfl_sync(kAllLanes, j, __ffs(static_cast<int>(s.live)) - 1);
  const int64_t filled = live ? j : lowest;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane_id() / 4 + 8 * half;
    s.row[half] = g.cloud_start + __shfl_sync(kAllLanes, filled, row);
    const bool merged = s.position + row == 0 && g.first >= 0;
    s.weight[half] = s.live >> row & 1 ? 1.f + (merged ? g.repeats : 0.f) : 0.f;
  }
  return true;
}

// The offsets of a step as an operand 16 x 8: their rounded values and what rounding left.
template <class T>
__device__ __forceinline__ void load_offsets(const EdgeProblem<T>& p, const EdgeGroup& g,
                                             const EdgeStep& s, uint32_t (&a)[2]) {
  const int q = lane_id() % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float high[3], low[3];
#pragma unroll
    for (int d = 0; d < 3; ++d) {
      const float center = p.centers ? __ldg(p.centers + g.id * 3 + d) : 0.f;
      const float offset = __ldg(p.points + s.row[half] * 3 + d) - center;
      high[d] = unpack_pair<T>(pack_pair<T>(offset, 0.f)).x;
      low[d] = offset - high[d];
    }
    const float first = q == 0 ? high[0] : q == 1 ? high[2] : q == 2 ? low[1] : 0.f;
    const float second = q == 0 ? high[1] : q == 1 ? low[0] : q == 2 ? low[2] : 0.f;
    a[half] = pack_pair<T>(first, second);
  }
}

// Adds a row's channels 32 c .. 32 c + 31 to the sums of its half of a tile.
template <class T>
__device__ __forceinline__ void add_row(float (&y)[4][4], const T* row, int half) {
  const uint4 values = __ldg(reinterpret_cast<const uint4*>(row));
  const uint32_t pairs[4] = {values.x, values.y, values.z, values.w};
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    const float2 v = unpack_pair<T>(pairs[b]);
    y[b][2 * half] += v.x;
    y[b][2 * half + 1] += v.y;
  }
}

__device__ __forceinline__ void add_wide_row(float (&y)[4][4], const float* row, int half) {
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const float4 v = __ldg(reinterpret_cast<const float4*>(row) + pair);
    y[2 * pair][2 * half] += v.x;
    y[2 * pair][2 * half + 1] += v.y;
    y[2 * pair + 1][2 * half] += v.z;
    y[2 * pair + 1][2 * half + 1] += v.w;
  }
}

// y_1 of channels 32 c .. 32 c + 31. offset_weight is in shared memory.
template <class T>
__device__ __forceinline__ void first_layer(const EdgeProblem<T>& p, const EdgeGroup& g,
                                            const EdgeStep& s, const uint32_t (&offsets)[2],
                                            const T* offset_weight, int c, float (&y)[4][4]) {
  const int q = lane_id() % 4;
  const int64_t at = 32 * c + 8 * q;
#pragma unroll
  for (int b = 0; b < 4; ++b) y[b][0] = y[b][1] = y[b][2] = y[b][3] = 0.f;
  if (p.rows) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t from = s.row[half] * p.width[0] + at;
      if (p.wide_rows) {
        add_wide_row(y, static_cast<const float*>(p.rows) + from, half);
      } else {
        add_row(y, static_cast<const T*>(p.rows) + from, half);
      }
    }
  }
  if (p.group_rows) {
    const float* row = p.group_rows + g.id * p.width[0] + at;
    add_wide_row(y, row, 0);
    add_wide_row(y, row, 1);
  }
  if (p.offset_weight) {
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const T* w = offset_weight + (32 * c + 8 * b + lane_id() / 4) * kEdgeOffsetColumns + 2 * q;
      mma_k8<T>(y[b], offsets[0], offsets[1], *reinterpret_cast<const uint32_t*>(w));
    }
  }
}

// The values of a layer of up to kWidth channels as the operand of a product.
template <int kWidth>
struct EdgeOperand {
  uint32_t a[kWidth / 16][4];
};

// Columns 32 c .. 32 c + 31 of a times the transpose of w, which is [columns][ld] in shared memory.
template <class T, int kWidth>
__device__ __forceinline__ void product(const EdgeOperand<kWidth>& x, int width, const T* w, int ld,
                                        int c, float (&y)[4][4]) {
#pragma unroll
  for (int b = 0; b < 4; ++b) y[b][0] = y[b][1] = y[b][2] = y[b][3] = 0.f;
  const int lane = lane_id();
  const T* row = w + (32 * c + (lane / 16) * 8 + lane % 8) * ld + (lane / 8 % 2) * 8;
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
    if (16 * k < width) {
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        uint32_t b[4];
        load_matrices(b, row + 16 * pair * ld + 16 * k);
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

template <class T>
__device__ __forceinline__ float edge_activation(const EdgeProblem<T>& p, float z) {
  const float below = p.is_relu ? 0.f : p.slope * z;
  return z < 0.f ? below : z;
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

// Where the layers lie in shared memory.
template <class T>
struct EdgeWeights {
  const T* offset;
  const T* layer[kEdgeMaxLayers];  // W of layer l + 1, rows of width[l - 1] + kEdgePad
  const float4* affine[kEdgeMaxLayers];
};

// The activations of layer `depth` (counted from 1) of a step. Centred values of that layer before
// its scale, rounded, go into `centred` where one is given.
template <class T, int kWidth>
__device__ __forceinline__ void hidden_layers(const EdgeProblem<T>& p, const EdgeWeights<T>& w,
                                              const EdgeGroup& g, const EdgeStep& s, int depth,
                                              EdgeOperand<kWidth>& x, const float* center,
                                              EdgeOperand<kWidth>* centred) {
  uint32_t offsets[2] = {};
  if (p.offset_weight) load_offsets(p, g, s, offsets);
  EdgeOperand<kWidth> next;
  for (int l = 0; l < depth; ++l) {
#pragma unroll
    for (int c = 0; c < kWidth / 32; ++c) {
      if (32 * c >= p.width[l]) continue;
      float y[4][4];
      if (l == 0) {
        first_layer(p, g, s, offsets, w.offset, c, y);
      } else {
        product<T>(x, p.width[l - 1], w.layer[l], p.width[l - 1] + kEdgePad, c, y);
      }
      if (centred && l == depth - 1) {
        float shifted[4][4];
#pragma unroll
        for (int b = 0; b < 4; ++b) {
          const float2 mean =
              center ? __ldg(reinterpret_cast<const float2*>(center + 32 * c + 8 * b) +
                             lane_id() % 4)
                     : float2{};
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            shifted[b][2 * half] = y[b][2 * half] - mean.x;
            shifted[b][2 * half + 1] = y[b][2 * half + 1] - mean.y;
          }
        }
        store_operand<T>(shifted, c, *centred);
      }
      apply_affine(w.affine[l], c, y);
#pragma unroll
      for (int b = 0; b < 4; ++b) {
#pragma unroll
        for (int i = 0; i < 4; ++i) y[b][i] = edge_activation(p, y[b][i]);
      }
      store_operand<T>(y, c, next);
    }
    x = next;
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
};

// Copies `rows` rows of `width` elements (a multiple of 8) to rows of width + kEdgePad.
template <class T>
__device__ __forceinline__ void copy_weights(const T* from, int rows, int width, T* to) {
  const int pieces = width / 8;
  for (int i = static_cast<int>(threadIdx.x); i < rows * pieces; i += kEdgeThreads) {
    const int row = i / pieces, piece = i % pieces;
    reinterpret_cast<uint4*>(to + row * (width + kEdgePad))[piece] =
        __ldg(reinterpret_cast<const uint4*>(from + int64_t{row} * width) + piece);
  }
}

template <class V>
__device__ __forceinline__ void copy_values(const V* from, int count, V* to) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kEdgeThreads) to[i] = from[i];
}

__device__ __forceinline__ void copy_affine(const float4* from, int count, bool probes, float4* to) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kEdgeThreads) {
    const float4 st = from[i];
    to[i] = probes ? float4{st.x < 0.f ? -1.f : 1.f, 0.f, st.z < 0.f ? -1.f : 1.f, 0.f} : st;
  }
}

// Brings layers 1 .. layers into shared memory; of the last one rows `start` .. `start + count`.
template <class T>
__device__ __forceinline__ EdgeWeights<T> load_layers(const EdgeProblem<T>& p, int layers, int start,
                                                      int count, SharedTaker& shared) {
  EdgeWeights<T> w{};
  if (p.offset_weight) {
    T* offset = shared.take<T>(p.width[0] * kEdgeOffsetColumns);
    copy_values(p.offset_weight, p.width[0] * kEdgeOffsetColumns, offset);
    w.offset = offset;
  }
  const T* from = p.weights;
  const float4* affine = p.affine;
  for (int l = 0; l < layers; ++l) {
    const bool last = l == layers - 1;
    const int first = last ? start : 0, rows = last ? count : p.width[l];
    if (l > 0) {
      T* to = shared.take<T>(rows * (p.width[l - 1] + kEdgePad));
      copy_weights(from + int64_t{first} * p.width[l - 1], rows, p.width[l - 1], to);
      w.layer[l] = to;
      from += int64_t{p.width[l]} * p.width[l - 1];
    }
    float4* to = shared.take<float4>(rows / 2);
    copy_affine(affine + first / 2, rows / 2, last && p.probes, to);
    w.affine[l] = to;
    affine += p.width[l] / 2;
  }
  return w;
}

}  // namespace fusedops
