// d = act(w @ x + bias) for one row x: every row of w is read once, 16 bytes at a time wherever it
// begins.
//
// A unit of 16 bytes of w meets as many elements of x. Rows of w that begin at the same place of a
// unit meet x at the same ones: a block has such rows alone, and x in shared memory from there on.
// What comes before the first unit of a row and behind its last one is multiplied element by
// element. Sums are in fp32; warps, then the blocks of a cluster add theirs in their order.
#pragma once

#include "csrc/common/device/activation.cuh"
#include "csrc/common/device/mbarrier.cuh"
#include "csrc/common/device/pdl.cuh"
#include "csrc/common/device/unaligned.cuh"
#include "csrc/common/device/vec.cuh"
#include "csrc/cutlass/configs/dots_problem.h"

namespace fusedops::thin {

struct DotsParams {
  Dots problem;
  DotsPlan plan;
};

struct Unit {
  uint32_t words[4];
};

// The unit at any element, all of which the `count` elements of the row hold. Aligned ones around
// it are read where the row holds them, too.
template <class T>
__device__ __forceinline__ Unit unit_at(const T* row, int64_t count, int64_t first) {
  constexpr int kUnit = 16 / sizeof(T);
  const auto address = reinterpret_cast<uintptr_t>(row + first);
  const int bytes = int(address % 16), before = bytes / int(sizeof(T));
  const auto* aligned = reinterpret_cast<const uint4*>(address - bytes);
  if (bytes == 0) return __builtin_bit_cast(Unit, *aligned);
  Unit unit;
  if (first < before || first - before + 2 * kUnit > count) {
    auto* elements = reinterpret_cast<T*>(unit.words);
#pragma unroll
    for (int i = 0; i < kUnit; ++i) elements[i] = row[first + i];
    return unit;
  }
  return __builtin_bit_cast(Unit, bytes_behind(aligned[0], aligned[1], unsigned(bytes)));
}

template <class T>
__device__ __forceinline__ void widen(const Unit& unit, float (&values)[16 / sizeof(T)]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      values[i] = __uint_as_float(unit.words[i]);
    } else if constexpr (__is_same(T, __nv_bfloat16)) {
      values[2 * i] = __uint_as_float(unit.words[i] << 16);
      values[2 * i + 1] = __uint_as_float(unit.words[i] & 0xffff0000u);
    } else {
      const auto pair = __half22float2(reinterpret_cast<const __half2&>(unit.words[i]));
      values[2 * i] = pair.x;
      values[2 * i + 1] = pair.y;
    }
  }
}

// The rows of w of a warp, and which part of K it has. Rows beyond the last are the last one again.
template <class T, int kRows>
struct DotRows {
  const T* row[kRows];
  int64_t number[kRows];
  int head;        // elements before the first unit
  int begin, end;  // units of the block
  bool is_first;   // of those that share K

  __device__ __forceinline__ DotRows(const DotsParams& p) {
    constexpr int kUnit = 16 / sizeof(T);
    const Dots& d = p.problem;
    const int64_t block = blockIdx.x / p.plan.cluster;
    const int rank = int(blockIdx.x % p.plan.cluster);
    const int64_t place = block % p.plan.period;
    const int group = int(threadIdx.x) / 32 / p.plan.warps;
    const int64_t first = block / p.plan.period * p.plan.block_rows() + group * kRows;
    const T* w = static_cast<const T*>(d.w);
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      number[j] = place + (first + j) * p.plan.period;
      row[j] = w + min(number[j], place + (d.n - 1 - place) / p.plan.period * p.plan.period) *
                       d.w_stride;
    }
    const int inside = int(reinterpret_cast<uintptr_t>(w + place * d.w_stride) % 16 / sizeof(T));
    head = int(min(int64_t{(kUnit - inside) % kUnit}, d.k));
    const int units = int((d.k - head) / kUnit);
    begin = min(rank * p.plan.slice, units);
    end = min(begin + p.plan.slice, units);
    is_first = rank == 0 && int(threadIdx.x) / 32 % p.plan.warps == 0;
  }
};

template <class T, int kRows>
struct DotSums {
  static constexpr int kUnit = 16 / sizeof(T);
  float sum[kRows];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int j = 0; j < kRows; ++j) sum[j] = 0.0f;
  }
  // The units w of the rows by that of x in shared memory.
  __device__ __forceinline__ void add(const Unit (&w)[kRows], const Unit* x) {
    float values[kUnit];
    const auto four = *reinterpret_cast<const Vec<uint32_t, 4>*>(x);
    widen<T>(Unit{{four.value[0], four.value[1], four.value[2], four.value[3]}}, values);
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      float wide[kUnit];
      widen<T>(w[j], wide);
#pragma unroll
      for (int i = 0; i < kUnit; ++i) sum[j] = fmaf(values[i], wide[i], sum[j]);
    }
  }
  // The elements of K that are in no unit: lanes have one each.
  __device__ __forceinline__ void add_ends(const Dots& p, const DotRows<T, kRows>& rows) {
    const int lane = threadIdx.x % 32, tail = int((p.k - rows.head) % kUnit);
    if (lane >= rows.head + tail) return;
    const int64_t k = lane < rows.head ? lane : p.k - tail + lane - rows.head;
    const float value = to_compute(static_cast<const T*>(p.x)[k]);
#pragma unroll
    for (int j = 0; j < kRows; ++j) sum[j] = fmaf(value, to_compute(rows.row[j][k]), sum[j]);
  }
  __device__ __forceinline__ void join_lanes() {
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sum[j] += __shfl_xor_sync(~0u, sum[j], step);
    }
  }
};

// The units of x from an element on.
template <class T>
__device__ __forceinline__ void stage_x(const Dots& p, int64_t first, int units, Unit* shared) {
  constexpr int kUnit = 16 / sizeof(T);
#pragma unroll 4
  for (int i = threadIdx.x; i < units; i += kDotThreads) {
    const Unit unit = unit_at(static_cast<const T*>(p.x), p.k, first + int64_t{i} * kUnit);
    *reinterpret_cast<Vec<uint32_t, 4>*>(shared + i) = {
        {unit.words[0], unit.words[1], unit.words[2], unit.words[3]}};
  }
}

__device__ __forceinline__ float float_of_rank(const float* shared, int rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const auto own = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];"
               : "=f"(value)
               : "r"(cluster_address(own, static_cast<uint32_t>(rank))));
  return value;
#else
  return *shared;
#endif
}

template <class T>
__device__ __forceinline__ void store_dot(const Dots& p, int64_t n, float sum) {
  const float z = sum + (p.bias ? to_compute(static_cast<const T*>(p.bias)[n]) : 0.0f);
  if (p.preact) static_cast<T*>(p.preact)[n] = from_compute<T>(z);
  with_activation(p.activation, [&]<Activation kActivation>() {
    resolve_rare<kActivation>(p.activation, [&]<Activation kNow>() {
      static_cast<T*>(p.d)[n] = from_compute<T>(activate_as<kNow, kAccuracyOf<T>>(z));
    });
  });
}

template <class T, int kRows>
__global__ void __launch_bounds__(kDotThreads, 2)
    dots_kernel(const __grid_constant__ DotsParams p) {
  constexpr int kAhead = 8 / kRows;
  extern __shared__ __align__(16) uint32_t shared_words[];
  auto* x = reinterpret_cast<Unit*>(shared_words);
  auto* sums = reinterpret_cast<float*>(x + p.plan.slice);
  float* own = sums + kDotWarps * kRows;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = p.plan.warps;

  wait_for_predecessor();
  const DotRows<T, kRows> rows(p);
  const int step = 32 * warps;
  const Unit* units[kRows];
#pragma unroll
  for (int j = 0; j < kRows; ++j) {
    units[j] = reinterpret_cast<const Unit*>(rows.row[j] + rows.head) + rows.begin;
  }
  const int count = rows.end - rows.begin;
  Unit w[kAhead][kRows];
  const auto load = [&](int at) {
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        if (at + a * step >= count) continue;
        const auto four = __ldcs(reinterpret_cast<const uint4*>(units[j] + at + a * step));
        w[a][j] = {{four.x, four.y, four.z, four.w}};
      }
    }
  };
  // The first units are on their way while x comes.
  int at = warp % warps * 32 + lane;
  load(at);
  stage_x<T>(p.problem, rows.head + rows.begin * (16 / int64_t{sizeof(T)}), count, x);
  __syncthreads();
  DotSums<T, kRows> dots;
  dots.clear();
  while (at < count) {
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (at + a * step < count) dots.add(w[a], x + at + a * step);
    }
    at += kAhead * step;
    load(at);
  }
  if (rows.is_first) dots.add_ends(p.problem, rows);
  dots.join_lanes();
  if (lane == 0) {
#pragma unroll
    for (int j = 0; j < kRows; ++j) sums[warp * kRows + j] = dots.sum[j];
  }
  __syncthreads();
  const int cluster = p.plan.cluster, t = threadIdx.x;
  const bool has_one = t < p.plan.groups() * kRows;
  float sum = 0.0f;
  if (has_one) {
    for (int i = 0; i < warps; ++i) sum += sums[(t / kRows * warps + i) * kRows + t % kRows];
    own[t] = sum;
  }
  if (cluster > 1) {
    cluster_sync();
    if (has_one && blockIdx.x % cluster == 0) {
      for (int i = 1; i < cluster; ++i) sum += float_of_rank(own + t, i);
    }
    cluster_sync();  // until nobody reads this block's sums
  }
  const int64_t block = blockIdx.x / cluster;
  const int64_t first = block / p.plan.period * p.plan.block_rows() + t / kRows * kRows;
  const int64_t n = block % p.plan.period + (first + t % kRows) * p.plan.period;
  if (has_one && blockIdx.x % cluster == 0 && n < p.problem.n) store_dot<T>(p.problem, n, sum);
}

}  // namespace fusedops::thin
