// The gradient of cross entropy: tiles of rows, read and written once.
#pragma once

#include "csrc/common/device/unaligned.cuh"
#include "csrc/cuda/rows/softmax/cross_entropy.cuh"
#include "csrc/cuda/rows/team/row_direct.cuh"

namespace fusedops {

inline constexpr int kTileThreads = 64;

// A chunk that is aligned to an element; nothing is read from `end` on.
template <class T>
__device__ __forceinline__ Packed<T, kChunkOf<T>> load_anywhere(const T* from, const T* end) {
  constexpr int kVec = kChunkOf<T>;
  Vec<T, kVec> chunk;
  if (!load_unaligned(from, end, chunk)) {
#pragma unroll
    for (int e = 0; e < kVec; ++e) chunk.value[e] = from[e];
  }
  return load_packed<T, kVec>(chunk.value);
}

// A tile: kChunks aligned chunks for each of its threads, of a part of a row. The elements before
// the first chunk of a row and behind its last one go with its first tile.
//
// kInWarp: `lanes` threads of a warp have a whole row; else a block has one of the `tiles` of a
// row. kPadded: rows of dx, dx_stride apart, are aligned whatever those of x are; else dx is dense.
// dloss: [rows] where per_row, else one value; scale: one value or null.
template <class T, class O, int kChunks, bool kInWarp, bool kPadded>
__global__ void __launch_bounds__(kTileThreads)
    cross_entropy_backward_kernel(CrossEntropy<T> p, const O* dloss, const Compute<T>* scale,
                                  bool per_row, T* dx, int64_t dx_stride, int64_t rows, int64_t n,
                                  int lanes, unsigned tiles) {
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<T>;
  wait_for_predecessor();
  const LossTeam<kInWarp> team(lanes);
  const int64_t thread = int64_t{blockIdx.x} * kTileThreads + threadIdx.x;
  const int64_t row = kInWarp ? thread >> (__ffs(lanes) - 1) : blockIdx.x / tiles;
  if (row >= rows) return;
  const int part = kInWarp ? 0 : static_cast<int>(blockIdx.x % tiles);
  const T* const from = p.x + row * p.x_stride;
  T* const to = dx + row * dx_stride;
  const int shift = static_cast<int>(row % kVec * (n % kVec) % kVec);
  const int head = kPadded ? 0 : static_cast<int>(min(int64_t{(kVec - shift) % kVec}, n));
  const int64_t chunks = (n - head) / kVec, first = int64_t{part} * team.size * kChunks;
  const auto place = [&](int k) { return first + k * team.size + team.index; };

  // NOTE: a thread that has no chunk k loads another one's: branches around loads would have it
  // wait for each apart.
  Packed<T, kVec> x[kChunks];
  if (chunks > 0) {
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      const T* const chunk = from + head + min(place(k), chunks - 1) * kVec;
      x[k] = kPadded ? load_anywhere(chunk, p.x + (rows - 1) * p.x_stride + n)
                     : load_once<T, kVec>(chunk);
    }
  }
  const int64_t target = p.target[row];
  const bool counted = target != p.ignore_index;
  C factor = static_cast<C>(to_compute(dloss[per_row ? row : 0]));
  if (scale != nullptr) factor *= *scale;
  if (target < 0 || target >= n) factor = NAN;
  if (!counted) factor = 0;
  const C lse = p.lse[row];
  const C other = factor * (-p.smoothing / static_cast<C>(n));
  const C at_target = factor * (p.smoothing - 1);
  const auto gradient = [&](C x) { return counted ? exp_from<T>(x, lse) * factor + other : C{0}; };

  const int64_t chosen = target - head;  // from the first chunk on
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    if (place(k) >= chunks) break;
    C grad[kVec];
#pragma unroll
    for (int e = 0; e < kVec; ++e) grad[e] = gradient(x[k].at(e));
    if (chosen >= 0 && chosen / kVec == place(k)) {
#pragma unroll
      for (int e = 0; e < kVec; ++e) grad[e] += e == chosen % kVec ? at_target : C{0};
    }
    store_packed(to + head + place(k) * kVec, pack<T>(grad));
  }
  if (part > 0) return;
  const int64_t body = chunks * kVec;
  for (int i = team.index; i < n - body; i += team.size) {
    const int64_t column = i < head ? i : i + body;
    const C grad = gradient(to_compute(from[column])) + (column == target ? at_target : C{0});
    to[column] = from_compute<T>(grad);
  }
}

}  // namespace fusedops
