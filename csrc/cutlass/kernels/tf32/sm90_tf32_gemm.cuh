// TMA + WGMMA GEMM of fp32 matrices as TF32 by CUTLASS's collectives; 16-bit matrices have a kernel
// of their own (sm90_gemm.cuh), and so has fp32 at full precision (kernels/parts).
#pragma once

#include <algorithm>

#include <cutlass/cutlass.h>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "csrc/common/device/shared_memory.cuh"
#include "csrc/common/int_math.h"
#include "csrc/cutlass/configs/registry.h"
#include "csrc/cutlass/configs/sm90_configs.h"
#include "csrc/cutlass/kernels/tf32/sm90_tf32_epilogue.cuh"

namespace fusedops::sm90 {

template <Epilogue kEpilogue, int kConfig>
struct Tf32Gemm {
  static constexpr GemmConfig kTile = kSm90Configs[kConfig];
  static constexpr bool kPingpong = kTile.schedule == Schedule::kPingpong;

  using Element = float;  // of bias, D and the stored pre-activation
  // NOTE: of float operands the collective rounds to TF32 in the TMA load.
  using Operand = float;
  using LayoutA = cutlass::layout::RowMajor;
  using LayoutB = cutlass::layout::ColumnMajor;
  using LayoutD = cutlass::layout::RowMajor;
  static constexpr int kAlignment = 16 / sizeof(Operand);
  static constexpr int kAlignmentD = 16 / sizeof(Element);

  using TileShape = cute::Shape<cute::Int<kTile.tile_m>, cute::Int<kTile.tile_n>,
                                cute::Int<kTile.tile_k * 2 / int(sizeof(Operand))>>;
  using ClusterShape =
      cute::Shape<cute::Int<kTile.cluster_m>, cute::Int<kTile.cluster_n>, cute::_1>;
  using MainloopSchedule =
      cute::conditional_t<kPingpong, cutlass::gemm::KernelTmaWarpSpecializedPingpong,
                          cutlass::gemm::KernelTmaWarpSpecializedCooperative>;
  using EpilogueSchedule = cute::conditional_t<kPingpong, cutlass::epilogue::TmaWarpSpecialized,
                                               cutlass::epilogue::TmaWarpSpecializedCooperative>;

  // Rows of 128 bytes are stored at a time.
  using EpilogueTile = cute::Shape<cute::Int<kPingpong ? 64 : 128>, cute::_32>;
  using Tree = FusionTree<kEpilogue, TileShape, EpilogueTile, EpilogueSchedule, Element>;
  using CollectiveEpilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, TileShape, ClusterShape, EpilogueTile,
      float, float, void, LayoutD, kAlignmentD, Element, LayoutD, kAlignmentD, EpilogueSchedule,
      typename Tree::type>::CollectiveOp;
  using CollectiveMainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Operand, LayoutA, kAlignment, Operand,
      LayoutB, kAlignment, float, TileShape, ClusterShape,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename CollectiveEpilogue::SharedStorage))>,
      MainloopSchedule>::CollectiveOp;
  using Kernel =
      cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, CollectiveMainloop,
                                           CollectiveEpilogue, cutlass::gemm::PersistentScheduler>;
  using Adapter = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

  static typename Kernel::Arguments arguments(const GemmProblem& problem,
                                              const LaunchContext& context) {
    using cute::_1;
    const auto stride_of = [](const GemmOperand& operand, auto stride) {
      if constexpr (cute::is_static<cute::remove_cvref_t<decltype(cute::get<0>(stride))>>::value) {
        cute::get<1>(stride) = operand.ld;
      } else {
        cute::get<0>(stride) = operand.ld;
      }
      return stride;
    };
    typename Kernel::Arguments arguments{cutlass::gemm::GemmUniversalMode::kGemm,
                                         {int(problem.m), int(problem.n), int(problem.k), 1},
                                         {static_cast<const Operand*>(problem.a.data),
                                          stride_of(problem.a, typename Kernel::StrideA{}),
                                          static_cast<const Operand*>(problem.b.data),
                                          stride_of(problem.b, typename Kernel::StrideB{})},
                                         {Tree::arguments(problem),
                                          nullptr,
                                          {},
                                          static_cast<Element*>(problem.d),
                                          {problem.ldd, _1{}, 0}}};
    arguments.hw_info.device_id = context.device;
    arguments.hw_info.sm_count = context.sm_count;
    // NOTE: CUTLASS pads the grid to whole bands, which only many tiles are worth.
    const int64_t tiles =
        std::min(ceil_div(problem.m, kTile.tile_m), ceil_div(problem.n, kTile.tile_n));
    arguments.scheduler.max_swizzle_size = tiles >= 16 ? 4 : 1;
    return arguments;
  }

  static const char* run(const GemmProblem& problem, const LaunchContext& context) {
    const auto args = arguments(problem, context);
    if (Adapter::can_implement(args) != cutlass::Status::kSuccess) {
      return "CUTLASS refuses the shape or alignment";
    }
    auto params = Kernel::to_underlying_arguments(args, nullptr);
    const cudaError_t limit = allow_shared_memory<&cutlass::device_kernel<Kernel>>(
        context.device, Kernel::SharedStorageSize);
    if (limit != cudaSuccess) return cudaGetErrorString(limit);
    // NOTE: programmatic dependent launch; the kernel waits for its predecessor before its first
    // load.
    const auto status =
        Adapter::run(params, static_cast<cudaStream_t>(context.stream), nullptr, context.overlap);
    if (status == cutlass::Status::kSuccess) return nullptr;
    return cutlass::cutlassGetStatusString(status);
  }
};

// Registers the configs from kBegin on that are to be compiled.
template <Epilogue kEpilogue, int kBegin = 0>
bool register_tf32() {
  if constexpr (kBegin < kNumSm90Configs) {
    constexpr auto kMath = MathMode::kTf32;
    if constexpr (sm90_compiled(kBegin, DType::kFloat32, kMath, kEpilogue, Major::kK, Major::kK)) {
      register_kernel(
          {Family::kSm90, kBegin, DType::kFloat32, kMath, Major::kK, Major::kK, kEpilogue},
          &Tf32Gemm<kEpilogue, kBegin>::run);
    }
    register_tf32<kEpilogue, kBegin + 1>();
  }
  return true;
}

}  // namespace fusedops::sm90
