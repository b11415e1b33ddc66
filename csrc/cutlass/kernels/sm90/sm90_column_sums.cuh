// Sums over the columns of what a warpgroup has of a tile, and their moments: each warp joins its
// rows by shuffles, at each of which a lane keeps one half of its columns and gives the other, and
// leaves them in shared memory for the four warps to be joined in order.
#pragma once

#include <cute/algorithm/tuple_algorithms.hpp>

namespace fusedops::sm90 {

// Column i of those that a thread has, as accumulators count them: rows r of the warpgroup's blocks
// of 64, two of each.
template <int kColumns>
__device__ __forceinline__ float column_value(const float* acc, int i, int r) {
  return acc[r / 2 * (kColumns / 2) + i / 2 * 4 + i % 2 + r % 2 * 2];
}

// The column in the tile of the i-th that a lane has kept of those from `first` on.
__device__ __forceinline__ int kept_column(int first, int i, int lane) {
  return (first + i) / 2 * 8 + lane % 4 * 2 + i % 2;
}

template <int kRowBlocks, int kColumns, class Sums>
__device__ __forceinline__ void column_sums(const float* acc, int thread, Sums& shared) {
  const int lane = thread % 32, warp = thread / 32;
  constexpr int kSums = kColumns / 4, kKept = kSums / 8;
  float sum[kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    sum[i] = 0.0f;
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
      sum[i] += column_value<kColumns>(acc, i, m * 2) + column_value<kColumns>(acc, i, m * 2 + 1);
    }
  }
  int first = 0;
  cute::for_each(cute::make_int_sequence<3>{}, [&](auto turn) {
    constexpr int kHalf = kSums / 2 >> turn, kStep = 4 << turn;
    const bool upper = lane & kStep;
    if (upper) first += kHalf;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float kept = upper ? sum[i + kHalf] : sum[i], given = upper ? sum[i] : sum[i + kHalf];
      sum[i] = kept + __shfl_xor_sync(~0u, given, kStep);
    }
  });
#pragma unroll
  for (int i = 0; i < kKept; i += 2) {
    float* const to = &shared[warp][kept_column(first, i, lane)];
    *reinterpret_cast<float2*>(to) = {sum[i], sum[i + 1]};
  }
}

// The mean of some rows, and the sum of squares about it.
struct Moments {
  float mean, square;
};

// How two groups of rows are joined, whatever the column (Chan, Golub and LeVeque, 1979).
struct Joint {
  float share, weight, count;  // of the second group's mean; of the squared difference; of rows
  __device__ __forceinline__ Joint(float first, float second)
      : share(second > 0.0f ? second / (first + second) : 0.0f),
        weight(first * share),
        count(first + second) {}
  __device__ __forceinline__ Moments operator()(const Moments& a, const Moments& b) const {
    const float away = b.mean - a.mean;
    return {a.mean + away * share, a.square + b.square + away * away * weight};
  }
};

// Joins what a lane keeps of two columns with what the lane `step` away gives of them.
template <class Join>
__device__ __forceinline__ Moments exchange(bool upper, int step, const Join& join,
                                            const Moments& low, const Moments& high) {
  const Moments kept{upper ? high.mean : low.mean, upper ? high.square : low.square};
  const float mean = upper ? low.mean : high.mean, square = upper ? low.square : high.square;
  return join(kept, {__shfl_xor_sync(~0u, mean, step), __shfl_xor_sync(~0u, square, step)});
}

// The columns of a warp. moments_of(i): those of this thread's rows of its i-th column; joint(step)
// joins with those of the lane so far away; finish() what has been joined.
template <int kColumns, class Sums, class MomentsOf, class JointOf, class Finish>
__device__ __forceinline__ void join_lanes(int thread, Sums& shared, MomentsOf&& moments_of,
                                           JointOf&& joint, Finish&& finish) {
  const int lane = thread % 32, warp = thread / 32;
  constexpr int kHalfSums = kColumns / 8, kKept = kColumns / 32;
  int first = 0;
  Moments moments[kHalfSums];
  cute::for_each(cute::make_int_sequence<3>{}, [&](auto turn) {
    constexpr int kHalf = kHalfSums >> turn, kStep = 4 << turn;
    const bool upper = lane & kStep;
    const auto join = joint(kStep);
    if (upper) first += kHalf;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      if constexpr (turn == 0) {
        moments[i] = exchange(upper, kStep, join, moments_of(i), moments_of(i + kHalf));
      } else {
        moments[i] = exchange(upper, kStep, join, moments[i], moments[i + kHalf]);
      }
    }
  });
#pragma unroll
  for (int i = 0; i < kKept; i += 2) {
    float* const to = &shared[warp][kept_column(first, i, lane) * 2];
    const Moments one = finish(moments[i]), other = finish(moments[i + 1]);
    *reinterpret_cast<float4*>(to) = {one.mean, one.square, other.mean, other.square};
  }
}

// rows: those of the warpgroup's that are inside of the matrix; the others hold zeros.
template <int kRowBlocks, int kColumns, class Sums>
__device__ __forceinline__ void column_moments(const float* acc, int thread, int rows,
                                               Sums& shared) {
  constexpr int kRows = kRowBlocks * 2;
  const auto value = [&](int i, int r) { return column_value<kColumns>(acc, i, r); };
  if (rows >= kRowBlocks * 64) {  // groups of as many rows: sums in place of means
    const auto own = [&](int i) {
      Moments found{};
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) {
        const float a = value(i, 2 * m), b = value(i, 2 * m + 1);
        const float sum = a + b, half = 0.5f * (a - b), away = found.mean - sum;
        found.square += 2.0f * half * half;
        if (m > 0) found.square += away * away * 0.25f;
        found.mean += sum;
      }
      return found;
    };
    float weight = 0.5f / kRows;  // of the squared difference of two sums
    const auto joint = [&](int) {
      const float now = weight;
      weight *= 0.5f;
      return [now](const Moments& a, const Moments& b) {
        const float away = a.mean - b.mean;
        return Moments{a.mean + b.mean, a.square + b.square + away * away * now};
      };
    };
    const auto scaled = [](const Moments& sums) {
      return Moments{sums.mean * (1.0f / (kRows * 8)), sums.square};
    };
    return join_lanes<kColumns>(thread, shared, own, joint, scaled);
  }
  const int lane = thread % 32, warp = thread / 32;
  float inside[kRows], count = 0.0f;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    inside[r] = r / 2 * 64 + warp * 16 + r % 2 * 8 + lane / 4 < rows ? 1.0f : 0.0f;
    count += inside[r];
  }
  const float share = count > 0.0f ? 1.0f / count : 0.0f;
  const auto own = [&](int i) {
    Moments found{};
#pragma unroll
    for (int r = 0; r < kRows; ++r) found.mean += value(i, r);
    found.mean *= share;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float away = value(i, r) - found.mean;
      found.square += inside[r] * (away * away);
    }
    return found;
  };
  const auto joint = [&](int step) {
    const Joint join(count, __shfl_xor_sync(~0u, count, step));
    count = join.count;
    return join;
  };
  join_lanes<kColumns>(thread, shared, own, joint, [](const Moments& found) { return found; });
}

// Those of a column that the four warps have left.
template <int kRowBlocks, class Sums>
__device__ __forceinline__ float2 joined_moments(const Sums& shared, int column, int rows) {
  Moments all{};
  float count = 0.0f;
#pragma unroll
  for (int warp = 0; warp < 4; ++warp) {
    int own = 0;
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) own += min(max(rows - m * 64 - warp * 16, 0), 16);
    const Joint join(count, float(own));
    const float2 of = *reinterpret_cast<const float2*>(&shared[warp][column * 2]);
    all = join(all, {of.x, of.y});
    count = join.count;
  }
  return {all.mean, all.square};
}

}  // namespace fusedops::sm90
