// Counts of the values of a tensor: bins of integers, or of equal width over floats.
//
// A block counts in shared memory with up to 32 copies of every bin, one per lane, so that no two
// lanes of a warp meet on an address or a bank: uniform and constant data run at the same speed.
// Counts are integers, so the order in which atomics land changes nothing: results repeat bitwise.
#pragma once

#include <algorithm>
#include <type_traits>

#include "csrc/common/device/vec.cuh"
#include "csrc/common/histogram_range.h"

namespace fusedops {

inline constexpr int kHistogramThreads = 1024;
inline constexpr int kHistogramVectors = 2;          // 16-byte loads in flight per thread
inline constexpr int kHistogramSharedBytes = 65536;  // two blocks of 1024 threads and their copies
inline constexpr int64_t kHistogramFlush = 1 << 30;  // elements of a block that 32 bits can count

// Element -> bin, or -1. The bin of integers is their value. kEvery: no value lies outside.
template <class T, bool kEvery>
struct ValueBins {
  static constexpr bool kBytes = kEvery && sizeof(T) == 1;  // the byte is the bin
  int bins;
  __device__ int operator()(T x) const {
    // NOTE: as unsigned, a negative value is a large one.
    using U = std::conditional_t<sizeof(T) == 8, uint64_t, unsigned>;
    return kEvery || static_cast<U>(x) < static_cast<U>(bins) ? static_cast<int>(x) : -1;
  }
};

// Bins of equal width over [low, high]; high falls into the last one. NaN belongs nowhere.
template <class T>
struct RangeBins {
  static constexpr bool kBytes = false;
  int bins;
  Compute<T> low, high;
  __device__ int operator()(T element) const {
    const Compute<T> x = to_compute(element);
    if (!(x >= low && x <= high)) return -1;
    const auto bin = static_cast<int>((x - low) * static_cast<Compute<T>>(bins) / (high - low));
    return bin < bins ? bin : bins - 1;
  }
};

// These bins divide a range that Compute<T> does not hold.
template <class T>
struct WideRangeBins {
  static constexpr bool kBytes = false;
  int bins;
  double low, high;
  __device__ int operator()(T element) const {
    using C = Compute<T>;
    const C x = to_compute(element);
    if (!(x >= static_cast<C>(low) && x <= static_cast<C>(high))) return -1;
    return static_cast<int>(wide_bin(x, low, high, bins));
  }
};

struct HistogramPlan {
  int copies;  // of every bin in shared memory; 0: straight into global memory
  int blocks;
  size_t shared_bytes;
};

inline HistogramPlan plan_histogram(int64_t vectors, int64_t bins, int sm_count, int shared_limit) {
  HistogramPlan plan{};
  const int64_t counters = shared_limit / 4;
  if (bins <= counters) {
    plan.copies = 1;
    while (plan.copies < 32 && 2 * plan.copies * bins * 4 <= kHistogramSharedBytes) {
      plan.copies *= 2;
    }
  }
  plan.shared_bytes = plan.copies * bins * 4;
  const int per_sm = plan.shared_bytes * 2 <= static_cast<size_t>(shared_limit) ? 2 : 1;
  // NOTE: clearing and adding up a block's bins must not cost more than counting.
  const int64_t least = std::max<int64_t>(1, plan.copies * bins / 4 / kHistogramThreads);
  plan.blocks = static_cast<int>(
      std::clamp<int64_t>(vectors / (least * kHistogramThreads * kHistogramVectors) + 1, 1,
                          int64_t{per_sm} * sm_count));
  return plan;
}

// Adds the block's counters to the result and clears them.
__device__ inline void flush_counters(unsigned* counter, int64_t bins, int copies,
                                      unsigned long long* out) {
  __syncthreads();
  for (int64_t b = threadIdx.x; b < bins; b += kHistogramThreads) {
    unsigned long long sum = 0;
    for (int c = 0; c < copies; ++c) {
      const int64_t at = b * copies + ((c + b) & (copies - 1));  // no two lanes on a bank
      sum += counter[at];
      counter[at] = 0;
    }
    if (sum != 0) atomicAdd(out + b, sum);
  }
  __syncthreads();
}

// Counts 16 bytes: a counter's offset is a shift and a mask of a word. mine: the lane's counter of
// bin 0; 32 copies of 4 bytes lie between two bins.
__device__ __forceinline__ void count_bytes(unsigned* mine, const uint4& bytes) {
  constexpr int kShift = 7;
  auto* const base = reinterpret_cast<unsigned char*>(mine);
  const uint32_t words[] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
  for (const uint32_t word : words) {
#pragma unroll
    for (int b = 0; b < 32; b += 8) {
      const uint32_t at =
          (b < kShift ? word << (kShift - b) : word >> (b - kShift)) & 255u << kShift;
      atomicAdd(reinterpret_cast<unsigned*>(base + at), 1u);
    }
  }
}

// kCopies: 32, what `copies` says (kSomeCopies), or none: straight into global memory.
inline constexpr int kSomeCopies = -1;

template <class T, class Bins, int kCopies>
__global__ void __launch_bounds__(kHistogramThreads)
    histogram_kernel(const T* __restrict__ x,  // (count,), of which `head` are unaligned
                     unsigned long long* out,  // (bins,), zero
                     int64_t count, int head, Bins bins, int some_copies) {
  constexpr int kVec = 16 / sizeof(T);
  using V = Vec<T, kVec>;
  const int copies = kCopies == kSomeCopies ? some_copies : kCopies;
  extern __shared__ unsigned counter[];
  const int64_t counters = int64_t{copies} * bins.bins;
  for (int64_t i = threadIdx.x; i < counters; i += kHistogramThreads) counter[i] = 0;
  __syncthreads();

  const int copy = static_cast<int>(threadIdx.x) & (copies - 1);
  const auto add = [&](T element) {
    const int bin = bins(element);
    if (bin < 0) return;
    if constexpr (kCopies != 0) {
      atomicAdd(counter + bin * copies + copy, 1u);
    } else {
      atomicAdd(out + bin, 1ull);
    }
  };

  // Whole vectors
  const int64_t vectors = (count - head) / kVec;
  const auto* body = reinterpret_cast<const uint4*>(x + head);
  constexpr int kStep = kHistogramThreads * kHistogramVectors;
  int64_t since_flush = 0;
  for (int64_t base = int64_t{blockIdx.x} * kStep; base < vectors; base += gridDim.x * kStep) {
    uint4 v[kHistogramVectors];
    const int64_t at = base + threadIdx.x;
#pragma unroll
    for (int u = 0; u < kHistogramVectors; ++u) {
      if (at + u * kHistogramThreads < vectors) v[u] = __ldcs(body + at + u * kHistogramThreads);
    }
#pragma unroll
    for (int u = 0; u < kHistogramVectors; ++u) {
      if (at + u * kHistogramThreads >= vectors) break;
      if constexpr (Bins::kBytes && kCopies == 32) {
        count_bytes(counter + copy, v[u]);
      } else {
        const auto elements = __builtin_bit_cast(V, v[u]);
#pragma unroll
        for (int i = 0; i < kVec; ++i) add(elements.value[i]);
      }
    }
    since_flush += kStep * kVec;
    if (kCopies != 0 && since_flush >= kHistogramFlush) {
      flush_counters(counter, bins.bins, copies, out);
      since_flush = 0;
    }
  }

  // Elements before and after them
  if (blockIdx.x == 0) {
    for (int64_t i = threadIdx.x; i < head; i += kHistogramThreads) add(x[i]);
    for (int64_t i = head + vectors * kVec + threadIdx.x; i < count; i += kHistogramThreads) {
      add(x[i]);
    }
  }
  if (kCopies != 0) flush_counters(counter, bins.bins, copies, out);
}

}  // namespace fusedops
