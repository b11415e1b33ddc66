// Reads x once, in tiles of 128x128, and writes e4m3 or e5m2 by rows and transposed, each with its
// scales, and the sums of columns; before that, it may apply an activation or its gradient. Scales
// of 1x128 and 128x128 are the tile's own; those of whole rows and of the tensor take a pass for
// their maxima before.
#pragma once

#include "csrc/common/device/activation_gradient.cuh"
#include "csrc/common/device/pdl.cuh"
#include "csrc/cuda/fp8/fp8_quantize.h"
#include "csrc/cuda/fp8/fp8_tile.cuh"

namespace fusedops {

// Staged values of T; the transpose and the warps' columns take less.
template <class T>
inline constexpr int kQuantizeSharedBytes = kTile * kTile * int(sizeof(T));

// Where a thread's values lie in x.
struct TilePlace {
  int64_t tile_row, tile_column;  // of tiles
  int64_t row, column;            // the first of the thread
};

// Puts act(x) or x * act'(saved), times factor, into shared memory, rounded to T as if another
// kernel had written it, and adds to the sums of columns before that.
template <class T, Activation kActivation>
__device__ __forceinline__ void compute_own(Vec<T, kOwn>* staged, float (&sums)[kOwn],
                                            const TilePlace& at, const Fp8Quantize& p) {
  const bool from_saved = p.gradient && saved_for_backward(p.activation) != Saved::kNothing;
#pragma unroll(kActivation == kAnyRare ? 1 : 2)
  for (int r = 0; r < kOwn; ++r) {
    const int64_t row = at.row + r;
    const bool whole = p.vectors && row < p.m && at.column + kOwn <= p.k;
    const Vec<T, kOwn> x = load_row<T>(p.x, p.x_stride, row, at.column, whole, p);
    Vec<T, kOwn> saved = x, factor = x;
    if (from_saved) saved = load_row<T>(p.saved, p.saved_stride, row, at.column, whole, p);
    if (p.factor) factor = load_row<T>(p.factor, p.factor_stride, row, at.column, whole, p);
    Vec<T, kOwn> out;
    resolve_rare<kActivation>(p.activation, [&]<Activation kNow>() {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        float v = to_compute(x.value[i]);
        if (p.gradient) {
          v = activation_gradient_as<kNow, kAccuracyOf<T>>(v, to_compute(saved.value[i]));
        } else {
          v = activate_as<kNow, kAccuracyOf<T>>(v);
        }
        if (p.factor) v *= to_compute(factor.value[i]);
        if (row >= p.m || at.column + i >= p.k) v = 0;  // act(0) may be more
        sums[i] += v;
        out.value[i] = from_compute<T>(v);
      }
    });
    staged[r * kTileThreads] = out;
  }
}

// The values of a thread and the sums of its columns.
template <class T, Activation kActivation, bool kPlain>
__device__ __forceinline__ void load_own(OwnValues<T>& own, float (&sums)[kOwn],
                                         Vec<T, kOwn>* staged, const TilePlace& at,
                                         const Fp8Quantize& p) {
#pragma unroll
  for (int c = 0; c < kOwn; ++c) sums[c] = 0;
  const bool inside =
      p.vectors && (at.tile_row + 1) * kTile <= p.m && (at.tile_column + 1) * kTile <= p.k;
  if (kPlain && inside) {
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      own.row[r] = load_row<T>(p.x, p.x_stride, at.row + r, at.column, true, p);
    }
    if (p.partial == nullptr) return;
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
#pragma unroll
      for (int c = 0; c < kOwn; ++c) sums[c] += to_compute(own.row[r].value[c]);
    }
    return;
  }
  staged += threadIdx.x;
  compute_own<T, kActivation>(staged, sums, at, p);
#pragma unroll
  for (int r = 0; r < kOwn; ++r) own.row[r] = staged[r * kTileThreads];  // its own, no barrier
}

// What a thread does with the maximum of its row (threads 0 to 127) or column: its scale goes to
// memory, and its inverse to shared memory.
__device__ __forceinline__ float scale_line(const Fp8Side& side, int64_t line, int64_t lines,
                                            int64_t block, int64_t tile, uint32_t own,
                                            uint32_t of_tile, int in_tile, const Fp8Quantize& p) {
  const bool given = side.scaling == Fp8Scaling::kTensor || side.scaling == Fp8Scaling::kRow;
  const bool inside = line < lines;
  uint32_t maximum = side.scaling == Fp8Scaling::kTile ? of_tile : own;
  if (given) {
    maximum = side.maxima[side.scaling == Fp8Scaling::kTensor ? 0 : inside ? line : 0];
  }
  const Fp8Scale s = fp8_scale(maximum, largest_value(p.format), p.power_of_two);
  switch (side.scaling) {
    case Fp8Scaling::kTensor:
      if (line == 0 && block == 0) side.scale[0] = s.scale;
      break;
    case Fp8Scaling::kRow:
      if (inside && block == 0) side.scale[line] = s.scale;
      break;
    case Fp8Scaling::kBlock:
      if (line < side.scale_lines) side.scale[block * side.scale_pitch + line] = s.scale;
      break;
    default:
      if (in_tile == 0) side.scale[tile * side.scale_pitch + block] = s.scale;
  }
  return s.inverse;
}

// NOTE: maxima of non-negative numbers are the same in every order.
__device__ __forceinline__ void keep_maximum(const Fp8Side& side, int64_t line, int64_t lines,
                                             uint32_t own, uint32_t of_tile, int in_tile) {
  if (side.scaling == Fp8Scaling::kTensor && in_tile == 0) atomicMax(side.maxima, of_tile);
  if (side.scaling == Fp8Scaling::kRow && line < lines) atomicMax(side.maxima + line, own);
}

// to: the first byte of the first of this thread's rows, of which the first `rows` exist.
template <__nv_fp8_interpretation_t kFormat, class T>
__device__ __forceinline__ void store_rows(const OwnValues<T>& own, const float* inverses,
                                           uint8_t* to, int64_t pitch, int rows) {
  if (rows <= 0) return;
#pragma unroll
  for (int r = 0; r < kOwn; ++r, to += pitch) {
    const uint2 words = fp8_row<kFormat>(own.row[r], inverses[r]);
    if (r < rows) *reinterpret_cast<uint2*>(to) = words;
  }
}

template <__nv_fp8_interpretation_t kFormat, class T>
__device__ __forceinline__ void columns_into(const OwnValues<T>& own, const float* inverses,
                                             uint8_t* bytes) {
  const OwnChunks chunks(bytes);
#pragma unroll
  for (int c = 0; c < kOwn; c += 2) {
    uint32_t first[2], second[2];
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      float2 v[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) v[r] = two_of(own.row[4 * w + r].value + c);
      first[w] = fp8_four<kFormat>(v[0].x, v[1].x, v[2].x, v[3].x, inverses[c]);
      second[w] = fp8_four<kFormat>(v[0].y, v[1].y, v[2].y, v[3].y, inverses[c + 1]);
    }
    chunks.put(c, {first[0], first[1]});
    chunks.put(c + 1, {second[0], second[1]});
  }
}

// to: 16 tokens of the first column that this thread reads, of which the first `columns` exist.
__device__ __forceinline__ void store_columns(const uint8_t* bytes, uint8_t* to, int64_t pitch,
                                              int columns) {
  if (columns <= 0) return;
  const ReadChunks chunks(bytes);
#pragma unroll
  for (int c = 0; c < kReadColumns; ++c, to += pitch) {
    const uint4 words = chunks.get(c);
    if (c < columns) *reinterpret_cast<uint4*>(to) = words;
  }
}

// The shared memory of a block.
struct TileMemory {
  uint8_t* bytes;  // of a tile: what warps have of its columns, then q_t
  uint32_t *row_maxima, *warp_maxima;
  float* inverses;  // of rows, then of columns
};

struct NothingBetween {
  __device__ void operator()() const {}
};

// Writes what is wanted of a tile. All threads call it; `bytes` is theirs again after a barrier.
// between() runs once everybody has shown its maxima.
template <class T, class Between = NothingBetween>
__device__ __forceinline__ void quantize_tile(const OwnValues<T>& own, float (&sums)[kOwn],
                                              const TilePlace& at, const TileMemory& memory,
                                              bool maxima_only, const Fp8Quantize& p,
                                              const Between& between = {}) {
  auto* const warp_columns = reinterpret_cast<uint32_t*>(memory.bytes);
  auto* const warp_sums = reinterpret_cast<float*>(memory.bytes) + kTileWarps * kTile;
  // Maxima and sums
  {
    uint32_t by_row[kOwn], by_column[kOwn];
    own_maxima(own, by_row, by_column);
    rows_to_shared(by_row, memory.row_maxima);
    columns_to_shared(by_column, warp_columns, [](uint32_t a, uint32_t b) { return max(a, b); });
  }
  if (p.partial && !maxima_only) {
    columns_to_shared(sums, warp_sums, [](float a, float b) { return a + b; });
  }
  __syncthreads();
  between();

  // A thread for each row, then one for each column
  const bool is_row = threadIdx.x < kTile;
  const int line_in_tile = threadIdx.x % kTile;
  uint32_t own_maximum = 0;
  if (is_row) {
    own_maximum = memory.row_maxima[line_in_tile];
    const uint32_t of_warp = __reduce_max_sync(kAllLanes, own_maximum);
    if (threadIdx.x % 32 == 0) memory.warp_maxima[threadIdx.x / 32] = of_warp;
  } else {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kTileWarps; ++w) {
      own_maximum = max(own_maximum, warp_columns[w * kTile + line_in_tile]);
    }
    const int64_t column = at.tile_column * kTile + line_in_tile;
    if (p.partial && !maxima_only && column < p.k) {
      for (int w = 0; w < kTileWarps; ++w) sum += warp_sums[w * kTile + line_in_tile];
      p.partial[at.tile_row * p.k + column] = sum;
    }
  }
  __syncthreads();
  uint32_t of_tile = 0;
#pragma unroll
  for (int w = 0; w < kTile / 32; ++w) of_tile = max(of_tile, memory.warp_maxima[w]);

  // Scales
  const Fp8Side& side = is_row ? p.rows : p.columns;
  const int64_t tile = is_row ? at.tile_row : at.tile_column;
  const int64_t block = is_row ? at.tile_column : at.tile_row;
  const int64_t line = tile * kTile + line_in_tile, lines = is_row ? p.m : p.k;
  if (maxima_only) {
    keep_maximum(side, line, lines, own_maximum, of_tile, line_in_tile);
    return;
  }
  if (side.scaling != Fp8Scaling::kNone) {
    memory.inverses[threadIdx.x] =
        scale_line(side, line, lines, block, tile, own_maximum, of_tile, line_in_tile, p);
  }
  __syncthreads();

  // Bytes
  const int x = threadIdx.x % kTileX, y = threadIdx.x / kTileX;
  const bool e4m3 = p.format == Fp8Format::kE4M3;
  if (p.rows.scaling != Fp8Scaling::kNone) {
    const Fp8Side& s = p.rows;
    const int rows = at.column < s.width ? int(min(p.m - at.row, int64_t{kOwn})) : 0;
    uint8_t* const to = s.q + at.row * s.pitch + at.column;
    e4m3 ? store_rows<__NV_E4M3>(own, memory.inverses + y * kOwn, to, s.pitch, rows)
         : store_rows<__NV_E5M2>(own, memory.inverses + y * kOwn, to, s.pitch, rows);
  }
  if (p.columns.scaling != Fp8Scaling::kNone) {
    e4m3 ? columns_into<__NV_E4M3>(own, memory.inverses + kTile + x * kOwn, memory.bytes)
         : columns_into<__NV_E5M2>(own, memory.inverses + kTile + x * kOwn, memory.bytes);
    __syncthreads();
    const Fp8Side& s = p.columns;
    const int64_t token = at.tile_row * kTile + read_row();
    const int64_t column = at.tile_column * kTile + read_column();
    const int columns = token < s.pitch ? int(min(p.k - column, int64_t{kReadColumns})) : 0;
    store_columns(memory.bytes, s.q + column * s.pitch + token, s.pitch, columns);
  }
}

// NOTE: the activation as an int, since nvcc 13.0 names an enumeration's -1 (kAnyRare) wrongly in
// the host code of this kernel.
template <class T, int kActivationCode, bool kPlain>
__global__ void __launch_bounds__(kTileThreads, sizeof(T) == 2 ? 3 : 2)
    fp8_quantize_kernel(const __grid_constant__ Fp8Quantize p, bool maxima_only) {
  extern __shared__ __align__(32) uint8_t bytes[];  // staged values, then warps' columns, then q_t
  __shared__ uint32_t row_maxima[kTile], warp_maxima[kTile / 32];
  __shared__ __align__(16) float inverses[2 * kTile];
  wait_for_predecessor();

  // Load
  const int64_t tiles_k = ceil_div(p.k, kTile);
  TilePlace at;
  at.tile_row = blockIdx.x / tiles_k;
  at.tile_column = blockIdx.x % tiles_k;
  at.row = at.tile_row * kTile + threadIdx.x / kTileX * kOwn;
  at.column = at.tile_column * kTile + threadIdx.x % kTileX * kOwn;
  OwnValues<T> own;
  float sums[kOwn];
  load_own<T, Activation{kActivationCode}, kPlain>(own, sums,
                                                   reinterpret_cast<Vec<T, kOwn>*>(bytes), at, p);
  __syncthreads();

  quantize_tile(own, sums, at, {bytes, row_maxima, warp_maxima, inverses}, maxima_only, p);
}

}  // namespace fusedops
