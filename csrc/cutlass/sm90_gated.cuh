// The kernels of gated_kernels.h: sm90_kernel.cuh with two matrices where it has one.
#pragma once

#include "common/shared_memory.cuh"
#include "cutlass/gated_kernels.h"
#include "cutlass/sm90_gated_store.cuh"
#include "cutlass/sm90_kernel.cuh"

namespace fusedops::sm90 {

struct GatedParams : KernelParams {
  CUtensorMap a2, b2;
  int first_steps;  // kInput: of k_steps, those of the first product
};

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

  // kGradient: gate and up of tile after tile arrive, their gradients leave. Both warpgroups pass
  // half tiles through the same two slots; one half is on its way while the other is computed.
  __device__ static void exchange(const GatedParams& p, Shared& shared) {
    using Store = TileStore<T>;
    TileWalk walk(p.order, T::kClusterM, T::kClusterN);
    const auto more = [&] { return walk.valid() && walk.ends_tile(); };
    if (!more()) return;
    Tile tile = walk.work().tile;
    for (int half = 0; half < 2; ++half) Store::load(p.store, shared.store, half, 0, tile);
    for (int count = 1; more(); ++count) {
      walk.next();
      const Tile next = more() ? walk.work().tile : tile;
      for (int half = 0; half < 2; ++half) {
        Store::store(p.store, shared.store, half, (count - 1) % 2, tile);
        if (more()) Store::load(p.store, shared.store, half, count % 2, next);
      }
      tile = next;
    }
  }

  __device__ static void run(const GatedParams& p, uint8_t* raw) {
    Base::run_roles(p, raw, [&](Shared& shared, int rank) {
      if (threadIdx.x == 0) {
        Base::produce(p, shared, [&](int stage, const Tile& tile, int step) {
          load_stage(p, shared, stage, tile, step, rank);
        });
      }
      if constexpr (kProduct == GatedProduct::kGradient) {
        if (threadIdx.x == 32) exchange(p, shared);
      }
    });
  }
};

template <class Traits>
__global__ void __launch_bounds__(kKernelThreads, 1)
    gated_gemm_kernel(const __grid_constant__ GatedParams params) {
  extern __shared__ __align__(1024) uint8_t raw[];
  GatedKernel<Traits>::run(params, raw);
}

// ---- launching ----

template <DType kDType, GatedProduct kProduct, int kConfig = 0>
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
    return encode_tensor_map(t, Traits::kWarpgroupM, map);
  }

  static const char* encode(const GatedGemm& p, GatedParams& params) {
    const char* refusal = encode_a(p, p.a, &params.a);
    if (!refusal) refusal = encode_b(p, p.b, &params.b);
    if (!refusal && p.a2.data) refusal = encode_a(p, p.a2, &params.a2);
    if (!refusal && p.b2.data) refusal = encode_b(p, p.b2, &params.b2);
    if (!refusal) refusal = encode_output(p, p.d, p.ldd, &params.store.d);
    if (!refusal) refusal = encode_output(p, p.gate, p.gate_ld, &params.store.aux);
    if (!refusal) refusal = encode_output(p, p.up, p.gate_ld, &params.store.hidden);
    return refusal;
  }

  static const char* run(const GatedGemm& p, const LaunchContext& context) {
    GatedParams params{};
    if (const char* refusal = encode(p, params)) return refusal;
    constexpr int kColumns = kForward ? Traits::kTileN / 2 : Traits::kTileN;
    static_assert(kProduct == GatedProduct::kInput ||
                  (Traits::kTileM == 128 && kColumns == gated_tile_columns(kProduct) &&
                   Traits::kClusterM == gated_cluster_rows(kProduct)));
    const int64_t clusters_m = ceil_div(ceil_div(p.m, Traits::kTileM), Traits::kClusterM);
    const int64_t clusters_n = ceil_div(ceil_div(p.n, kColumns), Traits::kClusterN);
    if (clusters_m * clusters_n > INT32_MAX / 4) return "too many output tiles";
    params.first_steps = int(ceil_div(p.k, Traits::kTileK));
    params.order =
        make_tile_order(int(clusters_m), int(clusters_n), 1,
                        params.first_steps * (kProduct == GatedProduct::kInput ? 2 : 1), p.swizzle);
    params.exchange = p.exchange;
    params.store.activation = p.activation;
    params.store.load_aux = p.gate != nullptr;
    params.store.store_hidden = p.d != nullptr;
    constexpr int kBytes = GatedKernel<Traits>::kSharedBytes, kCtas = Traits::kCtas;
    static_assert(kBytes <= Traits::kSharedLimit);
    cudaError_t status = allow_shared_memory<&gated_gemm_kernel<Traits>>(context.device, kBytes);
    if (status != cudaSuccess) return cudaGetErrorString(status);
    const int grid = grid_of(params, context.sm_count / kCtas) * kCtas;
    status =
        launch_cluster_kernel(gated_gemm_kernel<Traits>, grid, kKernelThreads, kCtas, kBytes,
                              static_cast<cudaStream_t>(context.stream), context.overlap, params);
    return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
  }
};

template <DType kDType, int kConfig>
void register_gated_input() {
  if constexpr (gated_input_compiled(kConfig)) {
    register_gated(GatedProduct::kInput, kDType, kConfig,
                   &GatedLaunch<kDType, GatedProduct::kInput, kConfig>::run);
  }
  if constexpr (kConfig + 1 < kNumSm90Configs) register_gated_input<kDType, kConfig + 1>();
}

// Returns true so that a namespace-scope constant can hold the call.
template <DType kDType>
bool register_gated_products() {
  constexpr auto kForward = GatedProduct::kForward, kGradient = GatedProduct::kGradient;
  register_gated(kForward, kDType, 0, &GatedLaunch<kDType, kForward>::run);
  register_gated(kGradient, kDType, 0, &GatedLaunch<kDType, kGradient>::run);
  register_gated_input<kDType, 0>();
  return true;
}

}  // namespace fusedops::sm90
