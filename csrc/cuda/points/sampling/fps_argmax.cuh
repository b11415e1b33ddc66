// Furthest point sampling: the order of candidates and the argmax over a warp, a block, a cluster
// or a grid.
//
// A candidate is (value, index); the larger value wins, then the lower index. Values are the bits
// of a distance as a signed integer: distances are never negative, so the order of the bits is
// theirs, and one redux.sync finds the largest. The two negative marks sort below every distance.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "csrc/common/device/mbarrier.cuh"
#include "csrc/common/fps_problem.h"

namespace fusedops::fps {

inline constexpr unsigned kFullWarp = 0xffffffffu;
inline constexpr int kMaxWarps = 32;

// Marks in place of a distance. As bits: kTaken < kNanPoint < any distance.
template <class T>
inline constexpr T kNanPoint = T(-2);  // a point with a NaN comes after every other one
template <class T>
inline constexpr T kTaken = T(-1);

template <class T>
struct BitsOf {
  using type = int32_t;
};
template <>
struct BitsOf<double> {
  using type = int64_t;
};
template <class T>
using Bits = typename BitsOf<T>::type;

__device__ __forceinline__ int32_t bits_of(float x) { return __float_as_int(x); }
__device__ __forceinline__ int64_t bits_of(double x) { return __double_as_longlong(x); }

template <class T>
struct Candidate {
  Bits<T> value = std::numeric_limits<Bits<T>>::min();
  uint32_t index = std::numeric_limits<uint32_t>::max();
};

__device__ __forceinline__ Candidate<float> warp_argmax(Candidate<float> mine) {
  const int32_t value = __reduce_max_sync(kFullWarp, mine.value);
  const uint32_t index =
      __reduce_min_sync(kFullWarp, mine.value == value ? mine.index : 0xffffffffu);
  return {value, index};
}

__device__ __forceinline__ Candidate<double> warp_argmax(Candidate<double> mine) {
  const int32_t high = static_cast<int32_t>(mine.value >> 32);
  const uint32_t low = static_cast<uint32_t>(mine.value);
  const int32_t best_high = __reduce_max_sync(kFullWarp, high);
  const uint32_t best_low = __reduce_max_sync(kFullWarp, high == best_high ? low : 0u);
  const int64_t value = (static_cast<int64_t>(best_high) << 32) | best_low;
  const uint32_t index =
      __reduce_min_sync(kFullWarp, mine.value == value ? mine.index : 0xffffffffu);
  return {value, index};
}

// The one lane for which `mine` holds.
__device__ __forceinline__ int lane_of(bool mine) {
  return __ffs(static_cast<int>(__ballot_sync(kFullWarp, mine))) - 1;
}

// ---- block ----

// -1 beyond the samples.
__device__ __forceinline__ void pad_output(const Task& task) {
  for (int64_t i = task.count + threadIdx.x; i < task.out_size; i += blockDim.x) task.out[i] = -1;
}

__device__ __forceinline__ uint32_t warp_id() { return threadIdx.x / 32; }
__device__ __forceinline__ uint32_t lane_id() { return threadIdx.x % 32; }

// The CTA's candidates, one per warp. Two calls in a row need different slots, or another barrier
// between them.
template <class T>
__device__ __forceinline__ void post_warp(Candidate<T> mine, Candidate<T>* slots) {
  mine = warp_argmax(mine);
  if (lane_id() == 0) slots[warp_id()] = mine;
  __syncthreads();
}

template <class T>
__device__ __forceinline__ Candidate<T> best_of(const Candidate<T>* slots) {
  Candidate<T> mine;
  if (lane_id() < blockDim.x / 32) mine = slots[lane_id()];
  return warp_argmax(mine);
}

// ---- cluster: messages into the shared memory of every member ----

// What a CTA tells the others: its furthest point.
struct alignas(16) Message {
  float4 point;  // w holds the index
  int32_t value;
  int32_t unused[3];
};
inline constexpr uint32_t kMessageBytes = sizeof(float4) + sizeof(int32_t);

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// Sends by stores that count themselves off at the receiver's barrier: one way, no answer.
__device__ __forceinline__ void send(uint32_t message, uint32_t barrier, float4 point,
                                     int32_t value) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, "
      "[%5];" ::"r"(message),
      "r"(__float_as_int(point.x)), "r"(__float_as_int(point.y)), "r"(__float_as_int(point.z)),
      "r"(__float_as_int(point.w)), "r"(barrier)
      : "memory");
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
          message + static_cast<uint32_t>(sizeof(float4))),
      "r"(value), "r"(barrier)
      : "memory");
}

#endif

// ---- grid: records in global memory that carry the number of their step ----

// Both halves are written and read as one 16-byte access each, so that a half with the awaited tag
// is whole, and no fence or barrier is needed.
struct alignas(32) GridRecord {
  uint64_t half[4];
};

struct Found {
  int64_t value;
  uint32_t index;
  float x, y, z;
};

__device__ __forceinline__ uint64_t pack(uint32_t low, uint32_t high) {
  return static_cast<uint64_t>(high) << 32 | low;
}

__device__ __forceinline__ void store_half(uint64_t* half, uint64_t a, uint64_t b) {
  asm volatile(
      "{\n.reg .b128 whole;\n"
      "mov.b128 whole, {%1, %2};\n"
      "st.relaxed.gpu.global.b128 [%0], whole;\n}" ::"l"(half),
      "l"(a), "l"(b)
      : "memory");
}

__device__ __forceinline__ void load_half(const uint64_t* half, uint64_t& a, uint64_t& b) {
  asm volatile(
      "{\n.reg .b128 whole;\n"
      "ld.relaxed.gpu.global.b128 whole, [%2];\n"
      "mov.b128 {%0, %1}, whole;\n}"
      : "=l"(a), "=l"(b)
      : "l"(half)
      : "memory");
}

__device__ __forceinline__ void post(GridRecord* record, const Found& found, uint32_t tag) {
  store_half(record->half, static_cast<uint64_t>(found.value), pack(found.index, tag));
  store_half(record->half + 2, pack(__float_as_uint(found.x), __float_as_uint(found.y)),
             pack(__float_as_uint(found.z), tag));
}

// Waits for the record of step `tag`.
__device__ __forceinline__ Found await(const GridRecord* record, uint32_t tag) {
  uint64_t value, index, xy, z;
  do {
    load_half(record->half, value, index);
    load_half(record->half + 2, xy, z);
  } while (static_cast<uint32_t>(index >> 32) != tag || static_cast<uint32_t>(z >> 32) != tag);
  return {static_cast<int64_t>(value), static_cast<uint32_t>(index),
          __uint_as_float(static_cast<uint32_t>(xy)),
          __uint_as_float(static_cast<uint32_t>(xy >> 32)),
          __uint_as_float(static_cast<uint32_t>(z))};
}

// The CTAs that work on one cloud.
struct Team {
  GridRecord* records;  // two per CTA, zeroed before the launch
  uint32_t size;
  uint32_t rank;
};

// The furthest point of the team: thread 0 posts the CTA's own, the first warps wait for all.
// `slots` may be reused after the next barrier of the CTA.
template <class T>
__device__ __forceinline__ Found team_argmax(const Found& own, const Team& team, uint32_t tag,
                                             Found* slots) {
  GridRecord* records = team.records + (tag & 1) * team.size;
  if (threadIdx.x == 0) post(records + team.rank, own, tag);
  const uint32_t pollers = min((team.size + 31) / 32, blockDim.x / 32);  // warps
  if (warp_id() < pollers) {
    Candidate<T> mine;
    Found found{mine.value, mine.index, 0, 0, 0};
    for (uint32_t r = threadIdx.x; r < team.size; r += blockDim.x) {
      const Found other = await(records + r, tag);
      const Candidate<T> candidate{static_cast<Bits<T>>(other.value), other.index};
      if (candidate.value > mine.value ||
          (candidate.value == mine.value && candidate.index < mine.index)) {
        mine = candidate;
        found = other;
      }
    }
    if (lane_of(mine.index == warp_argmax(mine).index) == static_cast<int>(lane_id())) {
      slots[warp_id()] = found;
    }
  }
  __syncthreads();
  Candidate<T> mine;
  if (lane_id() < pollers) {
    mine = {static_cast<Bits<T>>(slots[lane_id()].value), slots[lane_id()].index};
  }
  return slots[lane_of(mine.index == warp_argmax(mine).index)];
}

}  // namespace fusedops::fps
