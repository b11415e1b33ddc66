// Batch statistics of rows that count, and the extrema of groups of rows, in one read. A thread
// sums differences to its first row; blocks and the last kernel merge means and squares by the
// formula of Chan, Golub and LeVeque (1979): a mean of a thousand standard deviations leaves them
// their digits.
#pragma once

#include "csrc/cuda/points/edge_rows/row_walk.cuh"

namespace fusedops {

template <class T>
struct RowStatistics {
  const T* y;           // (groups * k, channels)
  const bool* valid;    // (groups * k,), or null
  const float* weight;  // (channels,), or null: its sign says which extremum
  int64_t groups;
  int k, channels;
  int split;  // threads that share a group
  RowGrid grid;
  float* partial;  // (row_blocks, 2, channels): mean, sum of squares about it; or null
  int* counts;     // (row_blocks,)
  T* best;         // (groups, channels), or null
  int* which;      // likewise
};

// Whether (v, k) comes before (best, at); at is -1 where there is none.
__device__ __forceinline__ bool row_wins(float v, int k, float best, int at) {
  if (k < 0 || at < 0) return at < 0 && k >= 0;
  const bool nan = v != v, best_nan = best != best;
  if (nan || best_nan) return nan && (!best_nan || k < at);
  return v > best || (v == best && k < at);
}

// A thread's sums of its channels.
struct RowMoments {
  float origin[kRowVec], sum[kRowVec], square[kRowVec];
  int count = 0;

  template <class T>
  __device__ __forceinline__ void add(const RowVec<T>& row) {
    if (count == 0) {
#pragma unroll
      for (int i = 0; i < kRowVec; ++i) {
        origin[i] = to_compute(row.value[i]);
        sum[i] = square[i] = 0;
      }
    }
    ++count;
#pragma unroll
    for (int i = 0; i < kRowVec; ++i) {
      const float d = to_compute(row.value[i]) - origin[i];
      sum[i] += d;
      square[i] += d * d;
    }
  }
};

// Merges the moments of a block's threads, channel by channel, and stores them.
template <class T>
__device__ __forceinline__ void store_moments(const RowStatistics<T>& p, const RowPlace& at,
                                              const RowMoments& own, float* means, float* squares,
                                              int* counts) {
  const int width = p.grid.threads_x * kRowVec;
  __syncthreads();
  if (at.ty < p.grid.threads_y) {
    if (at.tx == 0) counts[at.ty] = own.count;
    const float n = static_cast<float>(max(own.count, 1));
#pragma unroll
    for (int i = 0; i < kRowVec; ++i) {
      const bool some = own.count > 0;
      const float shift = some ? own.sum[i] / n : 0.f;
      means[at.ty * width + at.tx * kRowVec + i] = some ? own.origin[i] + shift : 0.f;
      squares[at.ty * width + at.tx * kRowVec + i] =
          some ? own.square[i] - own.sum[i] * shift : 0.f;
    }
  }
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < width; c += kRowThreads) {
    if (at.first_col + c >= p.channels) break;
    float mean = 0, square = 0;
    int count = 0;
    for (int y = 0; y < p.grid.threads_y; ++y) {
      const int n = counts[y];
      if (n == 0) continue;
      const float share = static_cast<float>(n) / static_cast<float>(count + n);
      const float away = means[y * width + c] - mean;
      mean = count == 0 ? means[y * width + c] : mean + away * share;
      if (count > 0) square += away * away * share * static_cast<float>(count);
      square += squares[y * width + c];
      count += n;
    }
    float* const to = p.partial + static_cast<int64_t>(at.row_block) * 2 * p.channels;
    to[at.first_col + c] = mean;
    to[p.channels + at.first_col + c] = square;
    if (at.first_col + c == 0) p.counts[at.row_block] = count;
  }
}

// kPool: extrema of groups as well; without it a group is a row.
template <class T, bool kPool, bool kSums>
__global__ void __launch_bounds__(kRowThreads, 2)
    edge_rows_statistics_kernel(const __grid_constant__ RowStatistics<T> p) {
  __shared__ float values[2][kRowThreads * kRowVec];
  __shared__ int places[kRowThreads * kRowVec];
  const RowPlace at(p.grid, p.channels);
  const int width = p.grid.threads_x * kRowVec;
  const int own = at.ty % p.split, per_step = p.grid.threads_y / p.split;
  RowMoments moments;
  float sign[kRowVec];
  if constexpr (kPool) {
#pragma unroll
    for (int i = 0; i < kRowVec; ++i) {
      const float weight = p.weight && at.active ? p.weight[at.col + i] : 1.f;
      sign[i] = weight > 0 ? 1.f : weight < 0 ? -1.f : 0.f;
    }
  }
  const int64_t step = int64_t{p.grid.row_blocks} * per_step;
  for (int64_t base = int64_t{at.row_block} * per_step; base < p.groups; base += step) {
    const int64_t group = base + at.ty / p.split;
    const bool works = at.active && group < p.groups;
    float best[kRowVec];
    int which[kRowVec];
#pragma unroll
    for (int i = 0; i < kRowVec; ++i) best[i] = 0, which[i] = -1;
    for (int first = own; works && first < p.k; first += kRowUnroll * p.split) {
      RowVec<T> rows[kRowUnroll];
      bool counts[kRowUnroll];
#pragma unroll
      for (int u = 0; u < kRowUnroll; ++u) {
        const int k = first + u * p.split;
        const int64_t row = group * p.k + k;
        counts[u] = k < p.k && (p.valid == nullptr || p.valid[row]);
        if (counts[u]) rows[u] = load_row(p.y, row, p.channels, at.col);
      }
#pragma unroll
      for (int u = 0; u < kRowUnroll; ++u) {
        if (!counts[u]) continue;
        if constexpr (kSums) moments.add(rows[u]);
        if constexpr (kPool) {
#pragma unroll
          for (int i = 0; i < kRowVec; ++i) {
            const float v = sign[i] * to_compute(rows[u].value[i]);
            // NOTE: a later one wins by more alone, or as the first NaN.
            if (which[i] < 0 || v > best[i] || (v != v && best[i] == best[i])) {
              best[i] = v;
              which[i] = first + u * p.split;
            }
          }
        }
      }
    }
    if constexpr (kPool) {
      if (p.split > 1) {
        __syncthreads();
        if (at.ty < p.grid.threads_y) {
#pragma unroll
          for (int i = 0; i < kRowVec; ++i) {
            values[0][at.ty * width + at.tx * kRowVec + i] = best[i];
            places[at.ty * width + at.tx * kRowVec + i] = which[i];
          }
        }
        __syncthreads();
        for (int other = 1; works && own == 0 && other < p.split; ++other) {
#pragma unroll
          for (int i = 0; i < kRowVec; ++i) {
            const int place = (at.ty + other) * width + at.tx * kRowVec + i;
            if (!row_wins(values[0][place], places[place], best[i], which[i])) continue;
            best[i] = values[0][place];
            which[i] = places[place];
          }
        }
      }
      if (works && own == 0) {
        RowVec<T> found;
        Vec<int, kRowVec> where;
#pragma unroll
        for (int i = 0; i < kRowVec; ++i) {
          const int64_t row = group * p.k + which[i];
          found.value[i] = which[i] < 0 ? from_compute<T>(0.f) : p.y[row * p.channels + at.col + i];
          where.value[i] = which[i];
        }
        const int64_t to = group * p.channels + at.col;
        *reinterpret_cast<RowVec<T>*>(p.best + to) = found;
#pragma unroll
        for (int i = 0; i < kRowVec; i += 4) {
          Vec<int, 4> part;
#pragma unroll
          for (int j = 0; j < 4; ++j) part.value[j] = where.value[i + j];
          *reinterpret_cast<Vec<int, 4>*>(p.which + to + i) = part;
        }
      }
    }
  }
  if constexpr (kSums) store_moments(p, at, moments, values[0], values[1], places);
}

// What becomes of the statistics.
struct RowStatisticsEnd {
  const float* partial;  // null: the running ones are taken
  const int* counts;
  int row_blocks, channels;
  int64_t rows;  // that count, where there are no partial sums
  const float *weight, *bias, *shift;
  float *running_mean, *running_var;
  const float* share;  // of this batch in them, or null: momentum
  float momentum, eps;
  float* stats;  // (kRowStatistics, channels)
};

inline constexpr int kRowJoined = 9;  // blocks' sums that a thread reads at a time: 288 in all

// A block of (32, kRowSlices) threads has 32 channels.
static __global__ void __launch_bounds__(32 * kRowSlices)
    edge_rows_statistics_end_kernel(const __grid_constant__ RowStatisticsEnd p) {
  __shared__ double shared[3][kRowSlices][32];
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int channel = static_cast<int>(blockIdx.x) * 32 + x;
  const bool active = channel < p.channels;
  double count = 0, offset = 0, square = 0, reference = 0;
  if (p.partial && active) {
    for (int b = 0; b < p.row_blocks; ++b) {
      if (p.counts[b] == 0) continue;
      reference = p.partial[static_cast<int64_t>(b) * 2 * p.channels + channel];
      break;
    }
    for (int first = y; first < p.row_blocks; first += kRowJoined * kRowSlices) {
      int n[kRowJoined];
      float mean[kRowJoined], within[kRowJoined];
#pragma unroll
      for (int u = 0; u < kRowJoined; ++u) {
        const int b = min(first + u * kRowSlices, p.row_blocks - 1);
        const float* const from = p.partial + static_cast<int64_t>(b) * 2 * p.channels + channel;
        n[u] = p.counts[b], mean[u] = from[0], within[u] = from[p.channels];
      }
#pragma unroll
      for (int u = 0; u < kRowJoined; ++u) {
        if (first + u * kRowSlices >= p.row_blocks || n[u] == 0) continue;
        const double away = mean[u] - reference;
        count += n[u];
        offset += n[u] * away;
        square += within[u] + n[u] * away * away;
      }
    }
  }
  shared[0][y][x] = count, shared[1][y][x] = offset, shared[2][y][x] = square;
  __syncthreads();
  if (y != 0 || !active) return;
  for (int slice = 1; slice < kRowSlices; ++slice) {
    count += shared[0][slice][x];
    offset += shared[1][slice][x];
    square += shared[2][slice][x];
  }
  const double shift = p.shift ? p.shift[channel] : 0.0;
  double mean = 0, var = 0;
  float rstd = 1;
  if (p.partial) {
    const double some = count > 0 ? count : 1;
    mean = reference + offset / some;
    const double centred = square - offset * offset / some;
    var = (centred < 0 ? 0 : centred) / some;  // NaN stays
    rstd = static_cast<float>(1 / sqrt(var + p.eps));
    if (count > 0 && p.running_mean) {
      const double share = p.share ? *p.share : p.momentum;
      const double unbiased = var * (some / (some > 1 ? some - 1 : 1));
      float &to_mean = p.running_mean[channel], &to_var = p.running_var[channel];
      to_mean = static_cast<float>((1 - share) * to_mean + share * (mean + shift));
      to_var = static_cast<float>((1 - share) * to_var + share * unbiased);
    }
  } else {
    count = static_cast<double>(p.rows);
    mean = (p.running_mean ? p.running_mean[channel] : 0.0) - shift;
    if (p.running_var) {
      rstd = static_cast<float>(1 / sqrt(double{p.running_var[channel]} + p.eps));
    }
  }
  const float weight = p.weight ? p.weight[channel] : 1.f;
  p.stats[kRowMean * p.channels + channel] = static_cast<float>(mean);
  p.stats[kRowRstd * p.channels + channel] = rstd;
  p.stats[kRowScale * p.channels + channel] = weight * rstd;
  p.stats[kRowShift * p.channels + channel] = p.bias ? p.bias[channel] : 0.f;
  p.stats[kRowCount * p.channels + channel] = static_cast<float>(count);
}

}  // namespace fusedops
