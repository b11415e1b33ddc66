// Launches of fp8_norm_kernel.
#include <algorithm>
#include <atomic>

#include "csrc/common/device/shared_memory.cuh"
#include "csrc/cuda/fp8/norm/fp8_norm.cuh"

namespace fusedops {
namespace {

constexpr int kPortableBlocks = 8;  // every device has clusters of so many
constexpr int kBlockTiles = 2;      // wanted of a block

// Shared memory of a block, of those that two on a multiprocessor may have.
constexpr int kHalf = 113 * 1024;

template <class T, bool kRms>
cudaError_t allow_all(int device) {
  constexpr auto kKernel = &fp8_norm_kernel<T, kRms>;
  return once_per_device<kKernel>(device, [] {
    const cudaError_t status = cudaFuncSetAttribute(
        kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, norm_shared_bytes<kRms>(kNormSlots));
    if (status != cudaSuccess) return status;
    return cudaFuncSetAttribute(kKernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  });
}

// How many clusters the device has at a time, of either dtype.
template <bool kRms>
int ask_for_clusters(int device, int cluster, int slots) {
  constexpr auto kKernel = &fp8_norm_kernel<__nv_bfloat16, kRms>;
  if (allow_all<__nv_bfloat16, kRms>(device) != cudaSuccess) return 0;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(cluster)), config.blockDim = dim3(kTileThreads);
  config.dynamicSmemBytes = norm_shared_bytes<kRms>(slots);
  config.attrs = &attribute, config.numAttrs = 1;
  int clusters = 0;
  const cudaError_t status = cudaOccupancyMaxActiveClusters(&clusters, kKernel, &config);
  cudaGetLastError();
  return status == cudaSuccess ? clusters : 0;
}

// Asked once for each device, size of a cluster and number of slots.
template <bool kRms>
int active_clusters(int device, int cluster, int slots) {
  static std::atomic<int> known[64][kNormBlocks + 1][kNormSlots + 1];  // plus 1
  if (device >= 64) return ask_for_clusters<kRms>(device, cluster, slots);
  std::atomic<int>& place = known[device][cluster][slots];
  if (const int found = place.load(std::memory_order_relaxed)) return found - 1;
  const int clusters = ask_for_clusters<kRms>(device, cluster, slots);
  place.store(clusters + 1, std::memory_order_relaxed);
  return clusters;
}

struct NormPlan {
  int cluster, slots, active;  // active: clusters at a time, 0 where there is no plan
};

// The most slots with which two blocks share a multiprocessor, so that one computes while the other
// one waits; where those are too few for a block's tiles, it is alone.
template <bool kRms>
int slots_of(int tiles) {
  if (norm_shared_bytes<kRms>(tiles) > kHalf) return std::min(tiles + kNormSpare, kNormSlots);
  int slots = tiles;
  while (norm_shared_bytes<kRms>(slots + 1) <= kHalf) ++slots;
  return slots;
}

// The fewest blocks, a power of two, that have kBlockTiles tiles each, or as many as there are.
// NOTE: a block alone is no cluster, whose messages it must not send.
template <bool kRms>
NormPlan plan_of(int device, int64_t tiles) {
  if (tiles < 2) return {};
  for (const int most : {kNormBlocks, kPortableBlocks}) {
    int cluster = 2;
    while (cluster < most && tiles > int64_t{cluster} * kBlockTiles) cluster *= 2;
    const int64_t of_block = ceil_div(tiles, int64_t{cluster});
    if (of_block > kNormTiles) continue;
    const int slots = slots_of<kRms>(int(of_block));
    const int active = active_clusters<kRms>(device, cluster, slots);
    if (active > 0) return {cluster, slots, active};
  }
  return {};
}

template <class T, bool kRms>
cudaError_t launch(Fp8Norm p, const LaunchContext& context) {
  if (const cudaError_t status = allow_all<T, kRms>(context.device)) return status;
  const NormPlan plan = plan_of<kRms>(context.device, ceil_div(p.quantize.k, kFp8Block));
  if (plan.active == 0) return cudaErrorNotSupported;
  p.cluster = plan.cluster, p.slots = plan.slots;
  // As few clusters as end at the same time.
  const int64_t rows = ceil_div(p.quantize.m, kFp8Block);
  const int64_t clusters = ceil_div(rows, ceil_div(rows, int64_t{plan.active}));
  return launch_cluster_kernel(
      &fp8_norm_kernel<T, kRms>, dim3(static_cast<unsigned>(clusters * p.cluster)),
      dim3(kTileThreads), static_cast<unsigned>(p.cluster), norm_shared_bytes<kRms>(p.slots),
      static_cast<cudaStream_t>(context.stream), context.overlap, p);
}

}  // namespace

bool takes_fp8_norm(bool rms, int64_t k, const LaunchContext& context) {
  const auto plan = rms ? plan_of<true> : plan_of<false>;
  return plan(context.device, ceil_div(k, kFp8Block)).active > 0;
}

const char* launch_fp8_norm(Fp8Norm p, const LaunchContext& context) {
  const bool bf16 = p.quantize.dtype == DType::kBFloat16;
  const auto call = bf16 ? (p.rms ? launch<__nv_bfloat16, true> : launch<__nv_bfloat16, false>)
                         : (p.rms ? launch<__half, true> : launch<__half, false>);
  const cudaError_t status = call(p, context);
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace fusedops
