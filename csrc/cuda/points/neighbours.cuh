// Device pieces of every neighbour search: keys that order candidates, sorting within a warp, and
// a list of the k best that a warp keeps in shared memory.
#pragma once

#include <cstdint>

#include "csrc/common/device/cloud.cuh"
#include "csrc/common/neighbours.h"

namespace fusedops {

inline constexpr unsigned kFullWarp = 0xffffffffu;

// A candidate as one unsigned integer: distance bits over index (Select::kNearest) or index over
// distance bits (kFirst). Distances are not negative, so their bits order like their values; NaN is
// above infinity and thereby above every limit.
template <class T>
struct KeyTypes;
template <>
struct KeyTypes<float> {
  using Bits = uint32_t;
  using Key = uint64_t;
};
template <>
struct KeyTypes<double> {
  using Bits = uint64_t;
  using Key = unsigned __int128;
};
template <class T>
using KeyBits = typename KeyTypes<T>::Bits;
template <class T>
using KeyOf = typename KeyTypes<T>::Key;

inline constexpr uint32_t kNoIndex = 0xffffffffu;

__device__ __forceinline__ uint32_t distance_bits(float d) { return __float_as_uint(d); }
__device__ __forceinline__ uint64_t distance_bits(double d) {
  return static_cast<uint64_t>(__double_as_longlong(d));
}

template <class T>
__device__ __forceinline__ KeyOf<T> pack_key(KeyBits<T> high, KeyBits<T> low) {
  return static_cast<KeyOf<T>>(high) << (8 * sizeof(T)) | low;
}
template <class T>
__device__ __forceinline__ KeyBits<T> high_bits(KeyOf<T> key) {
  return static_cast<KeyBits<T>>(key >> (8 * sizeof(T)));
}

template <Select S, class T>
__device__ __forceinline__ KeyOf<T> candidate_key(T d, uint32_t index) {
  return S == Select::kNearest ? pack_key<T>(distance_bits(d), index)
                               : pack_key<T>(index, distance_bits(d));
}
template <Select S, class T>
__device__ __forceinline__ uint32_t key_index(KeyOf<T> key) {
  return static_cast<uint32_t>(S == Select::kNearest ? static_cast<KeyBits<T>>(key)
                                                     : high_bits<T>(key));
}
template <Select S, class T>
__device__ __forceinline__ T key_distance(KeyOf<T> key) {
  const KeyBits<T> bits = S == Select::kNearest ? high_bits<T>(key) : static_cast<KeyBits<T>>(key);
  if constexpr (sizeof(T) == 4) {
    return __uint_as_float(bits);
  } else {
    return __longlong_as_double(static_cast<long long>(bits));
  }
}

// What an unused place of a list holds; every candidate is below it. `limit` is the first distance,
// in bits, that is too far.
template <Select S, class T>
__device__ __forceinline__ KeyOf<T> empty_key(KeyBits<T> limit) {
  return S == Select::kNearest ? pack_key<T>(limit, 0) : pack_key<T>(kNoIndex, 0);
}

// Where answers go: rows of k, one a query row.
template <class T>
struct NeighbourOutput {
  int64_t* index;   // (rows, k)
  T* distance;      // (rows, k) or null
  int64_t* counts;  // (rows,) or null
  int64_t k;
  bool pad_first;  // an unused place repeats the row's first neighbour
};

template <Select S, class T>
__device__ __forceinline__ void write_neighbour(const NeighbourOutput<T>& out, int64_t row, int j,
                                                KeyOf<T> key, KeyOf<T> first, KeyOf<T> empty,
                                                int64_t index_base) {
  if (key >= empty && out.pad_first) key = first;
  const bool used = key < empty;
  const int64_t at = row * out.k + j;
  out.index[at] = used ? index_base + key_index<S, T>(key) : -1;
  if (out.distance) {
    out.distance[at] = used ? key_distance<S, T>(key) : static_cast<T>(INFINITY);
  }
}

// Fills every row with "nothing found": rows beyond a cloud's length belong to no query.
template <class T>
__global__ void fill_neighbours_kernel(NeighbourOutput<T> out, int64_t rows) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * out.k; i += step) {
    out.index[i] = -1;
    if (out.distance) out.distance[i] = static_cast<T>(INFINITY);
    if (out.counts && i < rows) out.counts[i] = 0;
  }
}

template <class K>
__device__ __forceinline__ K shuffle_xor(K value, int mask) {
  if constexpr (sizeof(K) == 16) {
    const auto low = __shfl_xor_sync(kFullWarp, static_cast<unsigned long long>(value), mask);
    const auto high =
        __shfl_xor_sync(kFullWarp, static_cast<unsigned long long>(value >> 64), mask);
    return static_cast<K>(high) << 64 | low;
  } else {
    return __shfl_xor_sync(kFullWarp, value, mask);
  }
}

// One compare-exchange with the lane `stride` away; `up`: this run ascends.
template <class K>
__device__ __forceinline__ K exchange(K value, int stride, bool up, int lane) {
  const K other = shuffle_xor(value, stride);
  const bool keep_small = ((lane & stride) == 0) == up;
  return (other < value) == keep_small ? other : value;
}

// 32 values, one a lane, ascending.
template <class K>
__device__ __forceinline__ K warp_sort(K value, int lane) {
#pragma unroll
  for (int size = 2; size <= 32; size *= 2) {
#pragma unroll
    for (int stride = size / 2; stride > 0; stride /= 2) {
      value = exchange(value, stride, (lane & size) == 0, lane);
    }
  }
  return value;
}

// The 32 smallest of two ascending sequences of 32, ascending.
template <class K>
__device__ __forceinline__ K warp_merge(K a, K b, int lane) {
  const K reversed = shuffle_xor(b, 31);
  K value = reversed < a ? reversed : a;
#pragma unroll
  for (int stride = 16; stride > 0; stride /= 2) value = exchange(value, stride, true, lane);
  return value;
}

// Sorts n (a power of two) keys in shared memory with one warp.
template <class K>
__device__ void warp_sort_shared(K* keys, int n, int lane) {
  for (int size = 2; size <= n; size *= 2) {
    for (int stride = size / 2; stride > 0; stride /= 2) {
      for (int i = lane; i < n / 2; i += 32) {
        const int a = 2 * i - (i & (stride - 1));
        const K x = keys[a];
        const K y = keys[a + stride];
        if ((y < x) == ((a & size) == 0)) {
          keys[a] = y;
          keys[a + stride] = x;
        }
      }
      __syncwarp();
    }
  }
}

// The k smallest keys that a warp has seen: room for `capacity` (a power of two, at least 2 k and
// 64), sorted and cut down to k whenever it fills up.
template <class K>
struct WarpCollector {
  K* keys;
  int capacity;
  int k;
  int count;
  K empty;
  K threshold;  // keys at or above it cannot enter

  __device__ WarpCollector(K* storage, int room, int wanted, K nothing)
      : keys(storage), capacity(room), k(wanted), count(0), empty(nothing), threshold(nothing) {}

  // Called by all lanes.
  __device__ __forceinline__ void push(K key, int lane) {
    const bool accept = key < threshold;
    const unsigned mask = __ballot_sync(kFullWarp, accept);
    if (mask == 0) return;
    if (accept) keys[count + __popc(mask & ((1u << lane) - 1))] = key;
    count += __popc(mask);
    __syncwarp();
    if (count > capacity - 32) compact(lane);
  }

  __device__ void compact(int lane) {
    int n = 32;
    while (n < count) n *= 2;
    for (int i = count + lane; i < n; i += 32) keys[i] = empty;
    __syncwarp();
    warp_sort_shared(keys, n, lane);
    if (count >= k) {
      count = k;
      threshold = keys[k - 1];
    }
    __syncwarp();
  }

  template <Select S, class T>
  __device__ void write(const NeighbourOutput<T>& out, int64_t row, int64_t index_base, int lane) {
    compact(lane);
    const K first = count > 0 ? keys[0] : empty;
    for (int j = lane; j < out.k; j += 32) {
      write_neighbour<S, T>(out, row, j, j < count ? keys[j] : empty, first, empty, index_base);
    }
    if (out.counts && lane == 0) out.counts[row] = count;
  }
};

inline int collector_capacity(int64_t k) {
  int capacity = 128;
  while (capacity < 2 * k) capacity *= 2;
  return capacity;
}

// Which cloud a group of 2^bits query rows belongs to: cloud b's groups start at
// (first_row(b) >> bits) + b, so that none spans two clouds. A group before the first cloud's is
// given as one behind its end, where it has no rows.
struct RowGroup {
  int64_t cloud;
  int64_t first;   // of its rows, within the cloud
  int64_t length;  // of the cloud
};

__device__ __forceinline__ RowGroup find_row_group(const Clouds& clouds, int64_t group, int bits) {
  int64_t low = 0;
  int64_t high = clouds.count - 1;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if ((clouds.first_row(middle) >> bits) + middle <= group) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int64_t base = (clouds.first_row(low) >> bits) + low;
  const int64_t length = clouds.length(low);
  return {low, group < base ? length : (group - base) << bits, length};
}

inline int64_t num_row_groups(const Clouds& clouds, int bits) {
  return (clouds.num_rows() >> bits) + clouds.count;
}

}  // namespace fusedops
