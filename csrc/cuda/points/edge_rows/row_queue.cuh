// Rows that are on their way while others are at work. A thread asks for its own 8 channels of them
// and for nobody else's: the queue has no barriers, and what it holds takes no registers.
#pragma once

#include "csrc/common/device/async_copy.cuh"
#include "csrc/cuda/points/edge_rows/row_walk.cuh"

namespace fusedops {

template <class T, int kInputs>
class RowQueue {
  static constexpr int kParts = sizeof(RowVec<T>) / 16;  // of a row
  static constexpr int kPieces = kInputs * kParts;

 public:
  static constexpr int kRows = 4 / kPieces;  // of a batch

  struct Storage {
    uint4 piece[2][kRows][kPieces][kRowThreads];
  };

  // valid: null where all rows count. An input that is null is not read.
  __device__ __forceinline__ RowQueue(Storage& storage, const T* const (&in)[kInputs],
                                      const bool* valid, int channels, int col)
      : storage_(storage), valid_(valid), channels_(channels) {
#pragma unroll
    for (int i = 0; i < kInputs; ++i) in_[i] = in[i] ? in[i] + col : nullptr;
  }

  // Asks for a batch: row_of(u) is its row u, or negative for none.
  template <class RowOf>
  __device__ __forceinline__ void ask(RowOf&& row_of) {
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      const int64_t row = row_of(u);
      asked_[u] = row >= 0;
      if (row < 0) continue;
#pragma unroll
      for (int i = 0; i < kInputs; ++i) {
        if (in_[i] == nullptr) continue;
        const auto* const from = reinterpret_cast<const uint4*>(in_[i] + row * channels_);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          const uint32_t to = shared_address(slot(half_ ^ 1, u, i, part));
          // NOTE: a sector that two copies read comes from the first-level cache once.
          if constexpr (kParts > 1) {
            copy_async_cached<16>(to, from + part);
          } else {
            copy_async(to, from + part);
          }
        }
      }
      if (valid_) asked_[u] = valid_[row];
    }
    commit_copies();
  }
  // Asks for the batch behind the one that was asked for last, which then is at work.
  template <class RowOf>
  __device__ __forceinline__ void advance(RowOf&& row_of) {
    half_ ^= 1;
#pragma unroll
    for (int u = 0; u < kRows; ++u) counts_[u] = asked_[u];
    ask(row_of);
    wait_for_copies<1>();
  }

  // Whether row u of the batch at work is there and counts, and what it holds.
  __device__ __forceinline__ bool counts(int u) const { return counts_[u]; }
  __device__ __forceinline__ RowVec<T> row(int u, int input) const {
    union {
      uint4 part[kParts];
      RowVec<T> whole;
    } found;
#pragma unroll
    for (int part = 0; part < kParts; ++part) found.part[part] = *slot(half_, u, input, part);
    return found.whole;
  }

  // The rows of an active thread: body(row, u).
  template <class Body>
  __device__ __forceinline__ void for_each(const RowGrid& grid, const RowPlace& at, int64_t rows,
                                           Body&& body) {
    const int64_t step = int64_t{grid.row_blocks} * grid.threads_y;
    int64_t first = int64_t{at.row_block} * grid.threads_y + at.ty;
    const auto next = [&](int u) {
      const int64_t row = first + u * step;
      return row < rows ? row : -1;
    };
    ask(next);
    while (first < rows) {
      const int64_t own = first;
      first += kRows * step;
      advance(next);
#pragma unroll
      for (int u = 0; u < kRows; ++u) {
        if (own + u * step < rows) body(own + u * step, u);
      }
    }
    wait_for_all_copies();
  }

 private:
  __device__ __forceinline__ uint4* slot(int half, int u, int input, int part) const {
    return &storage_.piece[half][u][input * kParts + part][threadIdx.x];
  }

  Storage& storage_;
  const T* in_[kInputs];
  const bool* valid_;
  int channels_, half_ = 0;
  bool asked_[kRows], counts_[kRows];
};

}  // namespace fusedops
