// Launches of fp8_norm_kernel.
#include <algorithm>
#include <atomic>

#include "csrc/common/device/shared_memory.cuh"
#include "csrc/cuda/fp8/norm/fp8_norm.cuh"

namespace fusedops {
namespace {

constexpr int kPortableBlocks = 8;  // every device has clusters of so many
constexpr int kMostBlocks = 16;
constexpr int kBlockTiles = 2;  // wanted of a block: two share a multiprocessor, and one copies
                                // while the other one scales
constexpr int kMostTiles = int(kFp8NormWidth / kTile / kPortableBlocks);
static_assert(kMostBlocks * kTile * sizeof(PartOfRow) <= kTileBytes);
static_assert(kFp8NormWidth <= kMostBlocks * kBlockTiles * kTile);

// The fewest blocks, a power of two, that have kBlockTiles tiles each.
int cluster_of(int64_t tiles, int most_blocks) {
  int cluster = 1;
  while (cluster < most_blocks && ceil_div(tiles, int64_t{cluster}) > kBlockTiles) cluster *= 2;
  return cluster;
}
int tiles_of_block(int64_t tiles, int cluster) { return int(ceil_div(tiles, int64_t{cluster})); }

template <class T>
cudaError_t allow_all(int device) {
  constexpr auto kKernel = &fp8_norm_kernel<T>;
  return once_per_device<kKernel>(device, [] {
    const cudaError_t status = cudaFuncSetAttribute(
        kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, norm_shared_bytes(kMostTiles));
    if (status != cudaSuccess) return status;
    return cudaFuncSetAttribute(kKernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  });
}

template <class T>
cudaError_t launch(const Fp8Norm& p, const LaunchContext& context) {
  if (const cudaError_t status = allow_all<T>(context.device)) return status;
  const int64_t tiles = ceil_div(p.quantize.k, kFp8Block);
  const int64_t blocks = ceil_div(p.quantize.m, kFp8Block) * p.cluster;
  return launch_cluster_kernel(&fp8_norm_kernel<T>, dim3(static_cast<unsigned>(blocks)),
                               dim3(kTileThreads), static_cast<unsigned>(p.cluster),
                               norm_shared_bytes(tiles_of_block(tiles, p.cluster)),
                               static_cast<cudaStream_t>(context.stream), context.overlap, p);
}

// Whether the device has a place for 16 blocks that see each other.
bool has_large_clusters(int device) {
  constexpr auto kKernel = &fp8_norm_kernel<__nv_bfloat16>;
  if (allow_all<__nv_bfloat16>(device) != cudaSuccess) return false;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {kMostBlocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kMostBlocks), config.blockDim = dim3(kTileThreads);
  config.dynamicSmemBytes = norm_shared_bytes(kBlockTiles);
  config.attrs = &attribute, config.numAttrs = 1;
  int clusters = 0;
  const cudaError_t status = cudaOccupancyMaxActiveClusters(&clusters, kKernel, &config);
  cudaGetLastError();
  return status == cudaSuccess && clusters > 0;
}

// Asked once for each device.
int most_blocks(int device) {
  static std::atomic<int> known[64];
  if (device >= 64) return has_large_clusters(device) ? kMostBlocks : kPortableBlocks;
  int found = known[device].load(std::memory_order_relaxed);
  if (found == 0) {
    found = has_large_clusters(device) ? kMostBlocks : kPortableBlocks;
    known[device].store(found, std::memory_order_relaxed);
  }
  return found;
}

}  // namespace

const char* launch_fp8_norm(Fp8Norm p, const LaunchContext& context) {
  p.cluster = cluster_of(ceil_div(p.quantize.k, kFp8Block), most_blocks(context.device));
  const cudaError_t status = p.quantize.dtype == DType::kBFloat16
                                 ? launch<__nv_bfloat16>(p, context)
                                 : launch<__half>(p, context);
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace fusedops
