// Batch statistics of rows that count, and the extrema of groups of rows, in one read. A thread
// sums differences to its first row; blocks and the last kernel merge means and squares by the
// formula of Chan, Golub and LeVeque (1979): a mean of a thousand standard deviations leaves them
// their digits.
#pragma once

#include "csrc/cuda/points/block_sums.cuh"
#include "csrc/cuda/points/edge_rows/row_queue.cuh"

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

struct MomentsStorage {
  float means[kRowThreads * kRowVec], squares[kRowThreads * kRowVec];
  int counts[kRowThreads];
};

// The rows on their way, then what they came to.
template <class T>
union StatisticsStorage {
  typename RowQueue<T, 1>::Storage queue;
  MomentsStorage moments;
};

// Merges the moments of a block's threads, channel by channel, and stores them.
template <class T>
__device__ __forceinline__ void store_moments(const RowStatistics<T>& p, const RowPlace& at,
                                              const RowMoments& own, MomentsStorage& shared) {
  float *const means = shared.means, *const squares = shared.squares;
  int* const counts = shared.counts;
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

// The moments of all rows that count.
template <class T>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    edge_rows_statistics_kernel(const __grid_constant__ RowStatistics<T> p) {
  using Queue = RowQueue<T, 1>;
  __shared__ StatisticsStorage<T> shared;
  const RowPlace at(p.grid, p.channels);
  RowMoments moments;
  if (at.active) {
    Queue queue(shared.queue, {p.y}, p.valid, p.channels, at.col);
    queue.for_each(p.grid, at, p.groups, [&](int64_t, int u) {
      if (queue.counts(u)) moments.add(queue.row(u, 0));
    });
  }
  store_moments(p, at, moments, shared.moments);
}

// What a thread has found in its rows of a group.
struct RowExtrema {
  float best[kRowVec];
  int which[kRowVec];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kRowVec; ++i) best[i] = 0, which[i] = -1;
  }
  template <class T>
  __device__ __forceinline__ void add(const RowVec<T>& row, const float (&sign)[kRowVec], int k) {
#pragma unroll
    for (int i = 0; i < kRowVec; ++i) {
      const float v = sign[i] * to_compute(row.value[i]);
      // NOTE: a later one wins by more alone, or as the first NaN.
      if (which[i] < 0 || v > best[i] || (v != v && best[i] == best[i])) best[i] = v, which[i] = k;
    }
  }
};

// The values of the winners and their rows.
template <class T>
__device__ __forceinline__ void store_extrema(const RowStatistics<T>& p, int64_t group, int col,
                                              const RowExtrema& found) {
  RowVec<T> best;
#pragma unroll
  for (int i = 0; i < kRowVec; ++i) {
    const int64_t row = group * p.k + found.which[i];
    best.value[i] = found.which[i] < 0 ? from_compute<T>(0.f) : p.y[row * p.channels + col + i];
  }
  const int64_t to = group * p.channels + col;
  *reinterpret_cast<RowVec<T>*>(p.best + to) = best;
#pragma unroll
  for (int i = 0; i < kRowVec; i += 4) {
    Vec<int, 4> part;
#pragma unroll
    for (int j = 0; j < 4; ++j) part.value[j] = found.which[i + j];
    *reinterpret_cast<Vec<int, 4>*>(p.which + to + i) = part;
  }
}

// What threads that share a group show each other.
struct ExtremaStorage {
  float best[kRowThreads * kRowVec];
  int which[kRowThreads * kRowVec];
};

// Joins what the threads of a group have found, in the first of them. All threads call it.
template <class T>
__device__ __forceinline__ void join_extrema(const RowStatistics<T>& p, const RowPlace& at,
                                             bool joins, RowExtrema& found,
                                             ExtremaStorage& shared) {
  const int width = p.grid.threads_x * kRowVec;
  __syncthreads();
  if (at.ty < p.grid.threads_y) {
#pragma unroll
    for (int i = 0; i < kRowVec; ++i) {
      shared.best[at.ty * width + at.tx * kRowVec + i] = found.best[i];
      shared.which[at.ty * width + at.tx * kRowVec + i] = found.which[i];
    }
  }
  __syncthreads();
  for (int other = 1; joins && other < p.split; ++other) {
#pragma unroll
    for (int i = 0; i < kRowVec; ++i) {
      const int place = (at.ty + other) * width + at.tx * kRowVec + i;
      if (!row_wins(shared.best[place], shared.which[place], found.best[i], found.which[i]))
        continue;
      found.best[i] = shared.best[place];
      found.which[i] = shared.which[place];
    }
  }
}

// The extrema of groups, and with kSums the moments of all rows that count.
template <class T, bool kSums>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    edge_rows_pool_kernel(const __grid_constant__ RowStatistics<T> p) {
  using Queue = RowQueue<T, 1>;
  __shared__ StatisticsStorage<T> shared;
  __shared__ ExtremaStorage extrema;
  const RowPlace at(p.grid, p.channels);
  const int own = at.ty % p.split, per_step = p.grid.threads_y / p.split;
  RowMoments moments;
  float sign[kRowVec];
#pragma unroll
  for (int i = 0; i < kRowVec; ++i) {
    const float weight = p.weight && at.active ? p.weight[at.col + i] : 1.f;
    sign[i] = weight > 0 ? 1.f : weight < 0 ? -1.f : 0.f;
  }
  const int64_t step = int64_t{p.grid.row_blocks} * per_step;
  const int64_t groups = at.active ? p.groups : 0;
  RowOfGroup next{int64_t{at.row_block} * per_step + at.ty / p.split, own};
  Queue queue(shared.queue, {p.y}, p.valid, p.channels, at.col);
  const auto row_of = [&](int u) { return next.row(u, p.split, p.k, groups); };
  queue.ask(row_of);
  for (int64_t base = int64_t{at.row_block} * per_step; base < p.groups; base += step) {
    const int64_t group = base + at.ty / p.split;
    RowExtrema found;
    found.clear();
    while (group < groups && next.group == group) {
      const int first = next.k;
      next.advance(Queue::kRows * p.split, own, p.k, step);
      queue.advance(row_of);
#pragma unroll
      for (int u = 0; u < Queue::kRows; ++u) {
        if (!queue.counts(u)) continue;
        const auto row = queue.row(u, 0);
        if constexpr (kSums) moments.add(row);
        found.add(row, sign, first + u * p.split);
      }
    }
    const bool stores = group < groups && own == 0;
    if (p.split > 1) join_extrema(p, at, stores, found, extrema);
    if (stores) store_extrema(p, group, at.col, found);
  }
  wait_for_all_copies();
  if constexpr (kSums) store_moments(p, at, moments, shared.moments);
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

static __global__ void __launch_bounds__(kJoinThreads)
    edge_rows_statistics_end_kernel(const __grid_constant__ RowStatisticsEnd p) {
  __shared__ JoinStage stage;
  const int channel = static_cast<int>(blockIdx.x * kJoinedChannels + threadIdx.x);
  JoinedMoments batch{};
  if (p.partial) {
    batch = join_moments(p.row_blocks, stage, [&](int b) {
      const float* const from = p.partial + static_cast<int64_t>(b) * 2 * p.channels + channel;
      return BlockMoments{static_cast<float>(p.counts[b]), from[0], from[p.channels]};
    });
  }
  if (threadIdx.y > 0) return;
  double count = batch.count;
  const double shift = p.shift ? p.shift[channel] : 0.0;
  double mean = 0, var = 0;
  float rstd = 1;
  if (p.partial) {
    const double some = count > 0 ? count : 1;
    mean = batch.mean;
    var = (batch.squares < 0 ? 0 : batch.squares) / some;  // NaN stays
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
