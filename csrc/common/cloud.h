// A batch of point clouds, padded or packed, as every point op sees it: host and device, no torch.
//
// Padded: points (B, N, D), the first lengths[b] of N rows are cloud b (all of them without
// lengths); an index counts from the start of its cloud.
// Packed: points (P, D), rows offsets[b] to offsets[b + 1] are cloud b; an index counts from the
// start of the tensor.
// Both are read where they lie: a kernel asks for first_row(b), length(b) and index_base(b).
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define FUSEDOPS_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define FUSEDOPS_HOST_DEVICE inline
#endif

namespace fusedops {

FUSEDOPS_HOST_DEVICE int64_t clamp(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

struct Clouds {
  const void* points = nullptr;      // row-major, D values a row
  const int64_t* lengths = nullptr;  // (B,) or null
  const int64_t* offsets = nullptr;  // (B + 1,) or null: padded
  int64_t count = 0;                 // B
  int64_t capacity = 0;              // N, or P where packed: no cloud is longer
  int64_t dim = 0;                   // D

  // NOTE: lengths and offsets are values on the device, which no host check can see without a
  // synchronisation. They are clamped to the tensor here: wrong ones give wrong clouds, never an
  // access outside.
  FUSEDOPS_HOST_DEVICE int64_t first_row(int64_t b) const {
    return offsets ? clamp(offsets[b], 0, capacity) : b * capacity;
  }
  FUSEDOPS_HOST_DEVICE int64_t length(int64_t b) const {
    if (offsets) {
      const int64_t first = first_row(b);
      return clamp(offsets[b + 1], first, capacity) - first;
    }
    return lengths ? clamp(lengths[b], 0, capacity) : capacity;
  }
  // What turns a position within cloud b into the index that a user sees.
  FUSEDOPS_HOST_DEVICE int64_t index_base(int64_t b) const { return offsets ? first_row(b) : 0; }

  FUSEDOPS_HOST_DEVICE int64_t num_rows() const { return offsets ? capacity : count * capacity; }
};

}  // namespace fusedops
