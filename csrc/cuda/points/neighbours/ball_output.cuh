// Where the neighbours within a radius go, and how a warp writes one query's.
#pragma once

#include "csrc/cuda/points/neighbours.cuh"

namespace fusedops {

// Either rows of k (starts null), or rows of starts[row + 1] - starts[row], or counts alone (index
// null).
template <class T>
struct BallOutput {
  int64_t* index;
  T* distance;
  int64_t* counts;
  const int64_t* starts;
  int64_t k;
  int64_t total;  // places of index, where starts is given
  bool pad_first;

  __device__ int64_t first_place(int64_t row) const { return starts ? starts[row] : row * k; }
  // NOTE: starts is a tensor of the caller's: it is held to the memory that there is.
  __device__ uint32_t places(int64_t row) const {
    if (!index) return kNoIndex;
    if (!starts) return static_cast<uint32_t>(k);
    const int64_t end = min(starts[row + 1], total);
    const int64_t all = starts[row] < 0 ? 0 : max(end - starts[row], int64_t{0});
    return static_cast<uint32_t>(min(all, int64_t{kNoIndex}));
  }

  __device__ __forceinline__ void put(int64_t at, int64_t value, T d) const {
    if (!index) return;
    index[at] = value;
    if (distance) distance[at] = d;
  }

  // Pads the row and writes its count. Called by all lanes.
  __device__ void finish(int64_t row, uint32_t found, int lane) const {
    const uint32_t room = places(row);
    const uint32_t used = min(found, room);
    if (counts && lane == 0) counts[row] = used;
    if (!index || starts) return;
    __syncwarp();
    const int64_t first = row * k;
    const bool repeat = pad_first && used > 0;
    const int64_t pad = repeat ? index[first] : -1;
    const T pad_distance = repeat && distance ? distance[first] : static_cast<T>(INFINITY);
    for (uint32_t j = used + lane; j < room; j += 32) {
      index[first + j] = pad;
      if (distance) distance[first + j] = pad_distance;
    }
  }
};

// One query's answer as a warp finds it.
template <class T>
struct BallRow {
  int64_t row;
  uint32_t places;
  uint32_t found = 0;

  __device__ BallRow(const BallOutput<T>& out, int64_t query)
      : row(query), places(out.places(row)) {}

  __device__ bool full() const { return found >= places; }

  // Called by all lanes: each has a candidate or none.
  __device__ __forceinline__ void add(const BallOutput<T>& out, bool accept, int64_t index, T d,
                                      int lane) {
    const unsigned mask = __ballot_sync(kFullWarp, accept);
    const uint32_t place = found + __popc(mask & ((1u << lane) - 1));
    if (accept && place < places) out.put(out.first_place(row) + place, index, d);
    found += __popc(mask);
  }
};

}  // namespace fusedops
