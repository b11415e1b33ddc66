// Furthest point sampling, four regimes of one algorithm (Eldar et al., "The farthest point
// strategy for progressive image sampling", 1997): every thread keeps its points and their
// distances to the samples in registers; a step updates the distances and finds the furthest point.
//   warps    four warps per cloud, one on each scheduler of a multiprocessor; one redux.sync a step
//   block    one CTA per cloud; argmax through shared memory
//   cluster  2 to 16 CTAs per cloud; CTAs send their furthest point into each other's shared memory
//   grid     a team of resident CTAs per cloud; records in global memory that carry their step
// Clouds that no team can hold, other dimensions than 1 to 3 and float64 stream through global
// memory: fps_stream.cuh.
#pragma once

#include "csrc/common/device/cloud.cuh"
#include "csrc/common/fps_problem.h"
#include "csrc/cuda/points/sampling/fps_argmax.cuh"

namespace fusedops::fps {

enum class Scope : int8_t { kWarps, kBlock, kCluster, kGrid };

// Squared distance with one rounding per operation, in the order of the dimensions: the same bits
// on every device and on the CPU, which a contraction to FMA would not give.
__device__ __forceinline__ float distance2(float x, float y, float z, float4 c) {
  const float dx = __fsub_rn(x, c.x), dy = __fsub_rn(y, c.y), dz = __fsub_rn(z, c.z);
  return __fadd_rn(__fadd_rn(__fmul_rn(dx, dx), __fmul_rn(dy, dy)), __fmul_rn(dz, dz));
}

__device__ __forceinline__ float4 load_point(const Problem& p, int64_t row, uint32_t index) {
  const int64_t at = row * p.clouds.dim;
  const int dim = static_cast<int>(p.clouds.dim);
  float4 point{0.f, 0.f, 0.f, __uint_as_float(index)};
  if (dim > 0) point.x = load_as<float>(p.clouds.points, p.dtype, at);
  if (dim > 1) point.y = load_as<float>(p.clouds.points, p.dtype, at + 1);
  if (dim > 2) point.z = load_as<float>(p.clouds.points, p.dtype, at + 2);
  return point;
}

// The points of one CTA: thread t holds positions base + t, base + t + blockDim.x, ...
template <int kPoints>
struct Resident {
  float x[kPoints], y[kPoints], z[kPoints], distance[kPoints];
  uint32_t first;  // position of the thread's first point
  float4* local;   // shared: the CTA's points by position - base, w holds the position

  __device__ __forceinline__ void load(const Problem& p, const Task& task, uint32_t base) {
    first = base + threadIdx.x;
#pragma unroll 1
    for (int j = 0; j < kPoints; ++j) {
      const uint32_t index = first + j * blockDim.x;
      local[index - base] = index < task.length ? load_point(p, task.first_row + index, index)
                                                : float4{0.f, 0.f, 0.f, __uint_as_float(index)};
    }
#pragma unroll
    for (int j = 0; j < kPoints; ++j) {
      const uint32_t index = first + j * blockDim.x;
      const float4 point = local[index - base];
      x[j] = point.x, y[j] = point.y, z[j] = point.z;
      const bool nan = isnan(point.x) || isnan(point.y) || isnan(point.z);
      distance[j] = index >= task.length ? kTaken<float> : nan ? kNanPoint<float> : INFINITY;
    }
  }

  // Takes `chosen` out, updates the distances, returns the thread's furthest point.
  __device__ __forceinline__ Candidate<float> step(float4 chosen) {
    const uint32_t away = __float_as_uint(chosen.w) - first;
    if ((away & (blockDim.x - 1)) == 0) {
#pragma unroll
      for (int j = 0; j < kPoints; ++j) {
        if (away == j * blockDim.x) distance[j] = kTaken<float>;
      }
    }
    int32_t best = std::numeric_limits<int32_t>::min();
    uint32_t index = first;
#pragma unroll
    for (int j = 0; j < kPoints; ++j) {
      distance[j] = fminf(distance[j], distance2(x[j], y[j], z[j], chosen));
      const int32_t value = bits_of(distance[j]);
      if (value > best) {
        best = value;
        index = first + j * blockDim.x;
      }
    }
    return {best, index};
  }
};

struct BlockShared {
  Candidate<float> warps[2][kMaxWarps];
  Found found[kMaxWarps];
  Message messages[2][16];
  alignas(8) uint64_t barriers[2];
};

// ---- warps ----

inline constexpr int kSomeWarps = 4;

// The first of equal candidates.
__device__ __forceinline__ Candidate<float> further(Candidate<float> a, Candidate<float> b) {
  return b.value > a.value ? b : a;
}

// A lane's own value by a shuffle, which the compiler keeps in a register: what it forms again at
// every step, from special registers above all, the step waits for.
__device__ __forceinline__ uint32_t kept(uint32_t value) {
  return __shfl_sync(kFullWarp, value, static_cast<int>(lane_id()));
}

__device__ __forceinline__ void store_shared(uint32_t address, int32_t a, uint32_t b) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}

__device__ __forceinline__ int4 load_shared(uint32_t address) {
  int4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

// A step is a chain of latencies. Thread t holds positions t * kPoints and on: the lowest of equal
// candidates is the one of the lowest lane and warp, so that no index has to be reduced, and every
// thread compares the four warps' candidates itself.
template <int kPoints>
struct Consecutive {
  float x[kPoints], y[kPoints], z[kPoints], distance[kPoints];
  uint32_t first;

  __device__ __forceinline__ void load(const Problem& p, const Task& task, float4* local) {
#pragma unroll 4
    for (int j = 0; j < kPoints; ++j) {
      const uint32_t index = threadIdx.x + j * 32 * kSomeWarps;
      local[index] = index < task.length ? load_point(p, task.first_row + index, index)
                                         : float4{0.f, 0.f, 0.f, 0.f};
    }
    __syncthreads();
    first = threadIdx.x * kPoints;
#pragma unroll
    for (int j = 0; j < kPoints; ++j) {
      const float4 point = local[first + j];
      x[j] = point.x, y[j] = point.y, z[j] = point.z;
      const bool nan = isnan(point.x) || isnan(point.y) || isnan(point.z);
      distance[j] = first + j >= task.length ? kTaken<float> : nan ? kNanPoint<float> : INFINITY;
    }
  }

  // Called by all lanes.
  __device__ __forceinline__ void take(uint32_t position) {
    const uint32_t away = position - first;
    if (!__any_sync(kFullWarp, away < kPoints)) return;
#pragma unroll
    for (int j = 0; j < kPoints; ++j) {
      if (away == j) distance[j] = kTaken<float>;
    }
  }

  // Updates the distances, returns the largest.
  __device__ __forceinline__ int32_t update(float4 chosen) {
    int32_t best[kPoints];
#pragma unroll
    for (int j = 0; j < kPoints; ++j) {
      distance[j] = fminf(distance[j], distance2(x[j], y[j], z[j], chosen));
      best[j] = bits_of(distance[j]);
    }
#pragma unroll
    for (int step = 1; step < kPoints; step *= 2) {
#pragma unroll
      for (int j = 0; j + step < kPoints; j += 2 * step) best[j] = max(best[j], best[j + step]);
    }
    return best[0];
  }

  // The first position of the thread at this distance.
  __device__ __forceinline__ uint32_t position_of(int32_t value) const {
    uint32_t found = first;
#pragma unroll
    for (int j = kPoints - 1; j > 0; --j) {
      if (bits_of(distance[j]) == value) found = first + j;
    }
    return bits_of(distance[0]) == value ? first : found;
  }
};

template <int kPoints>
__device__ void sample_warps(const Problem& p, const Task& task, float4* local) {
  __shared__ alignas(64) Candidate<float> found[2][kSomeWarps];
  Consecutive<kPoints> points;
  points.load(p, task, local);
  uint32_t last = task.start;
  float4 chosen = load_point(p, task.first_row + last, last);
  constexpr uint32_t kTurn = sizeof(found[0]);
  const uint32_t lower_lanes = kept((1u << lane_id()) - 1), places = kept(shared_address(local));
  uint32_t slots = kept(shared_address(found));
  uint32_t own_slot = kept(slots + warp_id() * static_cast<uint32_t>(sizeof(Candidate<float>)));
  if (threadIdx.x == 0) task.out[0] = task.index_base + last;
  for (uint32_t s = 1; s < task.count; ++s) {
    points.take(last);
    const int32_t own = points.update(chosen);
    const int32_t value = __reduce_max_sync(kFullWarp, own);
    uint32_t position = points.position_of(own);
    asm volatile("" : "+r"(position));  // found while the warp's largest is on its way
    const unsigned peers = __ballot_sync(kFullWarp, own == value);
    if (own == value && (peers & lower_lanes) == 0) store_shared(own_slot, own, position);
    __syncthreads();
    const int4 a = load_shared(slots), b = load_shared(slots + kTurn / 2);
    slots ^= kTurn, own_slot ^= kTurn;
    last = further(further({a.x, static_cast<uint32_t>(a.y)}, {a.z, static_cast<uint32_t>(a.w)}),
                   further({b.x, static_cast<uint32_t>(b.y)}, {b.z, static_cast<uint32_t>(b.w)}))
               .index;
    const int4 point = load_shared(places + last * static_cast<uint32_t>(sizeof(float4)));
    chosen = {__int_as_float(point.x), __int_as_float(point.y), __int_as_float(point.z), 0.f};
    if (threadIdx.x == 0) task.out[s] = task.index_base + last;
  }
}

// ---- block ----

template <int kPoints>
__device__ void sample_block(const Problem& p, const Task& task, BlockShared& shared,
                             float4* local) {
  Resident<kPoints> points;
  points.local = local;
  points.load(p, task, 0);
  float4 chosen = load_point(p, task.first_row + task.start, task.start);
  if (threadIdx.x == 0) task.out[0] = task.index_base + task.start;
  for (uint32_t s = 1; s < task.count; ++s) {
    Candidate<float>* slots = shared.warps[s & 1];
    post_warp(points.step(chosen), slots);
    const Candidate<float> best = best_of(slots);
    chosen = local[best.index];
    if (threadIdx.x == 0) task.out[s] = task.index_base + best.index;
  }
}

// ---- cluster ----

template <int kPoints>
__device__ void sample_cluster(const Problem& p, const Task& task, BlockShared& shared,
                               float4* local, uint32_t rank, uint32_t team) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const uint32_t capacity = blockDim.x * kPoints, base = rank * capacity;
  const uint32_t barriers = shared_address(shared.barriers);
  const uint32_t messages = shared_address(shared.messages);
  constexpr uint32_t kSlotBytes = sizeof(shared.messages[0]);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      init_barrier(barriers + 8 * i, 1);
      expect_bytes(barriers + 8 * i, team * kMessageBytes);
    }
    release_barrier_init();
  }
  Resident<kPoints> points;
  points.local = local;
  points.load(p, task, base);
  cluster_sync();

  // Lane r of warp 0 sends to CTA r
  const uint32_t receiver = lane_id() < team ? lane_id() : 0;
  const uint32_t remote_message =
      cluster_address(messages + rank * static_cast<uint32_t>(sizeof(Message)), receiver);
  const uint32_t remote_barrier = cluster_address(barriers, receiver);
  float4 chosen = load_point(p, task.first_row + task.start, task.start);
  const bool writes = rank == 0 && threadIdx.x == 0;
  if (writes) task.out[0] = task.index_base + task.start;
  for (uint32_t s = 1; s < task.count; ++s) {
    const uint32_t turn = s & 1, parity = ((s - 1) >> 1) & 1;
    post_warp(points.step(chosen), shared.warps[turn]);
    if (warp_id() == 0) {
      const Candidate<float> best = best_of(shared.warps[turn]);
      if (lane_id() < team) {
        send(remote_message + turn * kSlotBytes, remote_barrier + 8 * turn,
             local[best.index - base], best.value);
      }
    }
    wait_for_barrier(barriers + 8 * turn, parity);
    // NOTE: armed for step s + 2 before this CTA's message of step s + 1 allows anyone to send it
    if (threadIdx.x == 0) expect_bytes(barriers + 8 * turn, team * kMessageBytes);
    const Message* slots = shared.messages[turn];
    Candidate<float> mine;
    if (lane_id() < team) {
      mine = {slots[lane_id()].value, __float_as_uint(slots[lane_id()].point.w)};
    }
    const Candidate<float> best = warp_argmax(mine);
    chosen = slots[lane_of(mine.index == best.index)].point;
    if (writes) task.out[s] = task.index_base + best.index;
  }
#endif
}

// ---- one sample ----

// A cloud's start, or -1 where it has no point: a thread per cloud.
__global__ void first_samples_kernel(Problem p) {
  const int64_t b = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (b >= p.clouds.count) return;
  const Task task = task_of(p, b);
  task.out[0] = task.count > 0 ? task.index_base + task.start : -1;
}

// ---- grid ----

template <int kPoints>
__device__ void sample_grid(const Problem& p, const Task& task, BlockShared& shared, float4* local,
                            const Team& team, uint32_t& tag) {
  const uint32_t base = team.rank * blockDim.x * kPoints;
  Resident<kPoints> points;
  points.local = local;
  points.load(p, task, base);
  float4 chosen = load_point(p, task.first_row + task.start, task.start);
  const bool writes = team.rank == 0 && threadIdx.x == 0;
  if (writes) task.out[0] = task.index_base + task.start;
  for (uint32_t s = 1; s < task.count; ++s) {
    post_warp(points.step(chosen), shared.warps[0]);
    Found own{};
    if (warp_id() == 0) {
      const Candidate<float> best = best_of(shared.warps[0]);
      const float4 point = local[best.index - base];
      own = {best.value, best.index, point.x, point.y, point.z};
    }
    const Found best = team_argmax<float>(own, team, ++tag, shared.found);
    chosen = {best.x, best.y, best.z, __uint_as_float(best.index)};
    if (writes) task.out[s] = task.index_base + best.index;
  }
  __syncthreads();  // the next cloud's points overwrite `local`
}

template <int kPoints, Scope kScope>
__global__ void __launch_bounds__(kScope == Scope::kWarps ? 32 * kSomeWarps
                                  : kPoints > 8           ? 512
                                                          : 1024)
    fps_resident_kernel(Problem p, uint32_t team_size, GridRecord* records) {
  extern __shared__ float4 local[];
  __shared__ BlockShared shared;
  if constexpr (kScope == Scope::kGrid) {
    const uint32_t team = blockIdx.x / team_size, teams = gridDim.x / team_size;
    const Team own{records + size_t{2} * team * team_size, team_size, blockIdx.x % team_size};
    uint32_t tag = 0;
    for (int64_t b = team; b < p.clouds.count; b += teams) {
      const Task task = task_of(p, b);
      if (own.rank == 0) pad_output(task);
      if (task.count > 0) sample_grid<kPoints>(p, task, shared, local, own, tag);
    }
  } else {
    const Task task = task_of(p, blockIdx.x / team_size);
    const uint32_t rank = blockIdx.x % team_size;
    if (rank == 0) pad_output(task);
    if (task.count == 0) return;
    if constexpr (kScope == Scope::kWarps) {
      sample_warps<kPoints>(p, task, local);
    } else if constexpr (kScope == Scope::kBlock) {
      sample_block<kPoints>(p, task, shared, local);
    } else {
      sample_cluster<kPoints>(p, task, shared, local, rank, team_size);
    }
  }
}

}  // namespace fusedops::fps
