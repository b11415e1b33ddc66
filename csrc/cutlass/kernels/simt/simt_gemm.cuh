// The FP32 FMA GEMM of the sm_80 family, hand-written: full fp32 accuracy at the rate of the fp32
// units, on every GPU from sm_80 on, for any element-aligned operands.
//
// Accuracy: rounding errors of a sum grow with the length of its chain of additions, so that no
// chain is long: products of a short block of K are summed first, then added to the master sums.
// The small tiles also divide each block of K among the warps (slices) and add theirs as a tree at
// the end, which fills an SM with one tile.
// NOTE: CUTLASS's SIMT kernels copy operands element by element, and in sums of 8 or of all of K.
#pragma once

#include "csrc/cutlass/configs/registry.h"
#include "csrc/cutlass/kernels/simt/simt_epilogue.cuh"

namespace fusedops::simt {

// ---- parameters ----

struct Operand {
  const float* data;
  int64_t ld;
  bool wide;
};

struct Params {
  Operand a, b;
  int64_t m, n;
  sm80::KRange range;
  sm80::TileOrder order;
  sm80::Output output;
};

// ---- mainloop ----

// Products of one K tile, of this thread's slice: every slices-th step of 4 k.
template <class G>
__device__ __forceinline__ void multiply_tile(const float* tile, const Place<G>& place,
                                              Sums<G>& block) {
  constexpr int kSteps = G::kK / 4 / G::kShape.slices;
#pragma unroll 4
  for (int step = 0; step < kSteps; ++step) {
    const int k = (step * G::kShape.slices + place.slice) * 4;
    float a[Sums<G>::kM][4], b[Sums<G>::kN][4];
    load_fragment<typename G::TileA, G::kShape.groups_m, G::kStepM>(a, tile, place.m, k);
    load_fragment<typename G::TileB, G::kShape.groups_n, G::kStepN>(b, tile + G::TileA::kFloats,
                                                                    place.n, k);
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
#pragma unroll
      for (int i = 0; i < Sums<G>::kM; ++i) {
#pragma unroll
        for (int j = 0; j < Sums<G>::kN; ++j) {
          block.value[i][j] = fmaf(a[i][kk], b[j][kk], block.value[i][j]);
        }
      }
    }
  }
}

template <class G>
__device__ __forceinline__ void mainloop(float* shared, const Place<G>& place, TileSource a,
                                         TileSource b, int k, Sums<G>& sums) {
  constexpr int kStages = G::kShape.stages;
  const int tiles = (k + G::kK - 1) / G::kK;
  const auto start_copies = [&](int tile) {
    if (tile < tiles) {
      float* stage = shared + tile % kStages * G::kStageFloats;
      const int k_left = k - tile * G::kK;
      load_tile<typename G::TileA, G::kK, G::kThreads>(a, stage, k_left);
      load_tile<typename G::TileB, G::kK, G::kThreads>(b, stage + G::TileA::kFloats, k_left);
    }
    commit_copies();
  };
  for (int tile = 0; tile < kStages - 1; ++tile) start_copies(tile);

  Sums<G> middle;
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    wait_copies<kStages - 2>();
    __syncthreads();
    start_copies(tile + kStages - 1);
    Sums<G> block;
    multiply_tile<G>(shared + tile % kStages * G::kStageFloats, place, block);
    if constexpr (G::kShape.middle == 0) {
      sums.add(block);
    } else {
      middle.add(block);
      if (tile % G::kShape.middle == G::kShape.middle - 1 || tile == tiles - 1) {
        sums.add(middle);
        middle = {};
      }
    }
  }
  wait_copies<0>();
  __syncthreads();
}

// ---- kernel ----

template <class G>
__global__ void __launch_bounds__(G::kThreads, G::kMinBlocks)
    gemm_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) float shared_floats[];
  const Place<G> place;

  // Tile of this block
  const int2 tile = params.order(blockIdx.x);
  const int64_t m = int64_t{tile.x} * G::kTile.tile_m, n = int64_t{tile.y} * G::kTile.tile_n;
  const int slice = blockIdx.y;
  const int64_t begin = params.range.begin(slice);
  const int rows = static_cast<int>(min(params.m - m, int64_t{G::kTile.tile_m}));
  const int cols = static_cast<int>(min(params.n - n, int64_t{G::kTile.tile_n}));
  wait_for_predecessor();

  // Mainloop
  const auto source_of = [&](const Operand& o, Major major, int64_t first, int inside) {
    const int64_t offset = major == Major::kK ? first * o.ld + begin : first + begin * o.ld;
    return TileSource{o.data + offset, o.ld, inside, o.wide};
  };
  Sums<G> sums;
  mainloop<G>(shared_floats, place, source_of(params.a, G::kMajorA, m, rows),
              source_of(params.b, G::kMajorB, n, cols), params.range.count(slice), sums);

  // Epilogue
  const sm80::Output& output = params.output;
  const int64_t first = m * output.ldd + n;
  const sm80::OutputTile out = {
      static_cast<float*>(output.d) + first + slice * output.slice_stride,
      output.preact ? static_cast<float*>(output.preact) + first : nullptr,
      output.bias ? static_cast<const float*>(output.bias) + n : nullptr, rows, cols};
  const auto store = [&](const Group& z, int group) {
    store_group(output, out, z, place.m + group / G::kShape.groups_n * G::kStepM,
                place.n + group % G::kShape.groups_n * G::kStepN);
  };
  if constexpr (G::kShape.slices > 1) {
    const Group z = add_slices<G>(shared_floats, place, sums);
    if (place.slice < G::kGroups) store(z, place.slice);
  } else {
    // NOTE: not unrolled, so that the activations are compiled once.
#pragma unroll 1
    for (int group = 0; group < G::kGroups; ++group) {
      Group z;
#pragma unroll
      for (int g = 0; g < G::kGroups; ++g) {
        if (g == group) z = group_of<G>(sums, g);
      }
      store(z, group);
    }
  }
}

// ---- host side ----

inline Operand make_operand(const GemmProblem& problem, const GemmOperand& operand,
                            int64_t extent) {
  const bool many = (operand.major == Major::kK ? extent : problem.k) > 1;
  const bool wide =
      reinterpret_cast<uintptr_t>(operand.data) % 16 == 0 && (!many || operand.ld % 4 == 0);
  return {static_cast<const float*>(operand.data), operand.ld, wide};
}

template <int kConfig, Major kA, Major kB>
const char* run(const GemmProblem& problem, const LaunchContext& context) {
  if (const char* reason = sm80_refusal(kConfig, problem)) return reason;
  using G = Gemm<kConfig, kA, kB>;
  const Params params = {.a = make_operand(problem, problem.a, problem.m),
                         .b = make_operand(problem, problem.b, problem.n),
                         .m = problem.m,
                         .n = problem.n,
                         .range = sm80::make_k_range(problem),
                         .order = sm80::make_tile_order(problem, G::kTile.tile_m, G::kTile.tile_n),
                         .output = sm80::make_output(problem, 4)};
  return sm80::launch_tiles<&gemm_kernel<G>>(problem, context, G::kThreads, G::kSharedBytes,
                                             params);
}

// Registers the kernels of one tile, all four layouts; each serves every epilogue.
template <int kConfig>
bool register_config() {
  static_assert(sm80_compiled(kConfig, DType::kFloat32, MathMode::kFp32));
  const auto layout = []<Major kA, Major kB>() {
    for (Epilogue epilogue : {Epilogue::kFused, Epilogue::kPreact, Epilogue::kAccumulator}) {
      register_kernel({Family::kSm80, kConfig, DType::kFloat32, MathMode::kFp32, kA, kB, epilogue},
                      &run<kConfig, kA, kB>);
    }
  };
  layout.template operator()<Major::kK, Major::kK>();
  layout.template operator()<Major::kK, Major::kMN>();
  layout.template operator()<Major::kMN, Major::kK>();
  layout.template operator()<Major::kMN, Major::kMN>();
  return true;
}

}  // namespace fusedops::simt
