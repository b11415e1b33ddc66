// The k largest or smallest elements of every row, sorted; equal ones by index.
//
// A block reads its row (or a split of it) tile by tile and keeps the k best in shared memory. Only
// elements above the k-th best so far enter the buffer, which is sorted when something entered. The
// first bound is the k-th best of the threads' own best. An element and its index make one key, so
// keys differ, the order is total, and results repeat bitwise whatever order the buffer fills in.
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "csrc/common/grid_limits.h"
#include "csrc/cuda/scan/scan_op.cuh"

namespace fusedops {

inline constexpr int kTopkThreads = 256;

// Larger is better. A key of 32 bits shares a word with its index; zero is no candidate.
struct NarrowKey {
  uint64_t word;
  static constexpr int kItems = 8;  // of a thread and tile
  static __device__ NarrowKey make(uint32_t key, int64_t index) {
    return {uint64_t{key} << 32 | static_cast<uint32_t>(~index)};
  }
  __device__ bool above(const NarrowKey& o) const { return word > o.word; }
  __device__ uint64_t key() const { return word >> 32; }
  __device__ int64_t index() const { return static_cast<uint32_t>(~word); }
};
struct WideKey {
  uint64_t high, low;  // low: ~index, never zero
  static constexpr int kItems = 4;
  static __device__ WideKey make(uint64_t key, int64_t index) {
    return {key, ~static_cast<uint64_t>(index)};
  }
  __device__ bool above(const WideKey& o) const {
    return high != o.high ? high > o.high : low > o.low;
  }
  __device__ uint64_t key() const { return high; }
  __device__ int64_t index() const { return static_cast<int64_t>(~low); }
};

template <class T>
using TopkKey = std::conditional_t<sizeof(T) == 8, WideKey, NarrowKey>;
template <class T>
using TopkBits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

// Order-preserving bits: NaN above all, -0 equals +0.
template <class T>
__device__ __forceinline__ TopkBits<T> ordered_bits(T x, bool largest) {
  using Bits = TopkBits<T>;
  constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);
  Bits bits;
  if constexpr (kIsInteger<T>) {
    using Signed = std::make_signed_t<Bits>;
    bits = static_cast<Bits>(static_cast<Signed>(x)) ^ kSign;
  } else {
    const auto value = to_compute(x);
    bits = __builtin_bit_cast(Bits, value);
    if (value == 0) bits = 0;
    bits = value != value ? ~Bits{0} : bits ^ (bits & kSign ? ~Bits{0} : kSign);
  }
  return largest ? bits : ~bits;
}

// What a block selects from: elements of a row ...
template <class T>
struct RowSource {
  using Key = TopkKey<T>;
  static constexpr bool kRelative = true;  // keys count from `begin`
  const T* x;
  int64_t row_stride;
  bool largest;
  __device__ Key get(int64_t row, int64_t i, int64_t begin) const {
    return Key::make(ordered_bits(x[row * row_stride + i], largest), i - begin);
  }
};
// ... or the candidates of its splits.
struct CandidateSource {
  using Key = WideKey;
  static constexpr bool kRelative = false;
  const WideKey* candidates;
  int64_t row_stride;
  __device__ Key get(int64_t row, int64_t i, int64_t) const {
    return candidates[row * row_stride + i];
  }
};

template <class T>
struct Topk {
  int64_t rows, n;  // n: elements to select from
  int k, splits;    // of a row
  const T* x;       // where values are read
  int64_t x_stride;
  T* values;            // (rows, k)
  int64_t* indices;     // (rows, k)
  WideKey* candidates;  // (rows, splits, k): written instead, where splits > 1
};

// Descending bitonic sort of `size` keys, a power of two.
template <class Key>
__device__ void sort_keys(Key* keys, int size) {
  for (int span = 2; span <= size; span *= 2) {
    for (int stride = span / 2; stride > 0; stride /= 2) {
      for (int t = threadIdx.x; t < size / 2; t += blockDim.x) {
        const int a = 2 * t - (t & (stride - 1)), b = a + stride;
        const bool descending = (a & span) == 0;
        const Key first = keys[a], second = keys[b];
        if (second.above(first) == descending) {
          keys[a] = second;
          keys[b] = first;
        }
      }
      __syncthreads();
    }
  }
}

__device__ inline int power_of_two(int n) { return n <= 1 ? 1 : 1 << (32 - __clz(n - 1)); }

template <class Key>
struct TopkShared {
  int count;
  Key keys[];  // two tiles: the k best, then what enters

  // Bytes for a block. NOTE: small blocks ask for what they use: more of them share an SM.
  static size_t bytes(int threads) {
    return offsetof(TopkShared, keys) + size_t{2} * threads * Key::kItems * sizeof(Key);
  }
};

// The k-th best of the threads' own best: k elements at least are as good.
template <class Key>
__device__ Key first_bound(TopkShared<Key>& shared, const Key (&item)[Key::kItems], int k) {
  Key best = item[0];
#pragma unroll
  for (int j = 1; j < Key::kItems; ++j) best = item[j].above(best) ? item[j] : best;
  shared.keys[threadIdx.x] = best;
  __syncthreads();
  sort_keys(shared.keys, blockDim.x);
  const Key bound = k <= blockDim.x ? shared.keys[k - 1] : Key{};
  __syncthreads();
  return bound;
}

// keys[0 .. count) become the k best, or all, of `source`[begin, end) of a row, in order.
template <class Source, class Key>
__device__ void select(TopkShared<Key>& shared, const Source& source, int64_t row, int64_t begin,
                       int64_t end, int k) {
  const int tile = blockDim.x * Key::kItems;
  if (threadIdx.x == 0) shared.count = 0;
  Key bound{};
  for (int64_t base = begin; base < end; base += tile) {
    Key item[Key::kItems];
#pragma unroll
    for (int j = 0; j < Key::kItems; ++j) {
      const int64_t i = base + j * static_cast<int>(blockDim.x) + threadIdx.x;
      item[j] = i < end ? source.get(row, i, begin) : Key{};
    }
    const bool first = base == begin;
    if (first) bound = first_bound(shared, item, k);
    bool entered = false;
#pragma unroll
    for (int j = 0; j < Key::kItems; ++j) {
      const bool better = first ? !bound.above(item[j]) : item[j].above(bound);
      if (better && item[j].above(Key{})) {
        shared.keys[atomicAdd(&shared.count, 1)] = item[j];
        entered = true;
      }
    }
    if (!__syncthreads_or(entered)) continue;
    const int count = shared.count, size = power_of_two(count);
    for (int i = count + threadIdx.x; i < size; i += blockDim.x) shared.keys[i] = Key{};
    __syncthreads();
    sort_keys(shared.keys, size);
    if (count >= k) bound = shared.keys[k - 1];
    if (threadIdx.x == 0) shared.count = min(count, k);
    __syncthreads();
  }
  __syncthreads();
}

template <class T, class Source>
__global__ void __launch_bounds__(kTopkThreads) topk_kernel(const Topk<T> p, const Source source) {
  using Key = typename Source::Key;
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<TopkShared<Key>*>(memory);
  const int64_t share = ceil_div(p.n, int64_t{p.splits});
  for (int64_t part = blockIdx.x; part < p.rows * p.splits; part += gridDim.x) {
    const int64_t row = part / p.splits, begin = part % p.splits * share;
    select(shared, source, row, begin, min(p.n, begin + share), p.k);
    for (int i = threadIdx.x; i < p.k; i += blockDim.x) {
      const Key key = shared.keys[i];
      const int64_t index = key.index() + (Source::kRelative ? begin : 0), at = part * p.k + i;
      if (p.splits > 1) {
        p.candidates[at] = i < shared.count ? WideKey::make(key.key(), index) : WideKey{};
      } else {
        p.values[at] = p.x[row * p.x_stride + index];
        p.indices[at] = index;
      }
    }
    __syncthreads();
  }
}

// Threads of a block: no more than a row needs.
inline int topk_threads(int64_t n, int items) {
  int threads = 32;
  while (threads < kTopkThreads && int64_t{threads} * items < n) threads *= 2;
  return threads;
}

// Few long rows are split; every split holds at least k elements.
inline int topk_splits(int64_t rows, int64_t n, int sm_count) {
  constexpr int64_t kLeast = 4096;
  const int64_t wanted = ceil_div(int64_t{4} * sm_count, rows);
  const int64_t most = std::max(n / kLeast, ceil_div(n, int64_t{1} << 31));
  const int64_t least = ceil_div(n, int64_t{1} << 31);  // an index of a split has 32 bits
  return static_cast<int>(std::max<int64_t>({1, least, std::min(wanted, most)}));
}

template <class T, class Source>
void launch_topk_blocks(const Topk<T>& p, const Source& source, cudaStream_t stream) {
  using Key = typename Source::Key;
  const int threads = topk_threads(p.n, Key::kItems);
  const size_t bytes = TopkShared<Key>::bytes(threads);
  const auto blocks = static_cast<unsigned>(std::min(p.rows * p.splits, kMaxGrid));
  topk_kernel<<<blocks, threads, bytes, stream>>>(p, source);
}

template <class T>
void launch_topk(Topk<T> p, bool largest, cudaStream_t stream) {
  launch_topk_blocks(p, RowSource<T>{p.x, p.x_stride, largest}, stream);
  if (p.splits == 1) return;
  const CandidateSource source{p.candidates, int64_t{p.splits} * p.k};
  p.n = source.row_stride;
  p.splits = 1;
  launch_topk_blocks(p, source, stream);
}

}  // namespace fusedops
