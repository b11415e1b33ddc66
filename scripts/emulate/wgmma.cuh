// csrc/cuda/points/edge_wgmma/wgmma.cuh for a CPU: products are there at once, and the warps of a
// warpgroup wait for each other before them.
#pragma once

#include "csrc/common/device/mma.cuh"
#include "emulated.h"

namespace fusedops {

inline constexpr int kEdgePart = 64;

struct EdgePart {
  float y[kEdgePart / 32][4][4];

  void clear() { *this = {}; }
  void settle() {}
};

// Offsets of 16 bytes, in shared memory.
inline uint64_t edge_descriptor(const void* matrix, int leading_pieces, int stride_pieces) {
  const int64_t at = static_cast<const unsigned char*>(matrix) - emulated::shared_memory();
  if (at % 16 != 0) std::abort();
  return static_cast<uint64_t>(at) >> 4 | static_cast<uint64_t>(leading_pieces) << 16 |
         static_cast<uint64_t>(stride_pieces) << 32;
}

inline int edge_warpgroup() { return static_cast<int>(threadIdx.x) / 128; }
inline void edge_warpgroup_barrier() { emulated::warpgroup_barrier(); }
template <class V>
const V* edge_reread(const V* from) {
  return from;
}
inline void publish_operands() {}

// stmatrix
inline void edge_store_matrices(void* row, const uint32_t (&a)[4]) {
  const int lane = emulated::lane();
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) std::abort();
  emulated::shown(0)[lane] = reinterpret_cast<uintptr_t>(row);
  emulated::warp_barrier();
  for (int i = 0; i < 4; ++i) {
    auto* to = reinterpret_cast<uint32_t*>(emulated::shown(0)[8 * i + lane / 4]);
    to[lane % 4] = a[i];
  }
  emulated::warp_barrier();
}
inline void edge_fence() { emulated::warpgroup_barrier(); }
inline void edge_commit() {}
template <int kGroups>
void edge_wait() {}

// PTX ISA, "Shared memory matrix layout", without swizzle.
template <class T>
float element(uint64_t descriptor, int row, int k, bool transposed) {
  const int leading = descriptor >> 16 & 0x3fff, stride = descriptor >> 32 & 0x3fff;
  const int inner = transposed ? row % 8 : k % 8, outer = transposed ? k % 8 : row % 8;
  const int piece = (descriptor & 0x3fff) + row / 8 * stride + k / 8 * leading + outer;
  const auto* from = reinterpret_cast<const uint16_t*>(emulated::shared_memory()) + 8 * piece;
  return value_of<T>(from[inner], 0);
}

// left(row of the warp's 16, k)
template <class T, class Left>
void add_products(EdgePart& d, Left&& left, uint64_t b, bool transposed) {
  const int lane = emulated::lane();
  for (int i = 0; i < 32; ++i) {
    const int row = lane / 4 + 8 * (i / 2 % 2), column = i / 4 * 8 + 2 * (lane % 4) + i % 2;
    float& sum = d.y[i / 16][i / 4 % 4][i % 4];
    for (int k = 0; k < 16; ++k) sum += left(row, k) * element<T>(b, column, k, transposed);
  }
}

template <class T>
void edge_multiply(EdgePart& d, const uint32_t (&a)[4], uint64_t b) {
  const int lane = emulated::lane();
  for (int i = 0; i < 4; ++i) emulated::shown(i)[lane] = a[i];
  emulated::warp_barrier();
  const auto left = [](int row, int k) {
    return value_of<T>(emulated::shown(row / 8 + 2 * (k / 8))[row % 8 * 4 + k % 8 / 2], k % 2);
  };
  add_products<T>(d, left, b, false);
  emulated::warp_barrier();
}

template <class T>
void edge_multiply_first(EdgePart& d, const uint32_t (&a)[4], uint64_t b) {
  d.clear();
  edge_multiply<T>(d, a, b);
}

template <class T, bool kTransA>
void edge_multiply(EdgePart& d, uint64_t a, uint64_t b) {
  const int first = static_cast<int>(threadIdx.x) / 32 % 4 * 16;
  add_products<T>(
      d, [&](int row, int k) { return element<T>(a, first + row, k, kTransA); }, b, true);
}

template <class T, bool kTransA>
void edge_multiply_first(EdgePart& d, uint64_t a, uint64_t b) {
  d.clear();
  edge_multiply<T, kTransA>(d, a, b);
}

}  // namespace fusedops
