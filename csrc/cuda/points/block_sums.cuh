// Joins what the blocks of a pass have summed, channel by channel, in double and always in the same
// order. A thread block has kJoinedChannels of them, in kJoinSlices slices of the blocks: few
// channels each, so that many multiprocessors read at once.
#pragma once

#include <cstdint>

namespace fusedops {

inline constexpr int kJoinedChannels = 8;
inline constexpr int kJoinSlices = 32;
inline constexpr int kJoinThreads = kJoinedChannels * kJoinSlices;  // (8, 32)
inline constexpr int kJoinBatch = 9;  // blocks that a thread reads at a time: 288 in all

// The block of threads, and how many of them have all channels, a multiple of kJoinedChannels.
inline dim3 join_block() { return dim3(kJoinedChannels, kJoinSlices); }
inline unsigned join_blocks(int64_t channels) {
  return static_cast<unsigned>(channels / kJoinedChannels);
}
__device__ __forceinline__ int joining_thread() {
  return static_cast<int>(threadIdx.y * kJoinedChannels + threadIdx.x);
}

using JoinStage = double[kJoinSlices][kJoinedChannels];

// The slices' values added, for every thread of a channel. All threads call it.
__device__ __forceinline__ double add_slices(JoinStage& stage, double value) {
  stage[threadIdx.y][threadIdx.x] = value;
  __syncthreads();
  double total = 0;
#pragma unroll 8
  for (int slice = 0; slice < kJoinSlices; ++slice) total += stage[slice][threadIdx.x];
  __syncthreads();
  return total;
}

// A slice's blocks, kJoinBatch at a time: load(b) of each, then add(what that gave).
template <class Load, class Add>
__device__ __forceinline__ void for_blocks(int blocks, Load&& load, Add&& add) {
  for (int first = static_cast<int>(threadIdx.y); first < blocks;
       first += kJoinBatch * kJoinSlices) {
    decltype(load(0)) found[kJoinBatch];
#pragma unroll
    for (int u = 0; u < kJoinBatch; ++u) found[u] = load(min(first + u * kJoinSlices, blocks - 1));
#pragma unroll
    for (int u = 0; u < kJoinBatch; ++u) {
      if (first + u * kJoinSlices < blocks) add(found[u]);
    }
  }
}

// Values of a block: how many, their mean, and the squares of their distances to it.
struct BlockMoments {
  float count, mean, squares;
};

struct JoinedMoments {
  double count, mean, squares;
};

// The moments of all blocks' values, from load(b). Distances are taken to a block's mean: a mean of
// a thousand standard deviations leaves them their digits.
template <class Load>
__device__ __forceinline__ JoinedMoments join_moments(int blocks, JoinStage& stage, Load&& load) {
  double count = 0, sum = 0, squares = 0, origin = 0;
  for_blocks(blocks, load, [&](const BlockMoments& block) {
    if (!(block.count > 0)) return;
    if (count == 0) origin = block.mean;
    const double n = block.count, away = block.mean - origin;
    count += n;
    sum += n * away;
    squares += block.squares + n * away * away;
  });
  const double shift = count > 0 ? sum / count : 0, own = origin + shift;
  squares -= sum * shift;
  const double all = add_slices(stage, count);
  const double mean = add_slices(stage, count > 0 ? count * own : 0) / (all > 0 ? all : 1);
  const double away = own - mean;
  return {all, mean, add_slices(stage, count > 0 ? squares + count * away * away : 0)};
}

}  // namespace fusedops
