// Launches of fp8_norm_kernel.
#include <algorithm>
#include <atomic>

#include "csrc/common/device/shared_memory.cuh"
#include "csrc/cuda/fp8/norm/fp8_norm.cuh"

namespace fusedops {
namespace {

// Whether blocks agree by messages in clusters, which leave some multiprocessors idle, or anywhere
// on the device by words in memory.
constexpr bool kClusters = true;

constexpr int kPortableBlocks = 8;  // every device has clusters of so many
constexpr int kBlockTiles = 2;      // wanted of a block of a cluster

// Words of no round, before those that use them.
__global__ void clear_words_kernel(uint4* words, int64_t count) {
  wait_for_predecessor();
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) words[i] = {};
}

// Shared memory of a block, of those that two on a multiprocessor may have.
constexpr int kHalf = 113 * 1024;

template <class T, bool kRms>
constexpr auto kKernel = &fp8_norm_kernel<T, kRms, kClusters>;

template <bool kRms>
constexpr int shared_bytes(int slots) {
  return norm_shared_bytes<kRms, kClusters>(slots);
}

template <class T, bool kRms>
cudaError_t allow_all(int device) {
  constexpr auto kOf = kKernel<T, kRms>;
  return once_per_device<kOf>(device, [] {
    const cudaError_t status = cudaFuncSetAttribute(
        kOf, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes<kRms>(kNormSlots));
    if (status != cudaSuccess || !kClusters) return status;
    return cudaFuncSetAttribute(kOf, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  });
}

// How many clusters the device has at a time, of either dtype; of blocks anywhere, how many a
// multiprocessor has.
template <bool kRms>
int ask_for_clusters(int device, int cluster, int slots) {
  constexpr auto kOf = kKernel<__nv_bfloat16, kRms>;
  if (allow_all<__nv_bfloat16, kRms>(device) != cudaSuccess) return 0;
  int found = 0;
  cudaError_t status;
  if (kClusters) {
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(cluster)), config.blockDim = dim3(kTileThreads);
    config.dynamicSmemBytes = shared_bytes<kRms>(slots);
    config.attrs = &attribute, config.numAttrs = 1;
    status = cudaOccupancyMaxActiveClusters(&found, kOf, &config);
  } else {
    status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&found, kOf, kTileThreads,
                                                           shared_bytes<kRms>(slots));
  }
  cudaGetLastError();
  return status == cudaSuccess ? found : 0;
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

// The most slots with which two blocks share a multiprocessor, so that one computes while the other
// one waits; where those are too few for a block's tiles, it is alone.
template <bool kRms>
int slots_of(int tiles) {
  if (shared_bytes<kRms>(tiles) > kHalf) return std::min(tiles + kNormSpare, kNormSlots);
  int slots = tiles;
  while (slots < kNormSlots && shared_bytes<kRms>(slots + 1) <= kHalf) ++slots;
  return slots;
}

// As few groups as end at the same time.
Fp8NormPlan plan_of_groups(int blocks, int slots, int64_t active, int64_t rows) {
  return {blocks, slots, ceil_div(rows, ceil_div(rows, active))};
}

// The fewest blocks, a power of two, that have kBlockTiles tiles each, or as many as there are.
// NOTE: a block alone is no cluster, whose messages it must not send.
template <bool kRms>
Fp8NormPlan plan_clusters(int64_t rows, int64_t tiles, const LaunchContext& context) {
  if (tiles < 2) return {};
  for (const int most : {kNormBlocks, kPortableBlocks}) {
    int cluster = 2;
    while (cluster < most && tiles > int64_t{cluster} * kBlockTiles) cluster *= 2;
    const int64_t of_block = ceil_div(tiles, int64_t{cluster});
    if (of_block > kNormTiles) continue;
    const int slots = slots_of<kRms>(int(of_block));
    const int active = active_clusters<kRms>(context.device, cluster, slots);
    if (active > 0) return plan_of_groups(cluster, slots, active, rows);
  }
  return {};
}

// The power of two of blocks that ends first: tiles one after the other, and an exchange.
template <bool kRms>
Fp8NormPlan plan_words(int64_t rows, int64_t tiles, const LaunchContext& context) {
  Fp8NormPlan best;
  int64_t least = 0;
  for (int blocks = kLeastGroup; blocks <= kMostGroup && blocks <= tiles; blocks *= 2) {
    const int64_t of_block = ceil_div(tiles, int64_t{blocks});
    if (of_block > kNormTiles || shared_bytes<kRms>(int(of_block)) > kHalf) continue;
    const int slots = slots_of<kRms>(int(of_block));
    const int64_t active =
        int64_t{context.sm_count} * active_clusters<kRms>(context.device, 1, slots) / blocks;
    if (active == 0) continue;
    const int64_t time = ceil_div(rows, active) * (2 * of_block + 1);
    if (best.groups > 0 && time >= least) continue;
    best = plan_of_groups(blocks, slots, active, rows), least = time;
    best.words = best.groups * group_words<kRms>(blocks);
  }
  return best;
}

template <class T, bool kRms>
cudaError_t launch(const Fp8Norm& p, const Fp8NormPlan& plan, const LaunchContext& context) {
  if (const cudaError_t status = allow_all<T, kRms>(context.device)) return status;
  const auto stream = static_cast<cudaStream_t>(context.stream);
  if (plan.words > 0) {
    const int64_t vectors = plan.words / 2;
    const cudaError_t status = launch_kernel(
        &clear_words_kernel, dim3(static_cast<unsigned>(ceil_div(vectors, int64_t{kTileThreads}))),
        dim3(kTileThreads), 0, stream, context.overlap, reinterpret_cast<uint4*>(p.words), vectors);
    if (status != cudaSuccess) return status;
  }
  return launch_cluster_kernel(kKernel<T, kRms>,
                               dim3(static_cast<unsigned>(plan.groups * plan.blocks)),
                               dim3(kTileThreads), kClusters ? unsigned(plan.blocks) : 1u,
                               shared_bytes<kRms>(plan.slots), stream, context.overlap, p);
}

}  // namespace

Fp8NormPlan plan_fp8_norm(bool rms, int64_t m, int64_t k, const LaunchContext& context) {
  const int64_t rows = ceil_div(m, kFp8Block), tiles = ceil_div(k, kFp8Block);
  if constexpr (kClusters) {
    return rms ? plan_clusters<true>(rows, tiles, context)
               : plan_clusters<false>(rows, tiles, context);
  } else {
    return rms ? plan_words<true>(rows, tiles, context) : plan_words<false>(rows, tiles, context);
  }
}

const char* launch_fp8_norm(Fp8Norm p, const Fp8NormPlan& plan, const LaunchContext& context) {
  p.cluster = plan.blocks, p.slots = plan.slots;
  const bool bf16 = p.quantize.dtype == DType::kBFloat16;
  const auto call = bf16 ? (p.rms ? launch<__nv_bfloat16, true> : launch<__nv_bfloat16, false>)
                         : (p.rms ? launch<__half, true> : launch<__half, false>);
  const cudaError_t status = call(p, plan, context);
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace fusedops
