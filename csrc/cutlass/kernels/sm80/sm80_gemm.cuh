// The mma.sync + cp.async GEMM: CUTLASS's multistage mainloop under a kernel of our own,
// instantiated by instances/sm80_*.cu. Serves sm_80 and, on every GPU, what TMA refuses; fp32
// products that may not use TF32 have kernels of their own (simt_gemm.cuh). NOTE: the kernel moves
// pointers to its tile in 64 bits, so that CUTLASS's 32-bit coordinates only span one tile (and K).
// Tiles are one grid dimension, so neither M nor N meets a grid limit.
#pragma once

#include <type_traits>

#include <cutlass/arch/mma.h>
#include <cutlass/gemm/threadblock/default_mma.h>

#include "csrc/cutlass/configs/registry.h"
#include "csrc/cutlass/configs/sm80_configs.h"
#include "csrc/cutlass/kernels/sm80/sm80_epilogue.cuh"

namespace fusedops::sm80 {

// ---- compile-time description ----

struct Pipeline {
  int warp_m, warp_n, stages;
};

// NOTE: at most 99 KB of shared memory per block, the limit of 8.6 and 8.9.
inline constexpr Pipeline kPipelines[] = {
    {64, 64, 4},  // kHalf128x256: 96 KB, 8 warps
    {64, 64, 4},  // kHalf256x128: 96 KB, 8 warps
    {64, 64, 4},  // kHalf128x128: 64 KB, 4 warps
    {64, 32, 4},  // kHalf128x64: 48 KB, 4 warps
    {32, 64, 4},  // kHalf64x128: 48 KB, 4 warps
    {32, 32, 4},  // kHalf64x64: 64 KB, 4 warps
    {64, 64, 4},  // kTf32_128x256: 96 KB, 8 warps
    {64, 32, 4},  // kTf32_128x128: 64 KB, 8 warps; 4 would spill
    {32, 32, 3},  // kFp64_128x64: 72 KB, 8 warps
    {32, 32, 4},  // kWord64x64: 32 KB (64 KB in fp64), 4 warps
};

template <DType kDType>
struct ElementOf;
template <>
struct ElementOf<DType::kFloat16> {
  using type = cutlass::half_t;
  using Instruction = cutlass::gemm::GemmShape<16, 8, 16>;
};
template <>
struct ElementOf<DType::kBFloat16> {
  using type = cutlass::bfloat16_t;
  using Instruction = cutlass::gemm::GemmShape<16, 8, 16>;
};
template <>
struct ElementOf<DType::kFloat32> {
  using type = float;  // rounded to TF32 between shared memory and the tensor cores
  using Instruction = cutlass::gemm::GemmShape<16, 8, 8>;
};
template <>
struct ElementOf<DType::kFloat64> {
  using type = double;
  using Instruction = cutlass::gemm::GemmShape<8, 8, 4>;
};

// kAlignment: elements per global access of A and B.
template <int kConfig, DType kDType, MathMode kMath, Major kA, Major kB, int kAlignment>
struct Gemm {
  static constexpr GemmConfig kTile = kSm80Configs[kConfig];
  static constexpr Pipeline kPipeline = kPipelines[kConfig];
  static constexpr Major kMajorA = kA, kMajorB = kB;

  using Element = typename ElementOf<kDType>::type;
  using Compute = std::conditional_t<kDType == DType::kFloat64, double, float>;
  using RowMajor = cutlass::layout::RowMajor;
  using ColumnMajor = cutlass::layout::ColumnMajor;
  using LayoutA = std::conditional_t<kA == Major::kK, RowMajor, ColumnMajor>;
  using LayoutB = std::conditional_t<kB == Major::kK, ColumnMajor, RowMajor>;
  using Mma = typename cutlass::gemm::threadblock::DefaultMma<
      Element, LayoutA, kAlignment, Element, LayoutB, kAlignment, Compute, RowMajor,
      cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80,
      cutlass::gemm::GemmShape<kTile.tile_m, kTile.tile_n, kTile.tile_k>,
      cutlass::gemm::GemmShape<kPipeline.warp_m, kPipeline.warp_n, kTile.tile_k>,
      typename ElementOf<kDType>::Instruction, kPipeline.stages,
      cutlass::arch::OpMultiplyAdd>::ThreadblockMma;
  using TileEpilogue = sm80::TileEpilogue<Mma, Element>;
  static constexpr int kThreads = Mma::WarpCount::kCount * 32;
  // NOTE: 8 warps per SM, so up to 255 registers: left alone, ptxas spills to reach 128.
  static constexpr int kMinBlocks = 256 / kThreads;

  union SharedStorage {
    typename Mma::SharedStorage mainloop;
    typename EpilogueBase<Mma>::SharedStorage epilogue;
  };
  static_assert(sizeof(SharedStorage) <= 99 * 1024);

  struct Params {
    typename Mma::IteratorA::Params layout_a;
    typename Mma::IteratorB::Params layout_b;
    const Element *a, *b;
    int64_t lda, ldb;
    int64_t m, n;
    KRange range;
    TileOrder order;
    Output output;
  };
};

// ---- kernel ----

template <class G>
__global__ void __launch_bounds__(G::kThreads, G::kMinBlocks)
    gemm_kernel(const __grid_constant__ typename G::Params params) {
  using Mma = typename G::Mma;
  using Element = typename G::Element;
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<typename G::SharedStorage*>(shared_bytes);
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;

  // Tile of this block
  const int2 tile = params.order(blockIdx.x);
  const int64_t m = int64_t{tile.x} * Mma::Shape::kM, n = int64_t{tile.y} * Mma::Shape::kN;
  const int slice = blockIdx.y;
  const int k = params.range.count(slice);
  const int rows = static_cast<int>(min(params.m - m, int64_t{Mma::Shape::kM}));
  const int cols = static_cast<int>(min(params.n - n, int64_t{Mma::Shape::kN}));
  wait_for_predecessor();

  // Mainloop
  // NOTE: CUTLASS reads out of bounds when there is no K tile at all.
  typename Mma::FragmentC accumulators;
  accumulators.clear();
  if (k > 0) {
    const int64_t begin = params.range.begin(slice);
    const int64_t offset_a =
        G::kMajorA == Major::kK ? m * params.lda + begin : m + begin * params.lda;
    const int64_t offset_b =
        G::kMajorB == Major::kK ? n * params.ldb + begin : n + begin * params.ldb;
    Element* a = const_cast<Element*>(params.a) + offset_a;
    Element* b = const_cast<Element*>(params.b) + offset_b;
    typename Mma::IteratorA iterator_a(params.layout_a, a, {rows, k}, threadIdx.x, {0, 0});
    typename Mma::IteratorB iterator_b(params.layout_b, b, {k, cols}, threadIdx.x, {0, 0});
    Mma mma(shared.mainloop, threadIdx.x, warp, lane);
    const int k_tiles = (k - 1) / Mma::Shape::kK + 1;
    mma(k_tiles, accumulators, iterator_a, iterator_b, accumulators);
  }

  // Epilogue
  const Output& output = params.output;
  const int64_t first = m * output.ldd + n;
  const int64_t first_d = first + slice * output.slice_stride;
  const OutputTile out = {
      output.as_float ? static_cast<void*>(static_cast<float*>(output.d) + first_d)
                      : static_cast<void*>(static_cast<Element*>(output.d) + first_d),
      output.preact ? static_cast<Element*>(output.preact) + first : nullptr,
      output.bias ? static_cast<const Element*>(output.bias) + n : nullptr, rows, cols};
  typename G::TileEpilogue epilogue(shared.epilogue, output, out, warp, lane);
  epilogue(accumulators);
}

// ---- host side ----

template <class G>
typename G::Params make_params(const GemmProblem& problem) {
  typename G::Params params{};
  params.layout_a = {typename G::LayoutA(problem.a.ld)};
  params.layout_b = {typename G::LayoutB(problem.b.ld)};
  params.a = static_cast<const typename G::Element*>(problem.a.data);
  params.b = static_cast<const typename G::Element*>(problem.b.data);
  params.lda = problem.a.ld;
  params.ldb = problem.b.ld;
  params.m = problem.m;
  params.n = problem.n;
  params.range = make_k_range(problem);
  params.order = make_tile_order(problem, G::kTile.tile_m, G::kTile.tile_n);
  // Vectors are 16 bytes of accumulator: 4 elements, 2 in fp64.
  params.output = make_output(problem, 16 / int64_t{sizeof(typename G::Compute)});
  return params;
}

template <class G>
const char* launch(const GemmProblem& problem, const LaunchContext& context) {
  return launch_tiles<&gemm_kernel<G>>(problem, context, G::kThreads,
                                       int(sizeof(typename G::SharedStorage)),
                                       make_params<G>(problem));
}

template <int kConfig, DType kDType, MathMode kMath, Major kA, Major kB>
const char* run(const GemmProblem& problem, const LaunchContext& context) {
  if (const char* reason = sm80_refusal(kConfig, problem)) return reason;
  constexpr int kBytes = int(dtype_bytes(kDType));
  constexpr int kNarrow = int(sm80_access_bytes(kConfig, kDType)) / kBytes;
  // NOTE: CUTLASS's fp64 tiles are read element by element whatever the alignment.
  constexpr int kWide = kDType == DType::kFloat64 ? 1 : 16 / kBytes;
  if constexpr (kNarrow != kWide) {
    if (!sm80_readable(problem, 16)) {
      return launch<Gemm<kConfig, kDType, kMath, kA, kB, kNarrow>>(problem, context);
    }
  }
  return launch<Gemm<kConfig, kDType, kMath, kA, kB, kWide>>(problem, context);
}

// Registers the kernels of one config, dtype and layout; each serves every epilogue.
template <int kConfig, DType kDType, MathMode kMath, Major kA, Major kB>
void register_layout() {
  static_assert(sm80_compiled(kConfig, kDType, kMath));
  for (Epilogue epilogue : {Epilogue::kFused, Epilogue::kPreact, Epilogue::kAccumulator}) {
    register_kernel({Family::kSm80, kConfig, kDType, kMath, kA, kB, epilogue},
                    &run<kConfig, kDType, kMath, kA, kB>);
  }
}

// Registers a config's kernels of all four layouts.
template <int kConfig, DType kDType, MathMode kMath>
bool register_config() {
  register_layout<kConfig, kDType, kMath, Major::kK, Major::kK>();
  register_layout<kConfig, kDType, kMath, Major::kK, Major::kMN>();
  register_layout<kConfig, kDType, kMath, Major::kMN, Major::kK>();
  register_layout<kConfig, kDType, kMath, Major::kMN, Major::kMN>();
  return true;
}

}  // namespace fusedops::sm80
