// The kernels of gated_configs.h: sm90_kernel.cuh with two matrices where it has one.
#pragma once

#include "csrc/common/device/shared_memory.cuh"
#include "csrc/cutlass/kernels/gated/sm90_gated_forward.cuh"
#include "csrc/cutlass/kernels/gated/sm90_gated_gradient.cuh"

namespace fusedops::sm90 {

template <class T>
struct GatedKernel : Kernel<T> {
  using Base = Kernel<T>;
  using Shared = typename Base::Shared;
  static constexpr GatedProduct kProduct = T::kProduct;

  // A tile of kForward has as many columns of gate as of up.
  __device__ static void load_stage(const GatedParams& p, Shared& shared, int stage,
                                    const Tile& tile, int step, int rank) {
    constexpr bool kPairA = T::kClusterN == 2, kPairB = T::kClusterM == 2;
    uint64_t* full = &shared.full[stage];
    uint8_t *to_a = shared.a[stage], *to_b = shared.b[stage];
    const bool second = kProduct == GatedProduct::kInput && step >= p.first_steps;
    const int k = (second ? step - p.first_steps : step) * T::kTileK;
    Base::template load_operand<T::kA, T::kTileM, kPairA>(second ? p.a2 : p.a, full, to_a,
                                                          tile.m * T::kTileM, k, rank);
    if constexpr (kProduct == GatedProduct::kForward) {
      constexpr int kHalf = T::kTileN / 2;
      Base::template load_operand<T::kB, kHalf, kPairB>(p.b, full, to_b, tile.n * kHalf, k, rank);
      Base::template load_operand<T::kB, kHalf, kPairB>(p.b2, full, to_b + kHalf * kBoxRowBytes,
                                                        tile.n * kHalf, k, rank);
    } else {
      Base::template load_operand<T::kB, T::kTileN, kPairB>(second ? p.b2 : p.b, full, to_b,
                                                            tile.n * T::kTileN, k, rank);
    }
  }

  __device__ static void run(const GatedParams& p, uint8_t* raw) {
    const auto load = [&](Shared& shared, int rank) {
      if (threadIdx.x != 0) return;
      Base::produce(p, shared, [&](int stage, const Tile& tile, int step) {
        load_stage(p, shared, stage, tile, step, rank);
      });
    };
    Base::run_roles(p, raw, load, [&](Shared& shared) {
      if constexpr (T::kEpilogueWarpgroup) GatedEpilogueWarpgroup<T>(p, shared.epilogue).run();
    });
  }
};

template <class Traits>
__global__ void __launch_bounds__(kThreads<Traits>, 1)
    gated_gemm_kernel(const __grid_constant__ GatedParams params) {
  extern __shared__ __align__(1024) uint8_t raw[];
  GatedKernel<Traits>::run(params, raw);
}

// ---- launching ----

template <DType kDType, GatedProduct kProduct, int kConfig>
struct GatedLaunch {
  using Element =
      cute::conditional_t<kDType == DType::kFloat16, cutlass::half_t, cutlass::bfloat16_t>;
  using Traits = GatedTraits<Element, kProduct, kConfig>;
  static constexpr bool kForward = kProduct == GatedProduct::kForward;

  static TmaTensor tensor(const void* data, int64_t rows, int64_t columns, int64_t row_stride) {
    TmaTensor t;
    t.data = data;
    t.type = kDType == DType::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                       : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    t.columns = columns;
    t.rows = rows;
    t.row_stride = row_stride;
    return t;
  }

  // The CTAs of a pair load halves of a box.
  static const char* encode_a(const GatedGemm& p, const GemmOperand& a, CUtensorMap* map) {
    return encode_tensor_map(tensor(a.data, p.m, p.k, a.ld), Traits::kTileM / Traits::kClusterN,
                             map);
  }

  static const char* encode_b(const GatedGemm& p, const GemmOperand& b, CUtensorMap* map) {
    if constexpr (kForward) {
      return encode_tensor_map(tensor(b.data, p.n, p.k, b.ld),
                               Traits::kTileN / 2 / Traits::kClusterM, map);
    } else {
      return encode_tensor_map(tensor(b.data, p.k, p.n, b.ld), Traits::kTileK / Traits::kClusterM,
                               map);
    }
  }

  static const char* encode_output(const GatedGemm& p, const void* data, int64_t ld,
                                   CUtensorMap* map) {
    if (data == nullptr) return nullptr;
    TmaTensor t = tensor(data, p.m, p.n, ld);
    t.outer = 1;
    t.outer_stride = p.m * ld;
    return encode_panel_map<typename Traits::Staging>(t, map);
  }

  static const char* encode(const GatedGemm& p, GatedParams& params) {
    const char* refusal = encode_a(p, p.a, &params.a);
    if (!refusal) refusal = encode_b(p, p.b, &params.b);
    if (!refusal && p.a2.data) refusal = encode_a(p, p.a2, &params.a2);
    if (!refusal && p.b2.data) refusal = encode_b(p, p.b2, &params.b2);
    if constexpr (!Traits::kEpilogueWarpgroup) {
      if (!refusal) refusal = encode_output(p, p.d, p.ldd, &params.epilogue.d);
      if (!refusal) refusal = encode_output(p, p.gate, p.gate_ld, &params.epilogue.aux);
      if (!refusal) refusal = encode_output(p, p.up, p.gate_ld, &params.epilogue.hidden);
    }
    return refusal;
  }

  static const char* run(const GatedGemm& p, const LaunchContext& context) {
    GatedParams params{};
    if (const char* refusal = encode(p, params)) return refusal;
    constexpr int kColumns = kForward ? Traits::kTileN / 2 : Traits::kTileN;
    const int64_t clusters_m = ceil_div(ceil_div(p.m, Traits::kTileM), Traits::kClusterM);
    const int64_t clusters_n = ceil_div(ceil_div(p.n, kColumns), Traits::kClusterN);
    if (clusters_m * clusters_n > INT32_MAX / 4) return "too many output tiles";
    params.first_steps = int(ceil_div(p.k, Traits::kTileK));
    params.schedule = make_tile_schedule(
        int(clusters_m), int(clusters_n), 1,
        params.first_steps * (kProduct == GatedProduct::kInput ? 2 : 1), p.raster_width);
    params.exchange = p.exchange;
    params.epilogue.activation = p.activation;
    params.epilogue.load_aux = p.gate != nullptr;
    params.gate = p.gate;
    params.up = p.up;
    params.hidden = p.d;
    params.gate_ld = uint32_t(p.gate_ld);
    params.hidden_ld = uint32_t(p.ldd);
    params.rows = uint32_t(p.m);
    params.columns = uint32_t(p.n);
    constexpr int kBytes = GatedKernel<Traits>::kSharedBytes, kCtas = Traits::kCtas;
    static_assert(kBytes <= Traits::kSharedLimit);
    cudaError_t status = allow_shared_memory<&gated_gemm_kernel<Traits>>(context.device, kBytes);
    if (status != cudaSuccess) return cudaGetErrorString(status);
    const int grid = grid_of(params, context.sm_count / kCtas) * kCtas;
    status =
        launch_cluster_kernel(gated_gemm_kernel<Traits>, grid, kThreads<Traits>, kCtas, kBytes,
                              static_cast<cudaStream_t>(context.stream), context.overlap, params);
    return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
  }
};

template <DType kDType, GatedProduct kProduct, int kConfig = 0>
void register_gated_product() {
  if constexpr (gated_compiled(kProduct, kConfig)) {
    register_gated(kProduct, kDType, kConfig, &GatedLaunch<kDType, kProduct, kConfig>::run);
  }
  if constexpr (kConfig + 1 < kNumSm90Configs) {
    register_gated_product<kDType, kProduct, kConfig + 1>();
  }
}

// Returns true so that a namespace-scope constant can hold the call.
template <DType kDType>
bool register_gated_products() {
  register_gated_product<kDType, GatedProduct::kForward>();
  register_gated_product<kDType, GatedProduct::kGradient>();
  register_gated_product<kDType, GatedProduct::kInput>();
  return true;
}

}  // namespace fusedops::sm90
