// How results of a tile leave where rows of d begin anywhere: through shared memory, where each row
// lies as it does between multiples of 16 bytes, so that all but its ends are whole units.
#pragma once

#include "csrc/common/device/activation.cuh"
#include "csrc/common/device/vec.cuh"

namespace fusedops::unaligned {

// A tile's matrix in memory: its first element, the distance between rows, what is inside.
struct ResultTile {
  void* first;
  int64_t ld;
  int rows, cols;
};

template <class T>
inline constexpr int kPerUnit = 16 / int(sizeof(T));  // elements

// Elements between a multiple of 16 bytes and the beginning of a row.
template <class T>
__device__ __forceinline__ int head_of(const ResultTile& result, int row) {
  return static_cast<int>(
      (reinterpret_cast<uintptr_t>(result.first) / sizeof(T) + row * result.ld) % kPerUnit<T>);
}

// Units of a staged row of kN elements.
template <class T, int kN>
inline constexpr int kStagedUnits = kN / kPerUnit<T> + 1;

template <class T, int kM, int kN, int kThreads>
__device__ __forceinline__ void store_staged(const ResultTile& result, const uint4* staged) {
  constexpr int kUnits = kStagedUnits<T, kN>, kElements = kPerUnit<T>;
#pragma unroll 2
  for (int i = threadIdx.x; i < kM * kUnits; i += kThreads) {
    const int row = i / kUnits, unit = i % kUnits;
    if (row >= result.rows) break;
    const int column = unit * kElements - head_of<T>(result, row);  // of the unit's first element
    T* to = static_cast<T*>(result.first) + row * result.ld + column;
    if (column >= 0 && column + kElements <= result.cols) {
      *reinterpret_cast<uint4*>(to) = staged[i];
      continue;
    }
    const T* from = reinterpret_cast<const T*>(staged + i);
#pragma unroll
    for (int j = 0; j < kElements; ++j) {
      if (column + j >= 0 && column + j < result.cols) to[j] = from[j];
    }
  }
}

}  // namespace fusedops::unaligned
