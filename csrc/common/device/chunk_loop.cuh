// Elementwise passes over contiguous memory, 16 bytes at a time, for ops outside of this library:
// a loop over chunks, and chunks as values of the compute type.
//
//   template <class T>
//   __global__ void __launch_bounds__(kLoopThreads) square(const T* x, T* y, ChunkLoop loop) {
//     for_each_chunk<T>(loop, [&]<int kVec>(int64_t i) {
//       Compute<T> value[kVec];
//       load_values(x + i, value);
//       for (auto& v : value) v *= v;
//       store_values(y + i, value);
//     });
//   }
//   const ChunkLoop loop = chunk_loop<T>(count, x, y);
//   square<T><<<loop.blocks(sm_count), kLoopThreads, 0, stream>>>(x, y, loop);
#pragma once

#include "csrc/common/device/row_chunk.cuh"

namespace fusedops {

inline constexpr int kLoopThreads = 256;
inline constexpr int kLoopBlocks = 8;  // of a multiprocessor: 2048 threads

// How `count` elements are cut: made by chunk_loop.
struct ChunkLoop {
  int64_t count;   // elements
  int64_t chunks;  // of 16 bytes; 0 where a pointer is not aligned to them

  unsigned blocks(int sm_count) const {
    const int64_t steps = chunks > 0 ? chunks : count;
    const int64_t most = int64_t{sm_count} * kLoopBlocks;
    const int64_t wanted = ceil_div(steps, int64_t{kLoopThreads});
    return static_cast<unsigned>(wanted < 1 ? 1 : wanted < most ? wanted : most);
  }
};

// For a pass over arrays of T, all of them contiguous.
template <class T, class... Pointers>
ChunkLoop chunk_loop(int64_t count, const Pointers*... arrays) {
  const bool aligned = ((reinterpret_cast<uintptr_t>(arrays) % 16 == 0) && ...);
  return {count, aligned ? count / kChunkOf<T> : 0};
}

// Calls body.template operator()<kVec>(first element) for every chunk, and with kVec = 1 for every
// element that is in none. All threads of the grid take part.
template <class T, class Body>
__device__ __forceinline__ void for_each_chunk(const ChunkLoop& loop, Body&& body) {
  constexpr int kVec = kChunkOf<T>;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t chunk = first; chunk < loop.chunks; chunk += step) {
    body.template operator()<kVec>(chunk * kVec);
  }
  for (int64_t i = loop.chunks * kVec + first; i < loop.count; i += step) {
    body.template operator()<1>(i);
  }
}

// kVec elements, in the compute type. More than one: aligned to their size.
template <class T, int kVec>
__device__ __forceinline__ void load_values(const T* from, Compute<T> (&value)[kVec]) {
  if constexpr (kVec == 1) {
    value[0] = to_compute(*from);
  } else {
    const auto packed = load_packed<T, kVec>(from);
#pragma unroll
    for (int e = 0; e < kVec; ++e) value[e] = packed.at(e);
  }
}

// Rounds once.
template <class T, int kVec>
__device__ __forceinline__ void store_values(T* to, const Compute<T> (&value)[kVec]) {
  if constexpr (kVec == 1) {
    *to = from_compute<T>(value[0]);
  } else {
    store_packed(to, pack<T>(value));
  }
}

}  // namespace fusedops
