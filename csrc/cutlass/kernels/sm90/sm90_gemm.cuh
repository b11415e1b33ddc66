// Launching the sm_90a kernels of 16-bit matrices (sm90_kernel.cuh): one template, instantiated by
// instances/sm90_*.cu.
#pragma once

#include <algorithm>

#include "csrc/common/device/shared_memory.cuh"
#include "csrc/cutlass/configs/registry.h"
#include "csrc/cutlass/configs/sm90_configs.h"
#include "csrc/cutlass/kernels/sm90/sm90_kernel.cuh"

namespace fusedops::sm90 {

template <DType kDType, MathMode kMath, Major kA, Major kB, Epilogue kEpilogue, int kConfig>
struct Gemm {
  static constexpr GemmConfig kTile = kSm90Configs[kConfig];
  using Element =
      cute::conditional_t<kDType == DType::kFloat16, cutlass::half_t, cutlass::bfloat16_t>;
  using Traits = KernelTraits<Element, kTile.tile_m, kTile.tile_n, kTile.cluster_m, kTile.cluster_n,
                              kTile.schedule, kA, kB, kEpilogue>;
  using Out = typename Traits::Staging::Out;

  template <class T>
  static constexpr CUtensorMapDataType kTmaType =
      cute::is_same_v<T, cutlass::half_t>       ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
      : cute::is_same_v<T, cutlass::bfloat16_t> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;

  // rows: of output. A pair of CTAs that shares the tile loads halves (Kernel::load_operand).
  template <Major kMajor, int kTileRows, bool kPair>
  static const char* encode_operand(const GemmOperand& operand, int64_t rows, int64_t k,
                                    CUtensorMap* map) {
    constexpr bool kContiguousK = kMajor == Major::kK;
    TmaTensor t;
    t.data = operand.data;
    t.type = kTmaType<Element>;
    t.element_bytes = sizeof(Element);
    t.columns = kContiguousK ? k : rows;
    t.rows = kContiguousK ? rows : k;
    t.row_stride = operand.ld;
    return encode_tensor_map(t, (kContiguousK ? kTileRows : Traits::kTileK) / (kPair ? 2 : 1), map);
  }

  static const char* encode_output(const GemmProblem& p, const void* data, bool element,
                                   CUtensorMap* map) {
    TmaTensor t;
    t.data = data;
    t.type = element ? kTmaType<Element> : kTmaType<Out>;
    t.element_bytes = element ? sizeof(Element) : sizeof(Out);
    t.columns = p.n;
    t.rows = p.m;
    t.outer = p.slices;
    t.row_stride = p.ldd;
    t.outer_stride = p.slices > 1 ? p.slice_stride : p.m * p.ldd;
    return encode_panel_map<typename Traits::Staging>(t, map);
  }

  static const char* encode(const GemmProblem& p, KernelParams& params) {
    constexpr bool kPairA = Traits::kClusterN == 2, kPairB = Traits::kClusterM == 2;
    if (const char* refusal =
            encode_operand<kA, Traits::kTileM, kPairA>(p.a, p.m, p.k, &params.a)) {
      return refusal;
    }
    if (const char* refusal =
            encode_operand<kB, Traits::kTileN, kPairB>(p.b, p.n, p.k, &params.b)) {
      return refusal;
    }
    if (const char* refusal = encode_output(p, p.d, false, &params.epilogue.d)) return refusal;
    const void* aux = kEpilogue == Epilogue::kPreact ? p.preact : p.aux;
    if (aux != nullptr) {
      if (const char* refusal = encode_output(p, aux, true, &params.epilogue.aux)) return refusal;
    }
    return p.hidden ? encode_output(p, p.hidden, true, &params.epilogue.hidden) : nullptr;
  }

  static const char* run(const GemmProblem& p, const LaunchContext& context) {
    KernelParams params;
    if (const char* refusal = encode(p, params)) return refusal;
    const int64_t clusters_m = ceil_div(ceil_div(p.m, Traits::kTileM), Traits::kClusterM);
    const int64_t clusters_n = ceil_div(ceil_div(p.n, Traits::kTileN), Traits::kClusterN);
    const int64_t clusters = clusters_m * clusters_n * p.slices;
    if (clusters > INT32_MAX / 4) return "too many output tiles";
    const int64_t k_steps = ceil_div(p.slices > 1 ? p.slice_k : p.k, Traits::kTileK);
    params.schedule = make_tile_schedule(int(clusters_m), int(clusters_n), int(p.slices),
                                         int(k_steps), p.raster_width);
    params.exchange = p.exchange;
    params.epilogue.bias = p.bias;
    params.epilogue.column_sums = p.column_sums;
    params.epilogue.columns = int(p.n);
    params.epilogue.rows = int(p.m);
    params.epilogue.norm = p.norm;
    params.epilogue.activation = p.activation;
    params.epilogue.load_aux = p.aux != nullptr;
    params.epilogue.store_hidden = p.hidden != nullptr;
    params.epilogue.accumulate = p.accumulate;
    const int grid = grid_of(params, context.sm_count / Traits::kCtas) * Traits::kCtas;
    if constexpr (has_dynamic_schedule(kTile.tile_m, kEpilogue, kA, kB)) {
      if (params.schedule.dynamic) return launch<DynamicTraits<Traits>>(params, grid, context);
    }
    return launch<Traits>(params, grid, context);
  }

  template <class T>
  static const char* launch(const KernelParams& params, int grid, const LaunchContext& context) {
    constexpr int kSharedBytes = Kernel<T>::kSharedBytes;
    static_assert(kSharedBytes <= T::kSharedLimit);
    cudaError_t status = allow_shared_memory<&gemm_kernel<T>>(context.device, kSharedBytes);
    if (status == cudaSuccess) {
      status =
          launch_cluster_kernel(gemm_kernel<T>, grid, kThreads<T>, T::kCtas, kSharedBytes,
                                static_cast<cudaStream_t>(context.stream), context.overlap, params);
    }
    return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
  }
};

// Registers configs [kBegin, kEnd) of one dtype, layout and epilogue, as far as they are to be
// compiled.
template <DType kDType, MathMode kMath, Major kA, Major kB, Epilogue kEpilogue, int kBegin,
          int kEnd>
bool register_range() {
  if constexpr (kBegin < kEnd) {
    if constexpr (sm90_compiled(kBegin, kDType, kMath, kEpilogue, kA, kB)) {
      register_kernel({Family::kSm90, kBegin, kDType, kMath, kA, kB, kEpilogue},
                      &Gemm<kDType, kMath, kA, kB, kEpilogue, kBegin>::run);
    }
    register_range<kDType, kMath, kA, kB, kEpilogue, kBegin + 1, kEnd>();
  }
  return true;
}

}  // namespace fusedops::sm90
