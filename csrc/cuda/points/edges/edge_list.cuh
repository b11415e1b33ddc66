// The rows of an edge MLP: which entries of idx count.
#pragma once

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

// ends: the sums of the counts up to and with each group. merged: idx with -1
// where an entry is none or a repeat.
static __global__ void edge_list_kernel(EdgeEntries e, const int* ends, int4* list,
                                        int64_t* merged) {
  const int64_t group = group_of_warp();
  if (group >= e.groups) return;
  const unsigned lower = (1u << threadIdx.x % 32) - 1;
  const int start = group > 0 ? ends[group - 1] : 0;
  int repeats = 0, to = start;
  int4 opening{};
  walk_entries(e, group, [&](int at, int64_t j, bool valid, bool repeat) {
    repeats += __popc(__ballot_sync(0xffffffffu, repeat));
    const unsigned live = __ballot_sync(0xffffffffu, valid && !repeat);
    if (live >> threadIdx.x % 32 & 1) {
      const int4 record{static_cast<int>(group / e.groups_per_cloud * e.n + j),
                        static_cast<int>(group), at, __float_as_int(1.f)};
      if (at == 0) {
        opening = record;
      } else {
        list[to + __popc(live & lower)] = record;
      }
    }
    to += __popc(live);
    if (at < e.k) merged[group * e.k + at] = valid && !repeat ? j : -1;
  });
  if (threadIdx.x % 32 == 0 && e.is_row(__ldg(e.idx + group * e.k))) {
    opening.w = __float_as_int(1.f + static_cast<float>(repeats));
    list[start] = opening;
  }
}

}  // namespace fusedops
