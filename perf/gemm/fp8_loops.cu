// Main loops of FP8 products beside each other: a shared library that fp8_loops.py calls.
//   nvcc -std=c++20 -O3 --expt-relaxed-constexpr -gencode=arch=compute_90a,code=sm_90a -shared
//     -Xcompiler -fPIC -I. -I$CUTLASS/include perf/gemm/fp8_loops.cu -o fp8_loops.so
#include <cuda_runtime.h>

#include "perf/gemm/fp8_quantizing.cuh"

namespace fusedops::fp8 {
namespace {

using E4M3 = cutlass::float_e4m3_t;
using BF16 = cutlass::bfloat16_t;

struct Variant {
  const char* name;
  const char* (*run)(const Problem&, const QuantizedOutput&, const LaunchContext&);
  int stages;
};

// Rows of a warpgroup, warpgroups of a ring, rings, blocks of a cluster, panels of staging memory.
template <Scaling kScaling, int kRows, int kSharers, int kRings, int kCtas, int kStoreRing,
          bool kTurns = false>
constexpr Variant variant(const char* name) {
  using T = Traits<E4M3, E4M3, BF16, kScaling, kRows, kSharers, kRings, kCtas, kStoreRing, kTurns>;
  return {name,
          [](const Problem& p, const QuantizedOutput&, const LaunchContext& context) {
            return Gemm<T>::run(p, context);
          },
          T::kStages};
}

// The last number is of half tiles on their way out.
template <int kSharers, int kRings, int kCtas, int kBuffers>
constexpr Variant quantizing(const char* name) {
  using Base = Traits<E4M3, E4M3, BF16, Scaling::kRowTile, 128, kSharers, kRings, kCtas, 1>;
  using T = QuantizingTraits<Base, kBuffers>;
  return {name, &run_quantizing<T>, T::kStages};
}

constexpr Variant kVariants[] = {
    variant<Scaling::kRowTile, 128, 2, 1, 1, 2>("cooperative 256x128"),
    variant<Scaling::kRowTile, 128, 2, 1, 1, 1>("cooperative 256x128, one panel"),
    variant<Scaling::kRowTile, 128, 2, 1, 2, 2>("cooperative 256x128, cluster"),
    variant<Scaling::kRowTile, 128, 2, 1, 1, 2, true>("cooperative 256x128, turns"),
    variant<Scaling::kRowTile, 128, 1, 2, 1, 1>("owned 128x128"),
    variant<Scaling::kRowTile, 128, 1, 2, 2, 1>("owned 128x128, cluster"),
    variant<Scaling::kRowTile, 64, 3, 1, 1, 2>("three 192x128"),
    variant<Scaling::kRowTile, 64, 3, 1, 2, 2>("three 192x128, cluster"),
    variant<Scaling::kRowTile, 64, 2, 1, 1, 2>("cooperative 128x128"),
    variant<Scaling::kRowRow, 128, 2, 1, 1, 2>("1x128 both, cooperative 256x128"),
    variant<Scaling::kResult, 128, 2, 1, 1, 2>("rowwise, cooperative 256x128"),
    quantizing<2, 1, 1, 4>("quantising, cooperative 256x128"),
    quantizing<1, 2, 1, 1>("quantising, owned 128x128"),
    quantizing<1, 2, 2, 1>("quantising, owned 128x128, cluster"),
};

}  // namespace
}  // namespace fusedops::fp8

extern "C" {

int fp8_variants() { return sizeof(fusedops::fp8::kVariants) / sizeof(fusedops::fp8::Variant); }
const char* fp8_name(int variant) { return fusedops::fp8::kVariants[variant].name; }
int fp8_stages(int variant) { return fusedops::fp8::kVariants[variant].stages; }

// scale_a: strides of a row and of a block of K; scale_b: of a row (or 128 rows) and of a block.
// d (m, n) bf16, or e4m3 rows (m, n), columns (n, m) and their scales. Null, or why not.
const char* fp8_run(int variant, const void* a, const void* b, const float* scale_a,
                    int64_t a_row_stride, int64_t a_block_stride, const float* scale_b,
                    int64_t b_row_stride, int64_t b_block_stride, void* d, void* rows,
                    void* columns, float* row_scales, float* tile_scales, int64_t m, int64_t n,
                    int64_t k, int raster_width, void* stream) {
  fusedops::fp8::Problem p;
  p.m = m, p.n = n, p.k = k;
  p.a = a, p.b = b;
  p.lda = p.ldb = k;
  p.scale_a = {scale_a, a_row_stride, a_block_stride};
  p.scale_b = {scale_b, b_row_stride, b_block_stride};
  p.d = d;
  p.ldd = n;
  p.raster_width = raster_width;
  fusedops::LaunchContext context;
  cudaGetDevice(&context.device);
  cudaDeviceGetAttribute(&context.sm_count, cudaDevAttrMultiProcessorCount, context.device);
  context.stream = stream;
  const fusedops::fp8::QuantizedOutput out{rows, columns, row_scales, tile_scales};
  return fusedops::fp8::kVariants[variant].run(p, out, context);
}
}
