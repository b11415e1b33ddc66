// The rotation of query and key rows in one launch. A row is cut into units of two vectors, which
// hold kVec pairs: a vector of either half, or two neighbours where pairs are interleaved. Behind
// the rotated elements a unit is copied. A thread has one unit of several heads of one token, so
// that it reads its part of the tables once.
#pragma once

#include "csrc/common/device/device_types.cuh"
#include "csrc/common/device/division.cuh"
#include "csrc/common/device/pdl.cuh"
#include "csrc/common/device/vec.cuh"

namespace fusedops {

inline constexpr int kRopeThreads = 256;
inline constexpr int kRopeHeads = 4;  // of a thread, where there are enough tokens

struct RopeRows {
  const void* in = nullptr;
  void* out = nullptr;
  int64_t heads = 0;
  // The strides of batch, time and heads, in elements.
  int64_t in_strides[3] = {};
  int64_t out_strides[3] = {};
};

struct RopeTable {
  const void* data = nullptr;
  int64_t strides[2] = {};  // of batch and time
};

struct RopeProblem {
  RopeRows q, k;
  RopeTable cos, sin;
  int64_t tokens = 0, time = 0;
  int64_t d = 0, rotary = 0;
  int64_t column_step = 1;    // between the table's columns of neighbouring pairs
  int64_t second_column = 0;  // from the column of a pair's first element to that of its second
  bool fp32_tables = false;   // beside half rows
  bool interleaved = false;
  bool inverse = false;
  // The launcher's.
  int64_t threads = 0, groups = 0;  // groups: of heads; a thread has every groups-th head
  Divider by_units, by_groups, by_time;
};

// kVec columns of a table from the pair `first` on.
template <class C, int kVec, class S>
__device__ __forceinline__ void load_columns(const S* row, int64_t first, int64_t step,
                                             C (&values)[kVec]) {
  if (step == 1) {
    const auto v = *reinterpret_cast<const Vec<S, kVec>*>(row + first);
#pragma unroll
    for (int i = 0; i < kVec; ++i) values[i] = to_compute(v.value[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kVec; ++i) values[i] = to_compute(row[(first + i) * step]);
  }
}

template <class T, int kVec>
__device__ __forceinline__ void load_table(const RopeTable& table, const RopeProblem& p, int64_t b,
                                           int64_t t, int64_t pair, int64_t column,
                                           Compute<T> (&values)[kVec]) {
  const int64_t row = b * table.strides[0] + t * table.strides[1] + column;
  if (p.fp32_tables) {
    float wide[kVec];
    load_columns(static_cast<const float*>(table.data) + row, pair, p.column_step, wide);
#pragma unroll
    for (int i = 0; i < kVec; ++i) values[i] = wide[i];
  } else {
    load_columns(static_cast<const T*>(table.data) + row, pair, p.column_step, values);
  }
}

// What kVec pairs are rotated by: first and second elements have columns of their own.
template <class C, int kVec>
struct Angles {
  C cos_a[kVec], cos_b[kVec];
  C sin_a[kVec], sin_b[kVec];  // what of the other element is taken from the first, added to b
};

template <class T, class C, int kVec>
__device__ __forceinline__ void load_angles(const RopeProblem& p, int64_t b, int64_t t,
                                            int64_t pair, Angles<C, kVec>& angles) {
  load_table<T>(p.cos, p, b, t, pair, 0, angles.cos_a);
  load_table<T>(p.sin, p, b, t, pair, 0, angles.sin_a);
  if (p.second_column != 0) {
    load_table<T>(p.cos, p, b, t, pair, p.second_column, angles.cos_b);
    load_table<T>(p.sin, p, b, t, pair, p.second_column, angles.sin_b);
  }
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    if (p.second_column == 0) {
      angles.cos_b[i] = angles.cos_a[i];
      angles.sin_b[i] = angles.sin_a[i];
    }
    if (p.inverse) {
      const C sin_a = angles.sin_a[i];
      angles.sin_a[i] = -angles.sin_b[i];
      angles.sin_b[i] = -sin_a;
    }
  }
}

// x a + y b, rounded in one order: the compiler would fuse one or the other product by kernel, and
// bits would depend on strides.
__device__ __forceinline__ float sum_of_products(float x, float a, float y, float b) {
  return __fmaf_rn(y, b, __fmul_rn(x, a));
}
__device__ __forceinline__ double sum_of_products(double x, double a, double y, double b) {
  return __fma_rn(y, b, __dmul_rn(x, a));
}

template <class T, class C, int kVec>
__device__ __forceinline__ void rotate_pair(T& x, T& y, const Angles<C, kVec>& angles, int i) {
  const C a = to_compute(x), b = to_compute(y);
  x = from_compute<T>(sum_of_products(a, angles.cos_a[i], -b, angles.sin_a[i]));
  y = from_compute<T>(sum_of_products(b, angles.cos_b[i], a, angles.sin_b[i]));
}

template <class T, class C, int kVec>
__device__ __forceinline__ void rotate_unit(Vec<T, kVec>& low, Vec<T, kVec>& high,
                                            const Angles<C, kVec>& angles, bool interleaved) {
  if (kVec == 1 || !interleaved) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) rotate_pair(low.value[i], high.value[i], angles, i);
  } else {
    constexpr int kHalf = kVec / 2;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      rotate_pair(low.value[2 * i], low.value[2 * i + 1], angles, i);
      rotate_pair(high.value[2 * i], high.value[2 * i + 1], angles, kHalf + i);
    }
  }
}

template <class T, int kVec>
__global__ void __launch_bounds__(kRopeThreads) rope_kernel(const __grid_constant__ RopeProblem p) {
  using C = Compute<T>;
  using V = Vec<T, kVec>;
  wait_for_predecessor();
  const int64_t thread = int64_t{blockIdx.x} * kRopeThreads + threadIdx.x;
  if (thread >= p.threads) return;

  // Unit, heads and token of the thread
  const int64_t row = p.by_units.divide(thread), unit = thread - row * p.by_units.divisor;
  const int64_t token = p.by_groups.divide(row), group = row - token * p.groups;
  const int64_t b = p.by_time.divide(token), t = token - b * p.time;
  const int64_t pair = unit * kVec, half = p.rotary / 2;
  const bool rotates = pair < half;
  const bool halves = rotates && !p.interleaved;
  const int64_t low = halves ? pair : 2 * pair;
  const int64_t high = low + (halves ? half : kVec);

  Angles<C, kVec> angles;
  if (rotates) load_angles<T>(p, b, t, pair, angles);

  // All heads on their way, then rotated one by one
  V lows[kRopeHeads], highs[kRopeHeads];
  T* to[kRopeHeads];
#pragma unroll
  for (int j = 0; j < kRopeHeads; ++j) {
    const int64_t head = group + j * p.groups;
    to[j] = nullptr;
    if (head >= p.q.heads + p.k.heads) continue;
    const bool of_q = head < p.q.heads;
    const RopeRows& rows = of_q ? p.q : p.k;
    const int64_t h = of_q ? head : head - p.q.heads;
    const T* from = static_cast<const T*>(rows.in) + b * rows.in_strides[0] +
                    t * rows.in_strides[1] + h * rows.in_strides[2];
    to[j] = static_cast<T*>(rows.out) + b * rows.out_strides[0] + t * rows.out_strides[1] +
            h * rows.out_strides[2];
    lows[j] = *reinterpret_cast<const V*>(from + low);
    if (high < p.d) highs[j] = *reinterpret_cast<const V*>(from + high);
  }
#pragma unroll
  for (int j = 0; j < kRopeHeads; ++j) {
    if (to[j] == nullptr) continue;
    if (rotates) rotate_unit(lows[j], highs[j], angles, p.interleaved);
    *reinterpret_cast<V*>(to[j] + low) = lows[j];
    if (high < p.d) *reinterpret_cast<V*>(to[j] + high) = highs[j];
  }
}

// ---- host ----

template <class T, int kVec>
bool rope_vectors_fit(const RopeProblem& p) {
  const auto fits = [](const void* data, int64_t bytes, const auto& strides) {
    bool whole = reinterpret_cast<uintptr_t>(data) % bytes == 0;
    for (const int64_t stride : strides) whole = whole && stride % kVec == 0;
    return whole;
  };
  constexpr int64_t kBytes = kVec * sizeof(T);
  const int64_t table_bytes = p.fp32_tables ? kVec * sizeof(float) : kBytes;
  bool fit = p.rotary % (2 * kVec) == 0 && p.d % (2 * kVec) == 0;
  for (const RopeRows* rows : {&p.q, &p.k}) {
    if (rows->heads == 0) continue;
    fit = fit && fits(rows->in, kBytes, rows->in_strides) &&
          fits(rows->out, kBytes, rows->out_strides);
  }
  for (const RopeTable* table : {&p.cos, &p.sin}) {
    fit = fit && fits(table->data, table_bytes, table->strides);
  }
  return fit;
}

template <class T, int kVec>
cudaError_t launch_rope_of(RopeProblem p, int sm_count, cudaStream_t stream, bool overlap) {
  const int64_t units = ceil_div(p.d, 2 * kVec), heads = p.q.heads + p.k.heads;
  // NOTE: a thread for each head while the GPU is not full: of a decoder's step, say.
  const bool many = p.tokens * units * heads >= int64_t{sm_count} * 2048 * kRopeHeads;
  p.groups = many ? ceil_div(heads, kRopeHeads) : heads;
  p.threads = p.tokens * p.groups * units;
  p.by_units = Divider(units);
  p.by_groups = Divider(p.groups);
  p.by_time = Divider(p.time);
  const int64_t blocks = ceil_div(p.threads, kRopeThreads);
  return launch_kernel(rope_kernel<T, kVec>, dim3(static_cast<unsigned>(blocks)),
                       dim3(kRopeThreads), 0, stream, overlap, p);
}

// Needs at least one token and one head.
template <class T>
cudaError_t launch_rope(const RopeProblem& p, int sm_count, cudaStream_t stream, bool overlap) {
  constexpr int kVec = 16 / sizeof(T);
  return rope_vectors_fit<T, kVec>(p) ? launch_rope_of<T, kVec>(p, sm_count, stream, overlap)
                                      : launch_rope_of<T, 1>(p, sm_count, stream, overlap);
}

}  // namespace fusedops
