// Three layers over edges with ReLU for inference, each layer of a width of its own: what
// edge_wgmma_forward.cuh has for any layers, without what inference does not ask for. A warp owns a
// group; the four warps of a warpgroup multiply together, as many times as the warp with the most
// tiles needs. A warp waits for its own gathers, and maxima go from lane to lane by shuffles:
// behind the weights there is no barrier of the block.
#pragma once

#include <utility>

#include "csrc/common/device/async_copy.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cuda/points/edge_wgmma/edge_wgmma.cuh"
#include "csrc/cuda/points/edge_wgmma/wgmma_columns.cuh"
#include "csrc/cuda/points/edges/edge_forward.cuh"
#include "csrc/cuda/points/edges/edge_launch.h"

namespace fusedops {

// Columns of an instruction for a layer of `width`, from column `at` on.
__host__ __device__ constexpr int edge_columns(int width, int at = 0) {
  if (width == 208) return at == 0 ? 64 : 48;
  return width % 64 == 0 ? 64 : width % 48 == 0 ? 48 : 32;
}

// Warps of a block, and blocks that an SM is to hold: what registers a thread needs allows. Buffers
// of the last layer's parts: two where a warp has few others beside it.
struct EdgeInferLaunch {
  int warps, blocks, buffers;
};
__host__ __device__ constexpr EdgeInferLaunch edge_infer_launch(int first, int middle, int last) {
  if (last > 128) return {8, 1, 2};  // up to 255 registers
  if (first > 64) return {8, 1, 2};
  if (middle > 64) return {12, 1, 1};  // up to 168
  return {8, 2, 1};                    // up to 128
}

// The layers in shared memory: descriptors, and (scale, shift) of two hidden channels.
struct EdgeInferWeights {
  uint64_t first, middle, last;
  const float4* affine;  // of both hidden layers
};

// Starts d = x w^T for the columns that `w` begins at, of a matrix of `rows` rows.
template <class T, int kColumns, int kWidth>
__device__ __forceinline__ void start_columns(EdgeColumns<kColumns>& d,
                                              const EdgeOperand<kWidth>& x, uint64_t w, int rows) {
  edge_fence();
  multiply_columns_first<T>(d, x.a[0], w);
#pragma unroll
  for (int k = 1; k < kWidth / 16; ++k) {
    multiply_columns<T>(d, x.a[k], w + static_cast<uint64_t>(2 * k * rows));
  }
  edge_commit();
}

// relu(scale y + shift) of the layer's channels from `first` on as an operand; padded channels
// become 0 first, as an infinite operand makes them NaN.
template <class T, int kColumns, int kWidth>
__device__ __forceinline__ void activate_columns(const float4* affine, int first,
                                                 EdgeColumns<kColumns>& y,
                                                 EdgeOperand<kWidth>& to) {
  constexpr int kBlocks = kColumns / 8;
  const float4* own = affine + first / 2 + lane_id() % 4;
  if (is_padding(affine[(first + kColumns) / 2 - 1].z)) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const float4 st = own[4 * b];
      if (is_padding(st.x)) y.y[b][0] = y.y[b][2] = 0.f;
      if (is_padding(st.z)) y.y[b][1] = y.y[b][3] = 0.f;
    }
  }
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const float4 st = own[4 * b];
    const int block = first / 8 + b;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      to.a[block / 2][block % 2 * 2 + half] =
          pack_relu<T>(fmaf(y.y[b][2 * half], st.x, st.y), fmaf(y.y[b][2 * half + 1], st.z, st.w));
    }
  }
}

// Where a warp is among the tiles of its groups; an empty group has one that nobody reads.
struct EdgeInferWalk {
  int group;  // the number of groups: there is no tile
  int first;  // of the tile's rows
  int end;    // of the group's

  __device__ __forceinline__ bool ends_group() const { return first + kEdgeRows >= end; }

  // A lane's rows; those behind the group's end repeat the tile's first.
  __device__ __forceinline__ int row(int half) const {
    const int row = first + lane_id() / 4 + 8 * half;
    return first >= end ? 0 : row < end ? row : first;
  }
};

// kAdds: rows or group_rows are there.
template <class T, int kFirst, int kMiddle, int kLast, bool kAdds>
struct EdgeInferPass {
  static constexpr int kValues = kLast / 4;
  static constexpr EdgeInferLaunch kLaunch = edge_infer_launch(kFirst, kMiddle, kLast);
  static constexpr int kBuffers = kLaunch.buffers, kWarps = kLaunch.warps;

  const EdgeForward<T>& a;
  EdgeInferWeights w;
  float* rows;  // [kEdgeRows][kFirst]: what the warp gathers; or null
  uint32_t operand[4];
  float best[kValues];

  __device__ __forceinline__ int stride() const { return static_cast<int>(gridDim.x) * kWarps; }

  // The group behind one, or the number of groups.
  __device__ __forceinline__ int behind(int group) const {
    return group < a.problem.groups - stride() ? group + stride() : a.problem.groups;
  }

  // Where a group's rows end; they begin at group * k.
  __device__ __forceinline__ int end_of(int group) const {
    return group < a.problem.groups ? __ldg(a.problem.ends + group) : 0;
  }

  // The points of a tile's rows, where those are gathered: an empty group's list has none.
  __device__ __forceinline__ int2 load_points(const EdgeInferWalk& walk) const {
    if (!kAdds || !rows || walk.first >= walk.end) return {0, 0};
    const int4* list = a.problem.list;
    return {__ldg(&list[walk.row(0)].x), __ldg(&list[walk.row(1)].x)};
  }

  // Starts reading what a tile gathers: its operands and its rows.
  __device__ __forceinline__ void gather(const EdgeInferWalk& walk, int2 points) {
    const EdgeProblem<T>& p = a.problem;
    const uint32_t* words = reinterpret_cast<const uint32_t*>(p.operands) + lane_id() % 4;
    constexpr int kWords = kEdgePlane / 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = walk.row(half);
      if (p.planes > 0) operand[half] = __ldg(words + row * kWords);
      if (p.planes > 1) operand[2 + half] = __ldg(words + (p.edges + row) * kWords);
    }
    if constexpr (kAdds) {
      if (rows) copy_rows(points);
    }
  }

  // Where piece `piece` (of four values) of a lane's row is.
  static __device__ __forceinline__ int place_of(int half, int piece) {
    return (lane_id() / 4 + 8 * half) * kFirst + (4 * piece ^ EdgeGathered::swizzle());
  }

  // NOTE: four lanes take 64 bytes side by side: whole sectors.
  __device__ __forceinline__ void copy_rows(int2 points) {
    const int own = lane_id() % 4;
    __syncwarp();  // others have read
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t point = half == 0 ? points.x : points.y;
      const float* from = a.problem.rows + point * kFirst + 4 * own;
#pragma unroll
      for (int i = 0; i < kFirst / 16; ++i) {
        copy_async(shared_address(rows + place_of(half, 4 * i + own)), from + 16 * i);
      }
    }
    commit_copies();
  }

  __device__ __forceinline__ void wait_for_rows() const {
    if constexpr (kAdds) {
      if (!rows) return;
      wait_for_copies();
      __syncwarp();
    }
  }

  // What the products of the first layer's channels from `first` on are added to.
  template <int kColumns>
  __device__ __forceinline__ void add_gathered(EdgeColumns<kColumns>& y, int first, int group) {
    const EdgeProblem<T>& p = a.problem;
    y.clear();
    if (rows) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < kColumns / 16; ++i) {
          const int piece = first / 4 + i / 2 * 8 + 2 * (lane_id() % 4) + i % 2;
          const float4 v = *reinterpret_cast<const float4*>(rows + place_of(half, piece));
          y.y[2 * i][2 * half] = v.x;
          y.y[2 * i][2 * half + 1] = v.y;
          y.y[2 * i + 1][2 * half] = v.z;
          y.y[2 * i + 1][2 * half + 1] = v.w;
        }
      }
    }
    if (p.group_rows) {
      const float* row = p.group_rows + int64_t{group} * kFirst + first + 8 * (lane_id() % 4);
#pragma unroll
      for (int i = 0; i < kColumns / 16; ++i) {
        const float4 v = __ldg(reinterpret_cast<const float4*>(row + i / 2 * 32 + i % 2 * 4));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          y.y[2 * i][2 * half] += v.x;
          y.y[2 * i][2 * half + 1] += v.y;
          y.y[2 * i + 1][2 * half] += v.z;
          y.y[2 * i + 1][2 * half + 1] += v.w;
        }
      }
    }
  }

  __device__ __forceinline__ void first_layer(int group, EdgeOperand<kFirst>& x) {
    constexpr int kColumns = edge_columns(kFirst);
    wait_for_rows();
#pragma unroll
    for (int at = 0; at < kFirst; at += kColumns) {
      EdgeColumns<kColumns> y;
      if constexpr (kAdds) add_gathered(y, at, group);
      edge_fence();
      if constexpr (kAdds) {
        multiply_columns<T>(y, operand, w.first + static_cast<uint64_t>(at));
      } else {
        multiply_columns_first<T>(y, operand, w.first + static_cast<uint64_t>(at));
      }
      edge_commit();
      edge_wait<0>();
      y.settle();
      activate_columns<T>(w.affine, at, y, x);
    }
  }

  // The middle layer's channels from kAt on.
  template <int kAt = 0>
  __device__ __forceinline__ void middle_layer(const EdgeOperand<kFirst>& x,
                                               EdgeOperand<kMiddle>& to, bool is_there) {
    constexpr int kColumns = edge_columns(kMiddle, kAt);
    EdgeColumns<kColumns> y;
    start_columns<T>(y, x, w.middle + static_cast<uint64_t>(kAt), kMiddle);
    edge_wait<0>();
    y.settle();
    // NOTE: a branch where registers are few: else the next part's products come before.
    if (kMiddle <= 128 || is_there) activate_columns<T>(w.affine + kFirst / 2, kAt, y, to);
    if constexpr (kAt + kColumns < kMiddle) middle_layer<kAt + kColumns>(x, to, is_there);
  }

  // Takes the last layer's channels that belong to best[first] and behind it.
  template <int kColumns>
  __device__ __forceinline__ void take_maxima(const EdgeColumns<kColumns>& y, int first) {
#pragma unroll
    for (int b = 0; b < kColumns / 8; ++b) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float& found = best[first + 2 * b + h];
        found = max_or_nan(max_or_nan(found, y.y[b][h]), y.y[b][2 + h]);
      }
    }
  }

  // NOTE: maxima in a branch: else the next part's products come before, in other registers.
  // Maxima of the last layer's values: those of a part while the next one is multiplied, where
  // there are two buffers.
  __device__ __forceinline__ void last_layer(const EdgeOperand<kMiddle>& x, bool is_there) {
    constexpr int kColumns = edge_columns(kLast), kParts = kLast / kColumns;
    EdgeColumns<kColumns> y[kBuffers];
    start_columns<T>(y[0], x, w.last, kLast);
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      if (kBuffers > 1 && i + 1 < kParts) {
        start_columns<T>(y[(i + 1) % kBuffers], x,
                         w.last + static_cast<uint64_t>((i + 1) * kColumns), kLast);
        edge_wait<1>();
      } else {
        edge_wait<0>();
      }
      EdgeColumns<kColumns>& part = y[i % kBuffers];
      part.settle();
      if (is_there) take_maxima(part, i * kColumns / 4);
      if (kBuffers == 1 && i + 1 < kParts) {
        start_columns<T>(part, x, w.last + static_cast<uint64_t>((i + 1) * kColumns), kLast);
      }
    }
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kValues; ++i) best[i] = -INFINITY;
  }

  // Lanes of eight rows exchange their maxima: each keeps an eighth of the columns.
  template <int kCount, int kMask>
  __device__ __forceinline__ void exchange() {
    const bool upper = lane_id() & kMask;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      const float own = upper ? best[kCount / 2 + i] : best[i];
      const float other = upper ? best[i] : best[kCount / 2 + i];
      best[i] = max_or_nan(own, __shfl_xor_sync(kAllLanes, other, kMask));
    }
  }

  // Writes what a group has, and forgets it.
  __device__ __forceinline__ void write_group(int group, bool is_empty) {
    const EdgeProblem<T>& p = a.problem;
    exchange<kValues, 16>();
    exchange<kValues / 2, 8>();
    exchange<kValues / 4, 4>();
    constexpr int kOwn = kLast / 8;  // columns of the four lanes that have the same ones
    float own[kOwn / 4];
#pragma unroll
    for (int i = 0; i < kOwn / 4; ++i) own[i] = best[i];
    clear();
    const int column = lane_id() / 4 * kOwn + 2 * (lane_id() % 4);
    const float4* affine = p.affine + (kFirst + kMiddle + column) / 2;
    T* to = a.out + int64_t{group} * a.channels + column;
#pragma unroll
    for (int b = 0; b < kOwn / 8; ++b) {
      const int left = a.channels - column - 8 * b;
      const float4 st = __ldg(affine + 4 * b);
      uint32_t pair = pack_relu<T>(fmaf(own[2 * b], fabsf(st.x), st.y),
                                   fmaf(own[2 * b + 1], fabsf(st.z), st.w));
      if (is_empty) pair = 0;
      if (a.channels % 2 == 0) {
        if (left > 0) *reinterpret_cast<uint32_t*>(to + 8 * b) = pair;
      } else {
        uint16_t* halves = reinterpret_cast<uint16_t*>(to + 8 * b);
        if (left > 0) halves[0] = static_cast<uint16_t>(pair);
        if (left > 1) halves[1] = static_cast<uint16_t>(pair >> 16);
      }
    }
  }

  // The tiles of this warp's groups.
  __device__ __forceinline__ int count_tiles(int group) const {
    int tiles = 0;
    for (int64_t g = group + int64_t{lane_id()} * stride(); g < a.problem.groups;
         g += int64_t{32} * stride()) {
      const int rows = end_of(static_cast<int>(g)) - static_cast<int>(g) * a.problem.k;
      tiles += max((rows + kEdgeRows - 1) / kEdgeRows, 1);
    }
    return __reduce_add_sync(kAllLanes, tiles);
  }

  __device__ __forceinline__ void run(int* tiles) {
    const EdgeProblem<T>& p = a.problem;
    const int group = static_cast<int>(blockIdx.x) * kWarps + warp_id();
    const int own = count_tiles(group);
    if (lane_id() == 0) tiles[warp_id()] = own;
    __syncthreads();
    int most = 0;
    for (int i = 0; i < 4; ++i) most = max(most, tiles[warp_id() / 4 * 4 + i]);

    clear();
    EdgeInferWalk walk{min(group, p.groups), group * p.k, end_of(group)};
    int pending = end_of(behind(walk.group));
    gather(walk, load_points(walk));
    for (; most > 0; --most) {
      const int at = walk.group;
      const bool is_there = at < p.groups, is_end = is_there && walk.ends_group();
      const bool is_empty = walk.first >= walk.end;
      if (is_end) {
        walk.group = behind(at);
        walk.first = walk.group * p.k;
        walk.end = pending;
        pending = end_of(behind(walk.group));
      } else {
        walk.first += kEdgeRows;
      }
      const int2 points = load_points(walk);
      EdgeOperand<kFirst> x;
      first_layer(min(at, p.groups - 1), x);
      gather(walk, points);
      EdgeOperand<kMiddle> following;
      middle_layer(x, following, is_there);
      last_layer(following, is_there);
      if (is_end) write_group(at, is_empty);
    }
    wait_for_rows();
  }
};

// Brings all layers into shared memory.
template <class T, int kFirst, int kMiddle, int kLast>
__device__ __forceinline__ EdgeInferWeights load_infer_layers(const EdgeProblem<T>& p,
                                                              SharedTaker& shared) {
  constexpr int kPairs = (kFirst + kMiddle) / 2;
  const int threads = static_cast<int>(blockDim.x);
  T* first = shared.take<T>(2 * kFirst * kEdgePlane);
  T* middle = shared.take<T>(kMiddle * kFirst);
  T* last = shared.take<T>(kLast * kMiddle);
  float4* affine = shared.take<float4>(kPairs);
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kFirst; i += threads) {
    const bool is_there = i < p.planes * kFirst;
    reinterpret_cast<uint4*>(first)[i] =
        is_there ? __ldg(reinterpret_cast<const uint4*>(p.first_weight) + i) : uint4{};
  }
  copy_pieces<T>(p.weights, kMiddle, kFirst, nullptr, middle);
  copy_pieces<T>(p.weights + kMiddle * kFirst, kLast, kMiddle,
                 reinterpret_cast<const float2*>(p.affine + kPairs), last);
  for (int i = static_cast<int>(threadIdx.x); i < kPairs; i += threads) affine[i] = p.affine[i];
  publish_operands();
  return {edge_descriptor(first, kFirst, 8), edge_descriptor(middle, kMiddle, 8),
          edge_descriptor(last, kLast, 8), affine};
}

template <class T, int kFirst, int kMiddle, int kLast, bool kAdds>
__global__ void __launch_bounds__(32 * edge_infer_launch(kFirst, kMiddle, kLast).warps,
                                  edge_infer_launch(kFirst, kMiddle, kLast).blocks)
    edge_wgmma_infer_kernel(const __grid_constant__ EdgeForward<T> a) {
  extern __shared__ __align__(16) unsigned char memory[];
  SharedTaker shared{memory};
  using Pass = EdgeInferPass<T, kFirst, kMiddle, kLast, kAdds>;
  int* tiles = shared.take<int>(Pass::kWarps);
  const EdgeInferWeights w = load_infer_layers<T, kFirst, kMiddle, kLast>(a.problem, shared);
  float* rows = nullptr;
  if (kAdds && a.problem.rows) {
    rows = shared.take_rows(Pass::kWarps * kEdgeRows * kFirst);
    rows += warp_id() * kEdgeRows * kFirst;
  }
  Pass pass{a, w, rows, {}, {}};
  pass.run(tiles);  // its barrier is that of the weights as well
}

template <class T>
int edge_infer_bytes(const EdgeProblem<T>& p, const EdgeShape& shape) {
  const int warps = edge_infer_launch(shape.first, shape.middle, shape.last).warps;
  int bytes = 4 * warps + 2 * shape.first * kEdgePlane * 2;
  bytes += (shape.first + shape.last) * shape.middle * 2 + (shape.first + shape.middle) * 8;
  return bytes + (p.rows ? warps * kEdgeRows * shape.first * 4 + kEdgeSector : 0);
}

// Calls fn with the kernel, its bytes of shared memory and the warps of a block; gives 0 where
// there is none.
template <class T, class Fn>
int with_infer_kernel(const EdgeForward<T>& a, EdgeForwardMode mode, const EdgeDevice& device,
                      Fn&& fn) {
  const EdgeProblem<T>& p = a.problem;
  if (mode != EdgeForwardMode::kInfer || p.layers != 3 || !p.is_relu) return 0;
  const auto call = [&]<int kShape>() -> int {
    constexpr EdgeShape kWidths = kEdgeShapes[kShape];
    const int bytes = edge_infer_bytes(p, kWidths);
    if (bytes > device.shared_memory) return 0;
    constexpr int kWarps = edge_infer_launch(kWidths.first, kWidths.middle, kWidths.last).warps;
    constexpr int kFirst = kWidths.first, kMiddle = kWidths.middle, kLast = kWidths.last;
    if (p.rows || p.group_rows) {
      return fn(Tag<&edge_wgmma_infer_kernel<T, kFirst, kMiddle, kLast, true>>{}, bytes, kWarps);
    }
    return fn(Tag<&edge_wgmma_infer_kernel<T, kFirst, kMiddle, kLast, false>>{}, bytes, kWarps);
  };
  const EdgeShape given{p.hidden, p.middle, p.width};
  return [&]<int... kShape>(std::integer_sequence<int, kShape...>) {
    int found = 0;
    ((kEdgeShapes[kShape] == given ? void(found = call.template operator()<kShape>()) : void()),
     ...);
    return found;
  }(std::make_integer_sequence<int, kEdgeShapeCount>{});
}

template <class T>
int edge_infer_blocks(const EdgeForward<T>& a, EdgeForwardMode mode, const EdgeDevice& device) {
  return with_infer_kernel(a, mode, device, [&]<auto kKernel>(Tag<kKernel>, int bytes, int warps) {
    return edge_grid<kKernel>(bytes, device.sm_count, a.problem.groups, 1, warps);
  });
}

template <class T>
void launch_edge_infer(const EdgeForward<T>& a, EdgeForwardMode mode, int blocks,
                       const EdgeDevice& device) {
  with_infer_kernel(a, mode, device, [&]<auto kKernel>(Tag<kKernel>, int bytes, int warps) {
    kKernel<<<static_cast<unsigned>(blocks), 32 * warps, bytes, device.stream>>>(a);
    return 1;
  });
}

}  // namespace fusedops
