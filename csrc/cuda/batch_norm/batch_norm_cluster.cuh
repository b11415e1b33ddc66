// Batch norm in training of what fits on the chip, in one kernel forward and one backward.
//
// A cluster has a few channels of all rows. A thread asks for all its rows at once and keeps them
// in shared memory; blocks send each other their sums over the channels, and each joins them alike,
// in the order of the blocks. So rows are read once, and nothing waits for another kernel.
//
// Moments are joined by Chan's formula (see batch_norm_statistics.cuh) between lanes, and about the
// joint mean between warps and between blocks: no sum of squares loses the digits of a variance.
#pragma once

#include "csrc/common/device/async_copy.cuh"
#include "csrc/common/device/cluster.cuh"
#include "csrc/cuda/batch_norm/batch_norm_pass.cuh"
#include "csrc/cuda/batch_norm/batch_norm_statistics.cuh"

namespace fusedops {

inline constexpr int kLeastClusterBlocks = 2, kMostClusterBlocks = 8;
inline constexpr int kClusterThreads = 512;
inline constexpr int kClusterWarps = kClusterThreads / 32;
inline constexpr int kForwardClusterBlocks = 2;  // of a multiprocessor, where memory allows it
inline constexpr int kClusterVec = 8;            // 16-bit elements of a chunk
inline constexpr int kMostClusterX = 16;         // chunks of a row in a block
inline constexpr int kRowGroups = 4;             // that a thread's rows arrive in
inline constexpr int kClusterReserved = 1024;    // bytes of shared memory of a block

// How the rows and channels are cut. Blocks beside each other are a cluster.
struct ClusterWalk {
  int blocks;     // of a cluster
  int threads_x;  // along the channels: a power of two
  int threads_y;  // along the rows
  int held;       // rows of a thread, at most
  int of_group;   // of them, in a group
  int64_t block_rows;
  int64_t clusters;

  constexpr int width() const { return threads_x * kClusterVec; }  // channels of a cluster
  // Bytes of shared memory: rows, and channels' sums of warps and blocks, vectors and a barrier.
  int bytes(int inputs) const {
    const int sums = width() * (kClusterWarps * 8 + blocks * 16 + 3 * 4);
    return held * inputs * kClusterThreads * 16 + sums + kClusterWarps * 4 + 16;
  }
};

inline ClusterWalk cluster_walk(int64_t rows, int64_t channels, int blocks, int threads_x) {
  ClusterWalk walk{};
  walk.blocks = blocks;
  walk.threads_x = threads_x;
  walk.threads_y = kClusterThreads / threads_x;
  walk.block_rows = ceil_div(rows, int64_t{blocks});
  walk.clusters = ceil_div(channels, int64_t{walk.width()});
  const int64_t held = ceil_div(walk.block_rows, int64_t{walk.threads_y});
  walk.held = static_cast<int>(held < 1024 ? held : 1024);
  walk.of_group = static_cast<int>(round_up(ceil_div(walk.held, kRowGroups), 2));
  return walk;
}

// The two sums that a channel has, or its mean and the sum of squares about it.
template <class C>
struct ChannelPair {
  C first, second;
};

// Adds what two lanes have.
struct SumFold {
  float seen = 0;  // which nobody asks for
  __device__ __forceinline__ void meet(int) {}
  __device__ __forceinline__ ChannelPair<float> join(ChannelPair<float> mine,
                                                     ChannelPair<float> other) const {
    return {mine.first + other.first, mine.second + other.second};
  }
};

// Joins the moments that two lanes have.
struct MomentFold {
  float seen, share = 0, weight = 0;
  __device__ __forceinline__ explicit MomentFold(float rows) : seen(rows) {}
  __device__ __forceinline__ void meet(int lanes) {
    const float other = __shfl_xor_sync(~0u, seen, lanes), all = seen + other;
    share = all > 0 ? other / all : 0;
    weight = seen * share;
    seen = all;
  }
  __device__ __forceinline__ ChannelPair<float> join(ChannelPair<float> mine,
                                                     ChannelPair<float> other) const {
    const float away = other.first - mine.first;
    return {mine.first + away * share, mine.second + other.second + away * away * weight};
  }
};

// Where the shared memory of a block lies, and its thread's rows.
template <int kInputs>
class ClusterBlock {
 public:
  ClusterWalk walk;
  unsigned rank;
  int tx, count;          // count: rows of this thread
  int64_t col, row;       // the thread's first channel and row
  int64_t first_channel;  // of the block

  __device__ __forceinline__ ClusterBlock(const ClusterWalk& walk_, int64_t rows, int64_t channels,
                                          uint4* memory)
      : walk(walk_), rows_(rows), channels_(channels), slots_(memory) {
    rank = cluster_rank();
    tx = threadIdx.x % walk.threads_x;
    const int ty = threadIdx.x / walk.threads_x;
    first_channel = int64_t{blockIdx.x / walk.blocks} * width();
    col = first_channel + tx * kClusterVec;
    row = rank * walk.block_rows + ty;
    const int64_t left = rows_of(rank) - ty;
    const bool any = left > 0 && col < channels;
    count = any ? static_cast<int>(ceil_div(left, int64_t{walk.threads_y})) : 0;
    joint_ = reinterpret_cast<ChannelPair<double>*>(memory + walk.held * kInputs * kClusterThreads);
    warps_ = reinterpret_cast<ChannelPair<float>*>(joint_ + walk.blocks * width());
    vectors_ = reinterpret_cast<float*>(warps_ + kClusterWarps * width());
    seen_ = vectors_ + 3 * width();
    barrier_ = shared_address(seen_ + kClusterWarps);
    if (threadIdx.x == 0) {
      init_barrier(barrier_, 1);
      release_barrier_init();
      expect_bytes(barrier_, walk.blocks * width() * sizeof(ChannelPair<double>));
    }
    cluster_arrive();  // waited for before the first message
  }

  __device__ __forceinline__ int width() const { return walk.width(); }
  __device__ __forceinline__ int64_t rows_of(unsigned block) const {
    return max(int64_t{0}, min(walk.block_rows, rows_ - block * walk.block_rows));
  }
  __device__ __forceinline__ int64_t row_of(int k) const {
    return row + int64_t{k} * walk.threads_y;
  }
  // Whether this thread joins what the blocks sent of a channel: its own number among the block's.
  __device__ __forceinline__ bool joins() const {
    const int channel = static_cast<int>(threadIdx.x);
    return channel < width() && first_channel + channel < channels_;
  }

  // Asks for this thread's rows, in kRowGroups groups, of inputs kFrom to kTo.
  template <class T, int kFrom, int kTo>
  __device__ __forceinline__ void fetch(const T* const (&in)[kInputs]) const {
    for (int g = 0; g < kRowGroups; ++g) {
      const int end = min(count, (g + 1) * walk.of_group);
      for (int k = g * walk.of_group; k < end; ++k) {
#pragma unroll
        for (int i = kFrom; i < kTo; ++i) {
          copy_async(shared_address(slot(k, i)), in[i] + row_of(k) * channels_ + col);
        }
      }
      commit_copies();
    }
  }
  // Waits for a group, behind which kBehind more have been asked for, and says where it ends.
  template <int kBehind>
  __device__ __forceinline__ int arrived(int group) const {
    switch (group) {
      case 0: wait_for_copies<kBehind + 3>(); break;
      case 1: wait_for_copies<kBehind + 2>(); break;
      case 2: wait_for_copies<kBehind + 1>(); break;
      default: wait_for_copies<kBehind>();
    }
    return min(count, (group + 1) * walk.of_group);
  }
  template <class T>
  __device__ __forceinline__ Vec<T, kClusterVec> value(int k, int input) const {
    return __builtin_bit_cast(Vec<T, kClusterVec>, *slot(k, input));
  }
  __device__ __forceinline__ uint4* slot(int k, int input) const {
    return slots_ + (k * kInputs + input) * kClusterThreads + threadIdx.x;
  }

  // Folds what the threads of a warp have of their channels, and leaves it to the block.
  template <class Fold>
  __device__ __forceinline__ void leave(ChannelPair<float> (&v)[kClusterVec], Fold fold) {
    fold_lanes<kClusterVec>(v, fold, tx * kClusterVec);
    if (threadIdx.x % 32 == 0) seen_[threadIdx.x / 32] = fold.seen;
  }

  // Sends every block this block's pair of each channel, which pair(channel) makes of the warps',
  // and waits for those of the others.
  template <class Pair>
  __device__ __forceinline__ void exchange(Pair&& pair) {
    __syncthreads();
    cluster_wait();
    for (int t = threadIdx.x; t < width() * walk.blocks; t += kClusterThreads) {
      const int channel = t % width();
      send_to_block(shared_address(joint_ + rank * width() + channel), barrier_, t / width(),
                    pair(channel));
    }
    wait_for_bytes(barrier_, 0);
  }
  __device__ __forceinline__ const ChannelPair<float>& of_warp(int warp, int channel) const {
    return warps_[warp * width() + channel];
  }
  __device__ __forceinline__ const ChannelPair<double>& of_block(int block, int channel) const {
    return joint_[block * width() + channel];
  }
  __device__ __forceinline__ double seen_by(int warp) const { return seen_[warp]; }
  // Three vectors over the block's channels.
  __device__ __forceinline__ float* vector(int i) const { return vectors_ + i * width(); }
  // The thread's channels of one.
  __device__ __forceinline__ void load(int vector_index, float (&to)[kClusterVec]) const {
#pragma unroll
    for (int i = 0; i < kClusterVec; ++i) to[i] = vector(vector_index)[tx * kClusterVec + i];
  }

 private:
  // Lanes with the same channels share them: each half keeps half of them.
  template <int kLeft, class Fold>
  __device__ __forceinline__ void fold_lanes(ChannelPair<float> (&v)[kClusterVec], Fold& fold,
                                             int first) {
    constexpr int kLanes = 2 * kLeft, kKeep = kLeft > 1 ? kLeft / 2 : 1;
    if (kLanes < walk.threads_x) {
      store<kLeft>(v, first);
      return;
    }
    const bool upper = threadIdx.x & kLanes;
    fold.meet(kLanes);
#pragma unroll
    for (int i = 0; i < kKeep; ++i) {
      const ChannelPair<float> low = v[i], high = v[kLeft > 1 ? i + kKeep : i];
      const ChannelPair<float> give = upper ? low : high;
      const ChannelPair<float> other{__shfl_xor_sync(~0u, give.first, kLanes),
                                     __shfl_xor_sync(~0u, give.second, kLanes)};
      v[i] = fold.join(upper ? high : low, other);
    }
    if constexpr (kLeft > 1) {
      fold_lanes<kLeft / 2>(v, fold, first + (upper ? kKeep : 0));
    } else if (!upper) {
      store<1>(v, first);
    }
  }
  template <int kLeft>
  __device__ __forceinline__ void store(const ChannelPair<float> (&v)[kClusterVec], int first) {
#pragma unroll
    for (int i = 0; i < kLeft; ++i) warps_[(threadIdx.x / 32) * width() + first + i] = v[i];
  }

  int64_t rows_, channels_;
  uint4* slots_;                // (held, inputs, threads)
  ChannelPair<double>* joint_;  // (blocks, width)
  ChannelPair<float>* warps_;   // (warps, width)
  float* vectors_;              // (3, width)
  float* seen_;                 // (warps,)
  uint32_t barrier_;
};

// The joint moments of `parts`, in their order: rows_of(i) and of(i), mean and sum of squares.
template <class RowsOf, class Of>
__device__ __forceinline__ ChannelPair<double> joint_moments(int parts, double rows,
                                                             RowsOf&& rows_of, Of&& of) {
  double mean = 0, square = 0;
#pragma unroll 4
  for (int i = 0; i < parts; ++i) mean += rows_of(i) * static_cast<double>(of(i).first);
  mean /= max(rows, 1.0);
#pragma unroll 4
  for (int i = 0; i < parts; ++i) {
    const double away = static_cast<double>(of(i).first) - mean;
    square += static_cast<double>(of(i).second) + rows_of(i) * away * away;
  }
  return {mean, square};
}

// The sums of `parts`, in their order.
template <class Of>
__device__ __forceinline__ ChannelPair<double> joint_sums(int parts, Of&& of) {
  ChannelPair<double> sum{};
#pragma unroll 4
  for (int i = 0; i < parts; ++i) {
    sum.first += static_cast<double>(of(i).first);
    sum.second += static_cast<double>(of(i).second);
  }
  return sum;
}

template <class T, bool kAdded>
__global__ void __launch_bounds__(kClusterThreads, kForwardClusterBlocks)
    batch_norm_cluster_kernel(const __grid_constant__ PassProblem p,
                              const __grid_constant__ StatisticsResult result,
                              const __grid_constant__ ClusterWalk walk) {
  extern __shared__ uint4 memory[];
  constexpr int kInputs = kAdded ? 2 : 1;
  ClusterBlock<kInputs> block(walk, p.rows, p.channels, memory);
  wait_for_predecessor();
  const T* in[kInputs] = {static_cast<const T*>(p.x)};
  if constexpr (kAdded) in[1] = static_cast<const T*>(p.added);
  block.template fetch<T, 0, 1>(in);
  if constexpr (kAdded) block.template fetch<T, 1, 2>(in);
  const int channel = static_cast<int>(threadIdx.x);
  const bool joins = block.joins();
  float weight = 0, bias = 0;
  if (joins) {
    weight = p.norm.weight.template at<T>(block.first_channel + channel, 1.0f);
    // NOTE: -0 keeps zeros of both signs.
    bias = p.norm.bias.template at<T>(block.first_channel + channel, -0.0f);
  }

  // Moments
  ChannelMoments<float, kClusterVec> moments;
  for (int g = 0; g < kRowGroups; ++g) {
    const int end = block.template arrived<kAdded ? kRowGroups : 0>(g);
    for (int k = g * walk.of_group; k < end; k += 2) {
      const bool two = k + 1 < end;
      const Vec<T, kClusterVec> x[2] = {block.template value<T>(k, 0),
                                        block.template value<T>(two ? k + 1 : k, 0)};
      moments.add(x, two ? 2 : 1);
    }
  }
  ChannelPair<float> pairs[kClusterVec];
#pragma unroll
  for (int i = 0; i < kClusterVec; ++i) pairs[i] = {moments.mean[i], moments.square[i]};
  block.leave(pairs, MomentFold(moments.seen));
  block.exchange([&](int c) {
    return joint_moments(
        kClusterWarps, static_cast<double>(block.rows_of(block.rank)),
        [&](int w) { return block.seen_by(w); },
        [&](int w) -> const ChannelPair<float>& { return block.of_warp(w, c); });
  });
  if (joins) {
    const auto joint = joint_moments(
        walk.blocks, static_cast<double>(p.rows),
        [&](int b) { return static_cast<double>(block.rows_of(b)); },
        [&](int b) -> const ChannelPair<double>& { return block.of_block(b, channel); });
    const double rows = static_cast<double>(p.rows);
    const float var = static_cast<float>(joint.second / rows);
    block.vector(0)[channel] = static_cast<float>(joint.first);
    block.vector(1)[channel] = weight * (1.0f / sqrtf(var + static_cast<float>(p.norm.eps)));
    block.vector(2)[channel] = bias;
    if (block.rank == 0) {
      write_statistics<T>(result, block.first_channel + channel, rows, joint.first, joint.second);
    }
  }
  __syncthreads();

  // Results
  NormChannels<T, kClusterVec> channels;
  block.load(0, channels.mean);
  block.load(1, channels.scale);
  block.load(2, channels.bias);
  wait_for_copies();
  for (int k = 0; k < block.count; ++k) {
    float z[kClusterVec];
    channels.template output<kAdded>(block.template value<T>(k, 0),
                                     block.template value<T>(k, kInputs - 1), p.activation, z);
    store_row<T>(p.out, p, block.row_of(k), block.col, z);
  }
}

// dz is stored, and what dx is made of, where kAdded.
template <class T, bool kAdded>
__global__ void __launch_bounds__(kClusterThreads)
    batch_norm_cluster_backward_kernel(const __grid_constant__ PassProblem p, float* sums,
                                       const __grid_constant__ ClusterWalk walk) {
  extern __shared__ uint4 memory[];
  constexpr int kInputs = kAdded ? 3 : 2;
  ClusterBlock<kInputs> block(walk, p.rows, p.channels, memory);
  wait_for_predecessor();
  const T* in[kInputs] = {static_cast<const T*>(p.dy), static_cast<const T*>(p.x)};
  if constexpr (kAdded) in[2] = static_cast<const T*>(p.added);
  block.template fetch<T, 0, kInputs>(in);
  const int channel = static_cast<int>(threadIdx.x);
  const bool joins = block.joins();
  const float rstd = joins ? p.norm.template rstd<T>(block.first_channel + channel) : 0.0f;
  NormChannels<T, kClusterVec> channels;
  if (block.count > 0) channels.load(p.norm, block.col);

  // Sums
  const auto slopes = [&](int k, float (&dz)[kClusterVec]) {
    gradients<T, kClusterVec, kAdded>(p, channels, block.template value<T>(k, 0),
                                      block.template value<T>(k, 1),
                                      block.template value<T>(k, kInputs - 1), dz);
  };
  ChannelPair<float> pairs[kClusterVec] = {};
  for (int g = 0; g < kRowGroups; ++g) {
    const int end = block.template arrived<0>(g);
    for (int k = g * walk.of_group; k < end; ++k) {
      const auto x = block.template value<T>(k, 1);
      float dz[kClusterVec];
      slopes(k, dz);
#pragma unroll
      for (int i = 0; i < kClusterVec; ++i) {
        pairs[i].first += dz[i];
        pairs[i].second += dz[i] * (to_compute(x.value[i]) - channels.mean[i]);
      }
      if constexpr (kAdded) {
        *block.slot(k, 0) = __builtin_bit_cast(uint4, rounded<T>(dz));
        store_row<T>(p.dz, p, block.row_of(k), block.col, dz);
      }
    }
  }
  block.leave(pairs, SumFold{});
  block.exchange(
      [&](int c) { return joint_sums(kClusterWarps, [&](int w) { return block.of_warp(w, c); }); });
  if (joins) {
    const auto sum = joint_sums(walk.blocks, [&](int b) { return block.of_block(b, channel); });
    const float dbias = static_cast<float>(sum.first);
    const float dweight = static_cast<float>(sum.second * rstd), share = 1.0f / p.rows;
    block.vector(0)[channel] = dbias * share;
    block.vector(1)[channel] = dweight * share * rstd;
    if (block.rank == 0) {
      sums[block.first_channel + channel] = dbias;
      sums[p.channels + block.first_channel + channel] = dweight;
    }
  }
  __syncthreads();

  // dx
  GradientChannels<T, kClusterVec> of_sums;
  block.load(0, of_sums.mean_dz);
  block.load(1, of_sums.slope);
  for (int k = 0; k < block.count; ++k) {
    const auto x = block.template value<T>(k, 1);
    float dz[kClusterVec], dx[kClusterVec];
    if constexpr (kAdded) {
      const auto stored = block.template value<T>(k, 0);
#pragma unroll
      for (int i = 0; i < kClusterVec; ++i) dz[i] = to_compute(stored.value[i]);
    } else {
      slopes(k, dz);
    }
#pragma unroll
    for (int i = 0; i < kClusterVec; ++i) {
      dx[i] = of_sums.centred(i, dz[i], x.value[i], channels.mean[i]) * channels.scale[i];
    }
    store_row<T>(p.out, p, block.row_of(k), block.col, dx);
  }
}

}  // namespace fusedops
