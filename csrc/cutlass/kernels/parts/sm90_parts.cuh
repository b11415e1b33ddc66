// The fp32 GEMM over parts on the way: a value is the sum of three bf16 parts, and a product of two
// values that of six products of parts; the other three are below fp32's rounding. Operands of any
// majorness are read once, as they are.
//
// Two warpgroups copy: the left tile as it is, the right one in parts (part_copies.cuh). Two others
// have 64 rows of a tile each; they part the left tile in registers, where WGMMA reads it, while
// the products of the step before are under way. A block walks over tiles, so that the first
// copies of one fall into the stores of the one before.
#pragma once

#include <limits>

#include "csrc/common/device/pdl.cuh"
#include "csrc/cutlass/configs/alignment.h"
#include "csrc/cutlass/kernels/hopper/wgmma_left.cuh"
#include "csrc/cutlass/kernels/parts/part_results.cuh"
#include "csrc/cutlass/kernels/sm80/sm80_tile.cuh"

namespace fusedops::parts {

struct Params {
  Operand a, b;
  int64_t m, n;
  unsigned tiles, slices;
  sm80::KRange range;
  sm80::TileOrder order;
  Output output;
};

template <class S>
__device__ __forceinline__ Part part_of(const Params& p, int tile, int slice) {
  const int2 at = p.order(tile);
  const int64_t m = int64_t{at.x} * S::kM, n = int64_t{at.y} * S::kN;
  return {m,
          n,
          p.range.begin(slice),
          static_cast<int>(min(p.m - m, int64_t{S::kM})),
          static_cast<int>(min(p.n - n, int64_t{S::kN})),
          p.range.count(slice)};
}

// Calls take(part, slice) for every part of this block.
template <class S, class Take>
__device__ __forceinline__ void for_parts(const Params& p, Take&& take) {
#pragma unroll 1
  for (unsigned i = blockIdx.x; i < p.tiles * p.slices; i += gridDim.x) {
    const int slice = static_cast<int>(i / p.tiles);
    take(part_of<S>(p, static_cast<int>(i % p.tiles), slice), slice);
  }
}

// ---- the copying warpgroups ----

template <class S>
__device__ __forceinline__ void copy_tiles(const Params& p, const Shared<S>& shared) {
  using A = Source<S::kM, S::kMajorA>;
  using B = Source<S::kN, S::kMajorB>;
  sm90::Place right, left, values, arrived;  // right: the next to be parted
  int under_way = 0;
  const auto part_next = [&] {
    part_right<typename S::B, B>(shared.values(arrived.stage), shared.right(right.stage));
    fence_bulk_copies();
    arrive(shared.full(right.stage));
    arrived.advance(S::kValueStages);
    right.advance(S::kStages);
  };
  for_parts<S>(p, [&](const Part& part, int) {
    A a(p.a, part.m, part.k, part.rows);
    B b(p.b, part.n, part.k, part.cols);
#pragma unroll 1
    for (int k = part.length; k > 0; k -= kK) {
      const bool parts = under_way == S::kAhead;
      // NOTE: the left tile that was multiplied with this right one lies where the next one goes.
      if (parts) wait_for_bytes(shared.empty(right.stage), right.parity ^ 1);
      copy_left<typename S::A>(a, shared.left(left.stage), k);
      copy_right(b, shared.values(values.stage), k);
      commit_copies();
      left.advance(S::kLeftStages);
      values.advance(S::kValueStages);
      if (!parts) {
        ++under_way;
        continue;
      }
      wait_for_copies<S::kAhead>();
      part_next();
    }
  });
  wait_for_copies<0>();
  for (; under_way > 0; --under_way) {
    wait_for_bytes(shared.empty(right.stage), right.parity ^ 1);
    part_next();
  }
}

// ---- the multiplying warpgroups ----

// 64 rows of a left tile in parts, as the threads of a warpgroup have them for WGMMA.
struct LeftParts {
  uint32_t part[kParts][kK / 16][4];

  template <class Tile>
  __device__ __forceinline__ void load(const float* tile, const LeftPairs<Tile>& pairs) {
#pragma unroll
    for (int step = 0; step < kK / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 v = pairs.pair(tile, i % 2, step * 2 + i / 2);
        uint32_t parts[kParts];
        part_pair(v.x, v.y, parts);
#pragma unroll
        for (int p = 0; p < kParts; ++p) part[p][step][i] = parts[p];
      }
    }
  }
};

template <class S>
__device__ __forceinline__ void start_products(float (&added)[S::kN / 2], const LeftParts& left,
                                               uint32_t right) {
  const uint64_t descriptor = S::B::descriptor(right);
  wgmma::fence();
#pragma unroll
  for (int both = kParts - 1; both >= 0; --both) {  // the smallest first
#pragma unroll
    for (int p = 0; p <= both; ++p) {
#pragma unroll
      for (int k = 0; k < kK / 16; ++k) {
        const bool adds = !(both == kParts - 1 && p == 0 && k == 0);
        wgmma::multiply_left<S::kN, !S::B::kAlongK>(
            added, left.part[p][k],
            descriptor + (both - p) * (S::B::kPartBytes >> 4) + k * S::B::kStep, adds);
      }
    }
  }
  wgmma::commit();
}

template <class S>
__device__ __forceinline__ void multiply_tiles(const Params& p, const Shared<S>& shared,
                                               float* floats) {
  const float* lefts = floats + S::kOfLeft / 4;
  const LeftPairs<typename S::A> pairs(Place().row, int(threadIdx.x) % 4 * 2);
  sm90::Place right, left;
  for_parts<S>(p, [&](const Part& part, int slice) {
    Sums<S::kN> sums;
    // NOTE: Tensor Cores cut off what they add to a sum, so that they add up few products at a
    // time.
    float added[S::kN / 2];
    const auto load = [&](LeftParts& parts) {
      wait_for_bytes(shared.full(right.stage), right.parity);
      parts.load(lefts + left.stage * (S::A::kBytes / 4), pairs);
      left.advance(S::kLeftStages);
    };
    const auto step = [&](const LeftParts& parts, LeftParts& next, bool more) {
      const int stage = right.stage;
      start_products<S>(added, parts, shared.right(stage));
      right.advance(S::kStages);
      if (more) load(next);
      wgmma::wait<0>();
      wgmma::settle(added);
      arrive(shared.empty(stage));
#pragma unroll
      for (int i = 0; i < S::kN / 2; ++i) sums.value[i] += added[i];
    };
    LeftParts even, odd;
    load(even);
#pragma unroll 1
    for (int k = part.length; k > 0; k -= 2 * kK) {
      step(even, odd, k > kK);
      if (k > kK) step(odd, even, k > 2 * kK);
    }
    repair<S::kMajorA, S::kMajorB>(sums, part, p.a, p.b);
    store(sums, part, slice, p.output, floats + S::kOfStaged / 4);
  });
}

// ---- kernel ----

template <class S>
__global__ void __launch_bounds__(kThreads, 1) parts_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) float shared_floats[];
  const Shared<S> shared{shared_address(shared_floats)};
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      init_barrier(shared.full(i), kCopiers);
      init_barrier(shared.empty(i), kMultipliers);
    }
    fence_barrier_init();
  }
  __syncthreads();
  wait_for_predecessor();
  if (wgmma::warpgroup() < kCopiers / 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::kFewRegisters));
    copy_tiles<S>(p, shared);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::kManyRegisters));
    multiply_tiles<S>(p, shared, shared_floats);
  }
}

// ---- host side ----

inline Operand make_operand(const GemmOperand& operand) {
  return {static_cast<const char*>(operand.data), operand.ld * 4, !unaligned::in_words(operand)};
}

inline Output make_output(const GemmProblem& problem) {
  const bool sums = problem.epilogue == Epilogue::kAccumulator;
  void* preact = problem.epilogue == Epilogue::kPreact ? problem.preact : nullptr;
  const int64_t stride = problem.slices > 1 ? problem.slice_stride : 0;
  return {.d = static_cast<float*>(problem.d),
          .preact = static_cast<float*>(preact),
          .bias = sums ? nullptr : static_cast<const float*>(problem.bias),
          .ldd = problem.ldd,
          .slice_stride = stride,
          .activation = sums ? Activation::kNone : problem.activation,
          .fours = aligned16(problem.d) && aligned16(preact) &&
                   (problem.m == 1 || problem.ldd % 4 == 0) && stride % 4 == 0};
}

template <class S>
const char* launch(const GemmProblem& problem, const LaunchContext& context) {
  const sm80::TileOrder order = sm80::make_tile_order(problem, S::kM, S::kN);
  const Params params = {.a = make_operand(problem.a),
                         .b = make_operand(problem.b),
                         .m = problem.m,
                         .n = problem.n,
                         .tiles = unsigned(order.tiles_m) * unsigned(order.tiles_n),
                         .slices = static_cast<unsigned>(problem.slices),
                         .range = sm80::make_k_range(problem),
                         .order = order,
                         .output = make_output(problem)};
  const int64_t parts = int64_t{params.tiles} * params.slices;
  if (parts > std::numeric_limits<int32_t>::max()) return "too many tiles";
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(parts, context.sm_count)));
  return sm80::launch_blocks<&parts_kernel<S>>(grid, context, kThreads, S::kSharedBytes, params);
}

}  // namespace fusedops::parts
