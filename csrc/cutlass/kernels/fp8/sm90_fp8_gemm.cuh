// Launching the FP8 kernels (sm90_fp8_kernel.cuh).
#pragma once

#include <algorithm>

#include "csrc/common/device/shared_memory.cuh"
#include "csrc/cutlass/kernels/fp8/sm90_fp8_kernel.cuh"

namespace fusedops::fp8 {

template <class T>
struct Gemm {
  static const char* encode_operand(const void* data, int64_t ld, int64_t rows, int64_t k,
                                    int box_rows, CUtensorMap* map) {
    sm90::TmaTensor t;
    t.data = data;
    t.type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
    t.element_bytes = 1;
    t.columns = k;
    t.rows = rows;
    t.row_stride = rows > 1 ? ld : round_up(k, 16);
    return sm90::encode_tensor_map(t, box_rows, map);
  }

  static const char* encode_output(const Problem& p, CUtensorMap* map) {
    sm90::TmaTensor t;
    t.data = p.d;
    t.type = T::kFp32                                            ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
             : cute::is_same_v<typename T::Out, cutlass::half_t> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                                 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    t.element_bytes = sizeof(typename T::Out);
    t.columns = p.n;
    t.rows = p.m;
    t.outer = 1;
    t.row_stride = p.ldd;
    t.outer_stride = p.m * p.ldd;
    return sm90::encode_panel_map<typename T::Staging>(t, map);
  }

  // All but the way out.
  static const char* fill(const Problem& p, Params& params) {
    if (const char* refusal = encode_operand(p.a, p.lda, p.m, p.k, T::kTileM, &params.a)) {
      return refusal;
    }
    if (const char* refusal =
            encode_operand(p.b, p.ldb, p.n, p.k, T::kTileN / T::kCtas, &params.b)) {
      return refusal;
    }
    const int64_t clusters_m = ceil_div(ceil_div(p.m, T::kTileM), T::kCtas);
    const int64_t tiles_n = ceil_div(p.n, T::kTileN);
    if (clusters_m * tiles_n > INT32_MAX / 4) return "too many output tiles";
    params.schedule = sm90::make_tile_schedule(int(clusters_m), int(tiles_n), 1,
                                               int(ceil_div(p.k, kBlock)), p.raster_width);
    params.scale_a = p.scale_a;
    params.scale_b = p.scale_b;
    params.a_by_tile = p.a_by_tile;
    params.epilogue.bias = p.bias;
    params.epilogue.column_sums = nullptr;
    params.epilogue.columns = int(p.n);
    params.epilogue.rows = int(p.m);
    params.epilogue.activation = p.activation;
    params.epilogue.load_aux = params.epilogue.store_hidden = false;
    params.epilogue.accumulate = p.accumulate;
    return nullptr;
  }

  static const char* run(const Problem& p, const LaunchContext& context) {
    Params params;
    if (const char* refusal = fill(p, params)) return refusal;
    if (const char* refusal = encode_output(p, &params.epilogue.d)) return refusal;
    return launch(params, context);
  }

  static const char* launch(const typename T::Params& params, const LaunchContext& context) {
    const int slots = context.sm_count / T::kCtas;
    const int grid = std::min(params.schedule.count, slots) * T::kCtas;
    constexpr int kSharedBytes = Kernel<T>::kSharedBytes;
    static_assert(kSharedBytes <= T::kSharedLimit);
    cudaError_t status = allow_shared_memory<&fp8_kernel<T>>(context.device, kSharedBytes);
    if (status == cudaSuccess) {
      status =
          launch_cluster_kernel(fp8_kernel<T>, grid, T::kThreads, T::kCtas, kSharedBytes,
                                static_cast<cudaStream_t>(context.stream), context.overlap, params);
    }
    return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
  }
};

// The kernels of one pair of operand types and one output type.
template <class A, class B, class Out>
struct Family {
  // 256 or 128 rows by 128 columns, of two warpgroups.
  template <Scaling kScaling, int kRows>
  using Tile = Traits<A, B, Out, kScaling, kRows / 2, 2, 1, 1>;

  template <Scaling kScaling>
  static const char* run_scaling(const Problem& p, const LaunchContext& context) {
    if (takes_large_tile(p.m, p.n, context.sm_count)) {
      return Gemm<Tile<kScaling, 256>>::run(p, context);
    }
    return Gemm<Tile<kScaling, 128>>::run(p, context);
  }

  static const char* run(const Problem& p, const LaunchContext& context) {
    switch (p.scaling) {
      case Scaling::kResult: return run_scaling<Scaling::kResult>(p, context);
      case Scaling::kRowTile: return run_scaling<Scaling::kRowTile>(p, context);
      default: return run_scaling<Scaling::kRowRow>(p, context);
    }
  }
};

}  // namespace fusedops::fp8
