// Searches the index of common/point_grid.h: k-NN, the nearest or the first k in a ball.
//
// Both kernels walk the boxes with a warp: its lanes measure the 32 boxes inside a box at once, the
// nearest is entered first, and what cannot improve an answer any more is left out. Bounds are
// computed like distances (same order, monotone rounding), so no neighbour is ever missed.
// grid_packet_kernel: 32 queries that are neighbours on the curve, one a lane, walk together and
// share every leaf they read; each keeps its K best in registers. For up to 32 neighbours.
// grid_warp_kernel: one query a warp, the k best in shared memory. For few queries and many
// neighbours.
#pragma once

#include "csrc/cuda/points/index/grid_device.cuh"

namespace fusedops {

inline constexpr int kPacketWarps = 4;
inline constexpr int kPacketQueue = 16;  // accepted candidates a lane holds before it inserts them
inline constexpr int kPacketChunk = 8;   // candidates between two looks at the queues
inline constexpr int kGridWarps = 4;
inline constexpr uint32_t kVisited = 0xffffffffu;

template <class T>
__device__ __forceinline__ T gap(T low, T high, T other_low, T other_high) {
  return fmax(fmax(low - other_high, other_low - high), T{0});
}

// The least distance between two boxes.
template <bool Manhattan, class T>
__device__ __forceinline__ T box_distance(const GridPoint<T>& low, const GridPoint<T>& high,
                                          const GridBox<T>& box) {
  const T x = gap(low.x, high.x, box.low.x, box.high.x);
  const T y = gap(low.y, high.y, box.low.y, box.high.y);
  const T z = gap(low.z, high.z, box.low.z, box.high.z);
  return Manhattan ? x + y + z : fma(z, z, fma(y, y, x * x));
}

template <bool Manhattan, class T>
__device__ __forceinline__ T point_distance(T x, T y, T z, const GridPoint<T>& p) {
  const T dx = x - p.x;
  const T dy = y - p.y;
  const T dz = z - p.z;
  return Manhattan ? fabs(dx) + fabs(dy) + fabs(dz) : fma(dz, dz, fma(dy, dy, dx * dx));
}

// The boxes of one cloud.
template <class T>
struct CloudGrid {
  const GridView<T>& grid;
  int64_t first_row, cloud, length;

  __device__ const GridBox<T>* boxes(int level) const {
    return grid.boxes + grid.shape.first_box(level) + group_base(first_row, cloud, level);
  }
  __device__ const GridPoint<T>* points() const {
    return grid.points + group_base(first_row, cloud, 0) * kGroup;
  }
};

// Which boxes a walk still has to enter: for each level, per lane, a bound in bits, rounded down to
// float; kVisited for none. Boxes are entered in the order of their bounds. A lane touches its own
// column only.
struct WalkStack {
  uint32_t bounds[kMaxGridLevels][32];
  uint32_t first_child[kMaxGridLevels][32];  // of the group that the level holds
};

__device__ __forceinline__ uint32_t bound_bits(float d) { return __float_as_uint(d); }
__device__ __forceinline__ uint32_t bound_bits(double d) {
  return __float_as_uint(__double2float_rd(d));
}

// ---- packets ----

// Inserts a key below the last into K ascending keys.
template <int K>
__device__ __forceinline__ void insert(uint64_t (&keys)[K], uint64_t key) {
#pragma unroll
  for (int j = K - 1; j > 0; --j) {
    keys[j] = key < keys[j - 1] ? keys[j - 1] : (key < keys[j] ? key : keys[j]);
  }
  keys[0] = key < keys[0] ? key : keys[0];
}

template <int K, Select S>
struct Packet {
  float x, y, z;
  uint64_t keys[K];  // the first K - k stay 0
  uint32_t limit;
  int queued;
  uint64_t (*queue)[32];

  // Whether anything within the box can enter the list.
  __device__ __forceinline__ bool wants(const GridBox<float>& box) const {
    const float d = box_distance<false>({x, y, z, 0}, {x, y, z, 0}, box);
    const uint32_t least = index_of(box.low.w);
    if constexpr (S == Select::kNearest) {
      return pack_key<float>(distance_bits(d), least) < keys[K - 1];
    } else {
      return distance_bits(d) < limit && least < high_bits<float>(keys[K - 1]);
    }
  }

  __device__ __forceinline__ void flush(int lane) {
    const int most = __reduce_max_sync(kFullWarp, queued);
    for (int i = 0; i < most; ++i) {
      if (i >= queued) continue;
      const uint64_t key = queue[i][lane];
      if (key < keys[K - 1]) insert(keys, key);
    }
    queued = 0;
  }

  // Tries the 32 points of a leaf, which the warp has put into shared memory.
  __device__ __forceinline__ void scan(const GridPoint<float>* leaf, int lane) {
#pragma unroll 1
    for (int start = 0; start < kGroup; start += kPacketChunk) {
#pragma unroll
      for (int j = 0; j < kPacketChunk; ++j) {
        const GridPoint<float> p = leaf[start + j];
        const float d = point_distance<false>(x, y, z, p);
        const uint64_t key = candidate_key<S>(d, index_of(p.w));
        const bool inside = S == Select::kNearest || distance_bits(d) < limit;
        if (inside && key < keys[K - 1]) queue[queued++][lane] = key;
      }
      if (__any_sync(kFullWarp, queued > kPacketQueue - kPacketChunk)) flush(lane);
    }
    if (__any_sync(kFullWarp, queued > 0)) flush(lane);
  }

  // The largest bound that any lane still accepts.
  __device__ __forceinline__ uint32_t reach() const {
    if constexpr (S == Select::kNearest) {
      return __reduce_max_sync(kFullWarp, high_bits<float>(keys[K - 1]));
    } else {
      return __reduce_max_sync(kFullWarp, limit);  // 0 in lanes that do not walk
    }
  }
};

template <int K, Select S>
__global__ void __launch_bounds__(kPacketWarps * 32)
    grid_packet_kernel(Clouds points, GridView<float> grid, Clouds queries, DType dtype,
                       const uint32_t* __restrict__ query_order, NeighbourOutput<float> out,
                       uint32_t limit) {
  __shared__ GridPoint<float> leaves[kPacketWarps][kGroup];
  __shared__ uint64_t queues[kPacketWarps][kPacketQueue][32];
  __shared__ WalkStack stacks[kPacketWarps];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int64_t id = int64_t{blockIdx.x} * kPacketWarps + warp;
  if (id >= (queries.num_rows() >> kGroupBits) + queries.count) return;
  const RowGroup group = find_row_group(queries, id, kGroupBits);
  if (group.first >= group.length) return;
  const int64_t length = points.length(group.cloud);
  const CloudGrid<float> cloud{grid, points.first_row(group.cloud), group.cloud, length};

  // Queries
  const bool present = group.first + lane < group.length;
  int64_t row = queries.first_row(group.cloud) + group.first + lane;
  if (present && query_order) row = query_order[row];
  float at[3] = {NAN, NAN, NAN};
  if (present) load_coordinates(queries, dtype, row, at);
  // NOTE: a query with a NaN finds nothing and must not walk
  const bool walks = at[0] == at[0] && at[1] == at[1] && at[2] == at[2];
  Packet<K, S> packet;
  packet.x = at[0];
  packet.y = at[1];
  packet.z = at[2];
  packet.limit = walks ? limit : 0;
  packet.queued = 0;
  packet.queue = queues[warp];
  const uint64_t empty = empty_key<S, float>(limit);
  const int unused = K - static_cast<int>(out.k);
#pragma unroll
  for (int j = 0; j < K; ++j) packet.keys[j] = walks && j >= unused ? empty : 0;
  const float inf = INFINITY;
  const GridPoint<float> low = {warp_min(walks ? at[0] : inf), warp_min(walks ? at[1] : inf),
                                warp_min(walks ? at[2] : inf), 0};
  const GridPoint<float> high = {warp_max(walks ? at[0] : -inf), warp_max(walks ? at[1] : -inf),
                                 warp_max(walks ? at[2] : -inf), 0};

  // Walk
  WalkStack& stack = stacks[warp];
  int level = top_level(length);
  const int top = level;
  const auto open = [&](int at_level, uint32_t first_child) {
    stack.first_child[at_level][lane] = first_child;
    const uint32_t child = first_child + lane;
    uint32_t bound = kVisited;
    if (child < num_groups(length, at_level)) {
      bound = bound_bits(box_distance<false>(low, high, cloud.boxes(at_level)[child]));
    }
    stack.bounds[at_level][lane] = bound;
  };
  uint32_t reach = packet.reach();
  if (length > 0 && __any_sync(kFullWarp, walks))
    open(level, 0);
  else
    level = top + 1;
  while (level <= top) {
    const uint32_t bound = stack.bounds[level][lane];
    const uint32_t nearest = __reduce_min_sync(kFullWarp, bound);
    if (nearest > reach || nearest == kVisited) {
      ++level;
      continue;
    }
    const int next = __ffs(__ballot_sync(kFullWarp, bound == nearest)) - 1;
    if (lane == next) stack.bounds[level][lane] = kVisited;
    const uint32_t child = stack.first_child[level][lane] + next;
    const GridBox<float> box = cloud.boxes(level)[child];
    if (!__any_sync(kFullWarp, packet.wants(box))) continue;
    if (level == 0) {
      leaves[warp][lane] = cloud.points()[int64_t{child} * kGroup + lane];
      __syncwarp();
      packet.scan(leaves[warp], lane);
      reach = packet.reach();
      __syncwarp();
    } else {
      open(--level, child * kGroup);
    }
  }

  // Write
  if (!present) return;
  const int64_t base = points.index_base(group.cloud);
  const uint64_t none = walks ? empty : 0;
  uint64_t first = empty;
  int count = 0;
#pragma unroll
  for (int j = 0; j < K; ++j) {
    if (j == unused) first = packet.keys[j];
    if (j >= unused) {
      count += packet.keys[j] < none;
      write_neighbour<S>(out, row, j - unused, walks ? packet.keys[j] : empty,
                         walks ? first : empty, empty, base);
    }
  }
  if (out.counts) out.counts[row] = count;
}

// ---- one query a warp ----

// Walks the boxes of a cloud around a point. useful(d, least): whether a box at distance d, whose
// smallest index is `least`, is worth entering. visit(p, d): one point a lane, by the whole warp;
// returns the bound beyond which boxes have become useless.
template <bool Manhattan, class T, class Useful, class Visit>
__device__ __forceinline__ void walk_boxes(const CloudGrid<T>& cloud, WalkStack& stack,
                                           const GridPoint<T>& here, int lane, Useful useful,
                                           Visit visit) {
  if (cloud.length <= 0 || here.x != here.x || here.y != here.y || here.z != here.z) return;
  int level = top_level(cloud.length);
  const int top = level;
  const auto open = [&](int at_level, uint32_t first_child) {
    stack.first_child[at_level][lane] = first_child;
    const uint32_t child = first_child + lane;
    uint32_t bound = kVisited;
    if (child < num_groups(cloud.length, at_level)) {
      const GridBox<T> box = cloud.boxes(at_level)[child];
      const T d = box_distance<Manhattan>(here, here, box);
      if (useful(d, index_of(box.low.w))) bound = bound_bits(d);
    }
    stack.bounds[at_level][lane] = bound;
  };
  uint32_t reach = kVisited - 1;
  open(level, 0);
  while (level <= top) {
    const uint32_t bound = stack.bounds[level][lane];
    const uint32_t nearest = __reduce_min_sync(kFullWarp, bound);
    if (nearest > reach) {
      ++level;
      continue;
    }
    const int next = __ffs(__ballot_sync(kFullWarp, bound == nearest)) - 1;
    if (lane == next) stack.bounds[level][lane] = kVisited;
    const uint32_t child = stack.first_child[level][lane] + next;
    if (level > 0) {
      open(--level, child * kGroup);
    } else {
      const GridPoint<T> p = cloud.points()[int64_t{child} * kGroup + lane];
      reach = visit(p, point_distance<Manhattan>(here.x, here.y, here.z, p));
    }
  }
}

template <class T, Select S, bool Manhattan>
__global__ void grid_warp_kernel(Clouds points, GridView<T> grid, Clouds queries, DType dtype,
                                 const uint32_t* __restrict__ query_order, NeighbourOutput<T> out,
                                 KeyBits<T> limit, int capacity, int group_bits) {
  extern __shared__ __align__(16) char storage[];
  __shared__ WalkStack stacks[kGridWarps];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const RowGroup group = find_row_group(queries, blockIdx.x, group_bits);
  const int64_t position = group.first + warp;
  if (position >= group.length) return;
  int64_t row = queries.first_row(group.cloud) + position;
  if (query_order) row = query_order[row];
  const CloudGrid<T> cloud{grid, points.first_row(group.cloud), group.cloud,
                           points.length(group.cloud)};
  T at[3];
  load_coordinates(queries, dtype, row, at);
  WarpCollector<KeyOf<T>> best(reinterpret_cast<KeyOf<T>*>(storage) + int64_t{warp} * capacity,
                               capacity, static_cast<int>(out.k), empty_key<S, T>(limit));
  walk_boxes<Manhattan, T>(
      cloud, stacks[warp], {at[0], at[1], at[2], T{0}}, lane,
      [&](T d, uint32_t least) {
        if constexpr (S == Select::kNearest) return candidate_key<S>(d, least) < best.threshold;
        return distance_bits(d) < limit && least < high_bits<T>(best.threshold);
      },
      [&](const GridPoint<T>& p, T d) {
        const bool inside = distance_bits(d) < limit;
        best.push(inside ? candidate_key<S>(d, index_of(p.w)) : best.empty, lane);
        if (S == Select::kFirst || best.threshold == best.empty) return kVisited - 1;
        return bound_bits(key_distance<S, T>(best.threshold));
      });
  best.template write<S, T>(out, row, points.index_base(group.cloud), lane);
}

}  // namespace fusedops
