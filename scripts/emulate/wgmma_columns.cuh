// csrc/cuda/points/edge_wgmma/wgmma_columns.cuh for a CPU.
#pragma once

#include "csrc/cuda/points/edge_wgmma/wgmma.cuh"

namespace fusedops {

template <int kColumns>
struct EdgeColumns {
  float y[kColumns / 8][4];

  void clear() { *this = {}; }
  void settle() {}
};

template <class T, int kColumns>
void multiply_columns(EdgeColumns<kColumns>& d, const uint32_t (&a)[4], uint64_t b) {
  const int lane = emulated::lane();
  for (int i = 0; i < 4; ++i) emulated::shown(i)[lane] = a[i];
  emulated::warp_barrier();
  for (int i = 0; i < kColumns / 2; ++i) {
    const int row = i / 2 % 2, column = i / 4 * 8 + 2 * (lane % 4) + i % 2;
    float& sum = d.y[i / 4][i % 4];
    for (int k = 0; k < 16; ++k) {
      const uint64_t word = emulated::shown(row + 2 * (k / 8))[lane / 4 * 4 + k % 8 / 2];
      sum += value_of<T>(word, k % 2) * element<T>(b, column, k, false);
    }
  }
  emulated::warp_barrier();
}

template <class T, int kColumns>
void multiply_columns_first(EdgeColumns<kColumns>& d, const uint32_t (&a)[4], uint64_t b) {
  d.clear();
  multiply_columns<T>(d, a, b);
}

template <class T, bool kTransA, int kColumns>
void multiply_columns(EdgeColumns<kColumns>& d, uint64_t a, uint64_t b) {
  const int lane = emulated::lane(), first = static_cast<int>(threadIdx.x) / 32 % 4 * 16;
  for (int i = 0; i < kColumns / 2; ++i) {
    const int row = first + lane / 4 + 8 * (i / 2 % 2), column = i / 4 * 8 + 2 * (lane % 4) + i % 2;
    for (int k = 0; k < 16; ++k) {
      d.y[i / 4][i % 4] += element<T>(a, row, k, kTransA) * element<T>(b, column, k, true);
    }
  }
}

template <class T, bool kTransA, int kColumns>
void multiply_columns_first(EdgeColumns<kColumns>& d, uint64_t a, uint64_t b) {
  d.clear();
  multiply_columns<T, kTransA>(d, a, b);
}

}  // namespace fusedops
