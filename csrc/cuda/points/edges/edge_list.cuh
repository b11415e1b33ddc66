// The rows of an edge MLP: which entries of idx count.
#pragma once

#include "csrc/common/device/mma.cuh"
#include "csrc/cuda/points/edges/edge_problem.h"

namespace fusedops {

inline constexpr int kEdgeListThreads = 256;

// idx: [groups][k], of rows of a cloud of n points.
struct EdgeEntries {
  const int64_t* idx;
  int64_t groups, groups_per_cloud, n;
  int k;

  __device__ __forceinline__ bool is_row(int64_t j) const {
    return static_cast<uint64_t>(j) < static_cast<uint64_t>(n);
  }
};

// Calls take(position, j, is valid, is a repeat of the first one) for all entries of a group, 32 at
// a time, all lanes together.
template <class Take>
__device__ __forceinline__ void walk_entries(const EdgeEntries& e, int64_t group, Take&& take) {
  const int64_t* idx = e.idx + group * e.k;
  const int64_t first = __ldg(idx);
  for (int start = 0; start < e.k; start += 32) {
    const int at = start + static_cast<int>(threadIdx.x % 32);
    const int64_t j = at < e.k ? __ldg(idx + at) : -1;
    const bool valid = e.is_row(j);
    take(at, j, valid, valid && at > 0 && j == first);
  }
}

__device__ __forceinline__ int64_t group_of_warp() {
  return (int64_t{blockIdx.x} * kEdgeListThreads + threadIdx.x) / 32;
}

static __global__ void edge_count_kernel(EdgeEntries e, int* counts) {
  const int64_t group = group_of_warp();
  if (group >= e.groups) return;
  int count = 0;
  walk_entries(e, group, [&](int, int64_t, bool valid, bool repeat) {
    count += __popc(__ballot_sync(0xffffffffu, valid && !repeat));
  });
  if (threadIdx.x % 32 == 0) counts[group] = count;
}

// The operands of edges (edge_problem.h).
template <class T>
struct EdgeOperands {
  const float* points;   // [clouds * n][3], or null
  const float* centers;  // [groups][3], or null for 0
  const T* features;     // [clouds * n][count], or null
  int count;
  int64_t edges;
  T* out;  // [planes][edges][kEdgePlane], or null

  __device__ __forceinline__ void write(int64_t row, int64_t point, int64_t group) const {
    if (!out) return;
    float high[3] = {}, low[3] = {};
    if (points) {
#pragma unroll
      for (int d = 0; d < 3; ++d) {
        const float center = centers ? __ldg(centers + group * 3 + d) : 0.f;
        const float offset = __ldg(points + point * 3 + d) - center;
        float near = offset;
        // NOTE: twice the largest __half still comes as two of them.
        if constexpr (__is_same(T, __half)) near = fminf(fmaxf(offset, -65504.f), 65504.f);
        high[d] = unpack_pair<T>(pack_pair<T>(near, 0.f)).x;
        low[d] = offset - high[d];
      }
    }
    const T* from = features + point * count;
    const auto pair = [&](int i) -> uint32_t {
      const uint32_t first = i < count ? word(from + i) : 0;
      return first | (i + 1 < count ? word(from + i + 1) : 0) << 16;
    };
    uint4* to = reinterpret_cast<uint4*>(out) + row;
    to[0] = {pack_pair<T>(high[0], high[1]), pack_pair<T>(high[2], low[0]),
             pack_pair<T>(low[1], low[2]), pair(8)};
    if (features) to[edges] = {pair(0), pair(2), pair(4), pair(6)};
  }

 private:
  static __device__ __forceinline__ uint32_t word(const T* value) {
    return __ldg(reinterpret_cast<const unsigned short*>(value));
  }
};

struct EdgeListResults {
  int4* list;       // [groups][k], with room behind the last row
  int64_t* merged;  // idx with -1 where an entry is none or a repeat; or null
  int* ends;        // written where rows are spaced, or null
};

// ends: the sums of the counts up to and with each group; or null, and a group's rows begin at
// group * k.
template <class T>
__global__ void edge_list_kernel(EdgeEntries e, const int* ends, EdgeOperands<T> operands,
                                 EdgeListResults results) {
  const int64_t group = group_of_warp();
  if (group >= e.groups) return;
  const unsigned lower = (1u << threadIdx.x % 32) - 1;
  const int start = !ends ? static_cast<int>(group) * e.k : group > 0 ? ends[group - 1] : 0;
  int repeats = 0, to = start;
  int4 opening{};
  walk_entries(e, group, [&](int at, int64_t j, bool valid, bool repeat) {
    repeats += __popc(__ballot_sync(0xffffffffu, repeat));
    const unsigned live = __ballot_sync(0xffffffffu, valid && !repeat);
    if (live >> threadIdx.x % 32 & 1) {
      const int64_t point = group / e.groups_per_cloud * e.n + j;
      const int row = to + __popc(live & lower);
      const int4 record{static_cast<int>(point), static_cast<int>(group), at, __float_as_int(1.f)};
      operands.write(row, point, group);
      if (at == 0) {
        opening = record;
      } else {
        results.list[row] = record;
      }
    }
    to += __popc(live);
    if (results.merged && at < e.k) {
      results.merged[group * e.k + at] = valid && !repeat ? j : -1;
    }
  });
  if (threadIdx.x % 32 > 0) return;
  if (results.ends) results.ends[group] = to;
  if (e.is_row(__ldg(e.idx + group * e.k))) {
    opening.w = __float_as_int(1.f + static_cast<float>(repeats));
    results.list[start] = opening;
  }
}

}  // namespace fusedops
