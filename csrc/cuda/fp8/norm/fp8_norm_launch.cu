// Launches of fp8_norm_kernel.
#include <algorithm>
#include <atomic>

#include "csrc/common/device/shared_memory.cuh"
#include "csrc/cuda/fp8/norm/fp8_norm.cuh"

namespace fusedops {
namespace {

// The fewest blocks, a power of two, that have `most` tiles each: two of them share a
// multiprocessor where those are two or three, so that one copies while the other one scales.
int cluster_of(int64_t tiles, int most_blocks) {
  int cluster = 1;
  while (cluster < most_blocks && ceil_div(tiles, int64_t{cluster}) > 2) cluster *= 2;
  return cluster;
}
int tiles_of_block(int64_t tiles, int cluster) { return int(ceil_div(tiles, int64_t{cluster})); }

template <class T, bool kRms>
cudaError_t allow_all(int device) {
  constexpr auto kKernel = &fp8_norm_kernel<T, kRms>;
  return once_per_device<kKernel>(device, [] {
    const cudaError_t status = cudaFuncSetAttribute(
        kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, norm_shared_bytes(kNormTiles));
    if (status != cudaSuccess) return status;
    return cudaFuncSetAttribute(kKernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  });
}

template <class T, bool kRms>
cudaError_t launch(const Fp8Norm& p, const LaunchContext& context) {
  if (const cudaError_t status = allow_all<T, kRms>(context.device)) return status;
  const int64_t tiles = ceil_div(p.quantize.k, kFp8Block);
  const int64_t blocks = ceil_div(p.quantize.m, kFp8Block) * p.cluster;
  return launch_cluster_kernel(&fp8_norm_kernel<T, kRms>, dim3(static_cast<unsigned>(blocks)),
                               dim3(kTileThreads), static_cast<unsigned>(p.cluster),
                               norm_shared_bytes(tiles_of_block(tiles, p.cluster)),
                               static_cast<cudaStream_t>(context.stream), context.overlap, p);
}

// Whether the device has a place for 16 blocks of most shared memory that see each other.
bool has_large_clusters(int device) {
  constexpr auto kKernel = &fp8_norm_kernel<__nv_bfloat16, true>;
  if (allow_all<__nv_bfloat16, true>(device) != cudaSuccess) return false;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {kNormClusters, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kNormClusters), config.blockDim = dim3(kTileThreads);
  config.dynamicSmemBytes = norm_shared_bytes(kNormTiles);
  config.attrs = &attribute, config.numAttrs = 1;
  int clusters = 0;
  const cudaError_t status = cudaOccupancyMaxActiveClusters(&clusters, kKernel, &config);
  cudaGetLastError();
  return status == cudaSuccess && clusters > 0;
}

// Asked once for each device.
int most_blocks(int device) {
  static std::atomic<int> known[64];
  if (device >= 64) return has_large_clusters(device) ? kNormClusters : 8;
  int found = known[device].load(std::memory_order_relaxed);
  if (found == 0) {
    found = has_large_clusters(device) ? kNormClusters : 8;
    known[device].store(found, std::memory_order_relaxed);
  }
  return found;
}

}  // namespace

bool takes_fp8_norm(int64_t k, const LaunchContext& context) {
  return ceil_div(k, kFp8Block) <= int64_t{kNormTiles} * most_blocks(context.device);
}

const char* launch_fp8_norm(Fp8Norm p, const LaunchContext& context) {
  p.cluster = cluster_of(ceil_div(p.quantize.k, kFp8Block), most_blocks(context.device));
  const bool bf16 = p.quantize.dtype == DType::kBFloat16;
  const auto call = bf16 ? (p.rms ? launch<__nv_bfloat16, true> : launch<__nv_bfloat16, false>)
                         : (p.rms ? launch<__half, true> : launch<__half, false>);
  const cudaError_t status = call(p, context);
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace fusedops
