// edge_forward.cuh with WGMMA, for two layers and more whose hidden width is 64 or 128. A warp owns
// a group there and here; the four warps of a warpgroup multiply together, each its own tile, as
// many times as the warp with the most tiles needs.
#pragma once

#include "csrc/common/dispatch.h"
#include "csrc/cuda/points/edge_wgmma/edge_wgmma.cuh"
#include "csrc/cuda/points/edges/edge_forward.cuh"
#include "csrc/cuda/points/edges/edge_launch.h"

namespace fusedops {

// Where a warp is among the tiles of its groups.
struct EdgeWalk {
  int group;     // at least the number of groups: there is no tile
  int first;     // of the tile's rows
  int2 rows;     // of the group
  int2 pending;  // of the warp's next group

  __device__ __forceinline__ int step() const { return (first - rows.x) / kEdgeRows; }
  __device__ __forceinline__ bool ends_group() const { return first + kEdgeRows >= rows.y; }
};

template <class T, int kFirst, int kHidden, int kLast, bool kPool, bool kWhich, bool kSums>
struct EdgeWgmmaPass {
  // Two take the room of sums.
  static constexpr int kBuffers = kSums || (kHidden <= 64 && !kWhich) ? 1 : 2;

  const EdgeForward<T>& a;
  EdgeWgmmaWeights w;
  int start;  // the first of the last layer's columns
  EdgeFound<kLast, kPool, kWhich, kSums> found;
  EdgeGathered gathered;

  // A tile whose values are gathered; those of `next` are afterwards. All warps of a warpgroup come
  // here together; one without a tile (`is_there`) only for the products of the others.
  __device__ __forceinline__ void add(const EdgeTile& tile, const EdgeTile& next, bool is_there,
                                      int step) {
    EdgeOperand<kHidden> x, unused;
    wgmma_hidden_layers<T, false, kFirst>(a.problem, w, tile, gathered, next, x, nullptr, unused);
    bool counts = found.has_pivots;
    take_parts<kLast / kEdgePart, kBuffers>(
        [&](int i, EdgePart& part) {
          start_product<T>(part, x, w.last + static_cast<uint64_t>(i * kEdgePart), kLast);
        },
        [&](int i, EdgePart& part) {
          if (!is_there) return;
#pragma unroll
          for (int c = 0; c < kEdgePart / 32; ++c) {
            found.add(part.y[c], 2 * i + c, tile, step, counts);
          }
        });
    if constexpr (kSums) {
      found.has_pivots = counts;
      if (is_there && lane_id() % 4 == 0) found.sums.weight += tile.weight(0) + tile.weight(1);
    }
  }

  __device__ __forceinline__ int stride() const { return static_cast<int>(gridDim.x) * kEdgeWarps; }

  // Counts the tiles of this warp's groups, whose first one is `group`.
  __device__ __forceinline__ int count_tiles(int64_t group) const {
    int tiles = 0;
    for (int64_t g = group + int64_t{lane_id()} * stride(); g < a.problem.groups;
         g += int64_t{32} * stride()) {
      const int2 rows = rows_of_group(a.problem, g);
      tiles += (max(rows.y - rows.x, 0) + kEdgeRows - 1) / kEdgeRows;
    }
    return __reduce_add_sync(kAllLanes, tiles);
  }

  // Goes to the first tile behind the group that `walk` is in, over empty groups.
  __device__ __forceinline__ void enter_group(EdgeWalk& walk, EdgeStage& stage) {
    const EdgeProblem<T>& p = a.problem;
    do {
      if (walk.group > p.groups - stride()) {
        walk.group = p.groups;
        return;
      }
      walk.group += stride();
      walk.rows = walk.pending;
      walk.first = walk.rows.x;
      walk.pending = rows_of_group(p, int64_t{walk.group} + stride());
      if (walk.group < p.groups && walk.rows.x >= walk.rows.y) {
        write_group<T, kLast, kWhich>(a, walk.group, walk.rows, found.maxima, stage, start);
      }
    } while (walk.group < p.groups && walk.rows.x >= walk.rows.y);
  }

  __device__ __forceinline__ void run_groups(EdgeStage& stage, int* tiles) {
    const EdgeProblem<T>& p = a.problem;
    const int group = static_cast<int>(blockIdx.x) * kEdgeWarps + warp_id();
    const int own = count_tiles(group);
    if (lane_id() == 0) tiles[warp_id()] = own;
    __syncthreads();
    int most = 0;
    for (int i = 0; i < 4; ++i) most = max(most, tiles[warp_id() / 4 * 4 + i]);

    found.maxima.clear();
    EdgeWalk walk{group - stride(), 0, {}, rows_of_group(p, group)};
    enter_group(walk, stage);
    EdgeTile tile = walk.group < p.groups ? load_tile(p, walk.first, walk.rows.y) : no_tile();
    gathered.start_copy(p, tile, 0, kFirst);
    for (int i = 0; i < most; ++i) {
      const EdgeWalk at = walk;
      const bool is_there = at.group < p.groups;
      const bool is_end = is_there && at.ends_group();
      if (is_end) {
        enter_group(walk, stage);
      } else {
        walk.first += kEdgeRows;
      }
      const EdgeTile next =
          walk.group < p.groups ? load_tile(p, walk.first, walk.rows.y) : no_tile();
      add(tile, next, is_there, at.step());
      if (is_end) {
        write_group<T, kLast, kWhich>(a, at.group, at.rows, found.maxima, stage, start);
        found.maxima.clear();
      }
      tile = next;
    }
    gathered.wait();
  }

  // Any rows in a warp.
  __device__ __forceinline__ void run_rows() {
    const EdgeProblem<T>& p = a.problem;
    const int end = __ldg(p.ends + p.groups - 1);
    const int64_t stride = int64_t{gridDim.x} * kEdgeWarps * kEdgeRows;
    int64_t common = (int64_t{blockIdx.x} * kEdgeWarps + warp_id() / 4 * 4) * kEdgeRows;
    const int own = warp_id() % 4 * kEdgeRows;
    const auto load = [&](int64_t first) {
      return first < end ? load_tile(p, static_cast<int>(first), end) : no_tile();
    };
    EdgeTile tile = load(common + own);
    gathered.start_copy(p, tile, 0, kFirst);
    for (; common < end; common += stride) {
      const EdgeTile next = load(common + own + stride);
      add(tile, next, common + own < end, 0);
      tile = next;
    }
    gathered.wait();
  }
};

// Blocks of a kernel that an SM is to hold: two where 128 registers a thread are enough.
__host__ __device__ constexpr int edge_wgmma_blocks_of_sm(int hidden, int last, bool which,
                                                          bool sums) {
  const bool is_narrow = hidden <= 64 && last <= 64 && !(which && sums);
  return is_narrow || (hidden <= 64 && last <= 128 && !which && !sums) ? 2 : 1;
}

template <class T, int kFirst, int kHidden, int kLast, bool kPool, bool kWhich, bool kSums>
__global__ void __launch_bounds__(kEdgeThreads,
                                  edge_wgmma_blocks_of_sm(kHidden, kLast, kWhich, kSums))
    edge_wgmma_forward_kernel(const __grid_constant__ EdgeForward<T> a) {
  extern __shared__ __align__(16) unsigned char memory[];
  const EdgeProblem<T>& p = a.problem;
  SharedTaker shared{memory};
  EdgeStage* stages = shared.take<EdgeStage>(kEdgeWarps);
  float* pivots = shared.take<float>(kEdgePivots);
  int* tiles = shared.take<int>(kEdgeWarps);
  const int start = static_cast<int>(blockIdx.y) * kLast;
  const EdgeWgmmaWeights w = load_wgmma_layers<T, kFirst, kHidden, kLast>(p, start, true, shared);
  EdgeWgmmaPass<T, kFirst, kHidden, kLast, kPool, kWhich, kSums> pass{
      a, w, start, {}, take_gathered(p, kFirst, shared)};
  __syncthreads();
  pass.found.begin(p, start, pivots);
  if constexpr (kPool) {
    pass.run_groups(stages[warp_id()], tiles);
  } else {
    pass.run_rows();
  }
  if constexpr (kSums) {
    write_sums(pass.found.sums, reinterpret_cast<float*>(stages), start, p.width,
               a.sums + int64_t{blockIdx.x} * (2 * p.width + 1));
  }
}

template <int kFirst, int kHidden, int kLast, class T>
int edge_forward_bytes(const EdgeProblem<T>& p) {
  return static_cast<int>(sizeof(EdgeStage)) * kEdgeWarps + 4 * kEdgePivots + 4 * kEdgeWarps +
         edge_wgmma_bytes(p, kFirst, kHidden, kLast);
}

// Calls fn with the kernel, its bytes of shared memory and its slices; gives 0 where there is none.
template <class T, class Fn>
int with_wgmma_kernel(const EdgeForward<T>& a, EdgeForwardMode mode, const EdgeDevice& device,
                      Fn&& fn) {
  const EdgeProblem<T>& p = a.problem;
  const auto call = [&]<int kHidden, int kLast, int kFirst = kHidden>() -> int {
    const int bytes = edge_forward_bytes<kFirst, kHidden, kLast>(p), slices = p.width / kLast;
    if (bytes > device.shared_memory) return 0;
    const auto call_mode = [&]<bool kPool, bool kWhich, bool kSums>() -> int {
      return fn(Tag<&edge_wgmma_forward_kernel<T, kFirst, kHidden, kLast, kPool, kWhich, kSums>>{},
                bytes, slices);
    };
    if constexpr (kLast > kEdgeSlice) {
      return call_mode.template operator()<true, false, false>();
    } else if constexpr (kFirst != kHidden) {  // training pools the last of three layers
      if (mode == EdgeForwardMode::kPool) return call_mode.template operator()<true, true, false>();
      if (mode != EdgeForwardMode::kPoolAndSums) return 0;
      return call_mode.template operator()<true, true, true>();
    } else {
      return with_forward_mode(mode, call_mode);
    }
  };
  if (EdgeShape{p.hidden, p.middle, p.width} == kEdgeTaper && p.layers == 3) {
    return call.template operator()<kEdgeTaper.middle, kEdgeTaper.last, kEdgeTaper.first>();
  }
  if (p.layers < 2 || p.middle != p.hidden || (p.hidden != 64 && p.hidden != 128)) return 0;
  return dispatch(Choices<64, 128>{}, p.hidden, [&]<int kHidden>(Tag<kHidden>) -> int {
    if (p.width < kEdgeSlice) return p.width == 64 ? call.template operator()<kHidden, 64>() : 0;
    if (mode == EdgeForwardMode::kInfer && p.width % 256 == 0) {
      const int found = call.template operator()<kHidden, 256>();
      if (found != 0) return found;
    }
    return call.template operator()<kHidden, 128>();
  });
}

template <class T>
int edge_wgmma_blocks(const EdgeForward<T>& a, EdgeForwardMode mode, const EdgeDevice& device) {
  const bool by_group = mode != EdgeForwardMode::kSums;
  const int64_t work = by_group ? int64_t{a.problem.groups} : most_tiles(a.problem);
  return with_wgmma_kernel(a, mode, device, [&]<auto kKernel>(Tag<kKernel>, int bytes, int slices) {
    return edge_grid<kKernel>(bytes, device.sm_count, work, slices, kEdgeWarps);
  });
}

template <class T>
void launch_edge_wgmma(const EdgeForward<T>& a, EdgeForwardMode mode, int blocks,
                       const EdgeDevice& device) {
  with_wgmma_kernel(a, mode, device, [&]<auto kKernel>(Tag<kKernel>, int bytes, int slices) {
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(slices));
    kKernel<<<grid, kEdgeThreads, bytes, device.stream>>>(a);
    return 1;
  });
}

}  // namespace fusedops
