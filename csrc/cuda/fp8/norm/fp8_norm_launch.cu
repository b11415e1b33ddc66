// Launches of fp8_norm_kernel.
#include <algorithm>

#include "csrc/common/device/shared_memory.cuh"
#include "csrc/cuda/fp8/norm/fp8_norm.cuh"

namespace fusedops {
namespace {

// How many blocks statistics are ahead. NOTE: measured on an H200, 8192x4096: 46 us with 200 (half
// of the blocks that have a place), 48 with 420, 52 with 700: the L2 cache forgets.
constexpr int kBlocksAhead = 200;

template <class T, bool kRms, bool kResidual>
cudaError_t launch(const Fp8Norm& p, uint64_t* words, const LaunchContext& context) {
  constexpr auto kKernel = &fp8_norm_kernel<T, kRms, kResidual>;
  const cudaError_t allowed = once_per_device<kKernel>(context.device, [] {
    return cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                kNormSharedBytes);
  });
  if (allowed != cudaSuccess) return allowed;
  const int64_t tiles = ceil_div(p.quantize.k, kFp8Block);
  const int64_t rows = ceil_div(p.quantize.m, kFp8Block);
  Fp8NormCall a{p, words, 0, 0, 0};
  a.bands = int(std::min(rows, ceil_div(int64_t{kBlocksAhead}, tiles)));
  while ((tiles << a.rows_log) < kFp8Block) ++a.rows_log;
  while ((1 << (a.rows_log + a.parts_log)) < kTileWarps) ++a.parts_log;
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const int64_t count = p.quantize.m * (kRms ? 1 : 2);
  const cudaError_t status =
      launch_kernel(&fp8_norm_words_kernel, dim3(unsigned(ceil_div(count, int64_t{256}))),
                    dim3(256), 0, stream, context.overlap, words, count);
  if (status != cudaSuccess) return status;
  return launch_kernel(kKernel, dim3(unsigned(tiles), unsigned(rows + a.bands)), dim3(kTileThreads),
                       kNormSharedBytes, stream, context.overlap, a);
}

template <class T>
cudaError_t launch_of(const Fp8Norm& p, uint64_t* words, const LaunchContext& context) {
  if (p.residual) {
    return p.rms ? launch<T, true, true>(p, words, context)
                 : launch<T, false, true>(p, words, context);
  }
  return p.rms ? launch<T, true, false>(p, words, context)
               : launch<T, false, false>(p, words, context);
}

}  // namespace

const char* launch_fp8_norm(const Fp8Norm& p, void* words, const LaunchContext& context) {
  const bool bf16 = p.quantize.dtype == DType::kBFloat16;
  const auto call = bf16 ? launch_of<__nv_bfloat16> : launch_of<__half>;
  const cudaError_t status = call(p, static_cast<uint64_t*>(words), context);
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace fusedops
