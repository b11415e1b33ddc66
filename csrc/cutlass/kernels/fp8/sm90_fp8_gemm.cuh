// Launching the FP8 kernels (sm90_fp8_kernel.cuh).
#pragma once

#include <algorithm>

#include "csrc/common/device/shared_memory.cuh"
#include "csrc/cutlass/kernels/fp8/sm90_fp8_kernel.cuh"

namespace fusedops::fp8 {

// d (m, n), leading dimension ldd, = act((a scale_a) @ (b scale_b)^T + bias); a (m, k), b (n, k).
struct Problem {
  int64_t m = 0, n = 0, k = 0;
  const void *a = nullptr, *b = nullptr;
  int64_t lda = 0, ldb = 0;
  Scales scale_a, scale_b;
  bool a_by_tile = false;
  void* d = nullptr;
  int64_t ldd = 0;
  const void* bias = nullptr;  // of d's type, or null
  Activation activation = Activation::kNone;
  bool accumulate = false;  // of fp32 d: add to what it holds
  int raster_width = 8;     // in tiles
};

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

  static const char* run(const Problem& p, const LaunchContext& context) {
    Params params;
    if (const char* refusal = encode_operand(p.a, p.lda, p.m, p.k, T::kTileM, &params.a)) {
      return refusal;
    }
    if (const char* refusal =
            encode_operand(p.b, p.ldb, p.n, p.k, T::kTileN / T::kCtas, &params.b)) {
      return refusal;
    }
    if (const char* refusal = encode_output(p, &params.epilogue.d)) return refusal;
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

}  // namespace fusedops::fp8
