// layer_norm or rms_norm of rows, with a residual that is added first, straight into FP8 by rows of
// 1x128 and transposed by 128x128: the norm's result is never written. x is read twice, the second
// time from the L2 cache.
//
// A block has a tile of 128x128 and, beside it, some whole rows of x some 128-row bands further on,
// of which it finds the statistics. It says them in words of memory, which tell by themselves that
// they are there, so that blocks of that band's tiles need no barrier and hardly wait.
// NOTE: a block waits for blocks before it alone, and says what it finds before it waits: whatever
// number of blocks has a place, those that began first can end.
#pragma once

#include "csrc/common/device/mma.cuh"
#include "csrc/cuda/fp8/norm/fp8_norm_tile.cuh"

namespace fusedops {

template <bool kResidual>
inline constexpr int kRowVectors = kResidual ? 4 : 8;  // of a lane, on the way at a time

struct Fp8NormCall {
  Fp8Norm norm;
  uint64_t* words;  // (m, 1 or 2): an RMS norm's rstd, or mean and rstd; zeros at first
  int bands;        // how far statistics are ahead
  int rows_log;     // of the rows that a block finds statistics of
  int parts_log;    // of the warps that share a row
};

inline constexpr int kNormSharedBytes = kTileBytes + kSlotBytes;

// ---- words: a float with a mark that it is there ----

__device__ __forceinline__ void say(uint64_t* word, float value) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(word),
               "l"(uint64_t{1} << 32 | __float_as_uint(value))
               : "memory");
}
__device__ __forceinline__ uint64_t ask(const uint64_t* word) {
  uint64_t found;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(found) : "l"(word) : "memory");
  return found;
}
__device__ __forceinline__ float hear(const uint64_t* word, uint64_t found) {
  while (found >> 32 == 0) found = ask(word);
  return __uint_as_float(uint32_t(found));
}

__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) value += __shfl_xor_sync(kAllLanes, value, bit);
  return value;
}

// ---- statistics ----

// What a warp knows of its part of a row.
template <bool kRms>
struct PartOfRow {
  float squares, mean;  // of a layer norm differences to the mean
};
template <>
struct PartOfRow<true> {
  float squares;
};

// A row of x, with that of the residual and of their sum.
template <class T>
struct NormRow {
  const T *x, *residual;
  T* sum;

  __device__ __forceinline__ NormRow(int64_t row, const Fp8Norm& p)
      : x(static_cast<const T*>(p.quantize.x) + row * p.quantize.x_stride),
        residual(static_cast<const T*>(p.residual) + row * p.residual_stride),
        sum(static_cast<T*>(p.sum) + row * p.quantize.k) {}
};

// kCount vectors of a row from its vector `first` on, zeros from `end` on.
template <class T, int kCount>
__device__ __forceinline__ void load_vectors(Vec<T, kOwn> (&v)[kCount], const T* row, int first,
                                             int end) {
  const int own = first + int(threadIdx.x) % 32;
  const auto* const from = reinterpret_cast<const Vec<T, kOwn>*>(row) + own;
  if (first + kCount * 32 <= end) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = from[i * 32];
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    v[i] = {};
    if (own + i * 32 < end) v[i] = from[i * 32];
  }
}

// The same of x + residual, which it writes.
template <class T, int kCount>
__device__ __forceinline__ void load_sums(Vec<T, kOwn> (&v)[kCount], const NormRow<T>& row,
                                          int first, int end) {
  Vec<T, kOwn> others[kCount];
  load_vectors(v, row.x, first, end);
  load_vectors(others, row.residual, first, end);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    add_to(v[i], others[i]);
    const int at = first + int(threadIdx.x) % 32 + i * 32;
    if (at < end) reinterpret_cast<Vec<T, kOwn>*>(row.sum)[at] = v[i];
  }
}

// The sum of squares of all that a warp's lanes have, by Tensor Cores, which add in fp32: words
// times their own transpose. The diagonal has the squares of what four lanes have, one of the four
// lanes an element. The left operand's halves are one product each.
// NOTE: so that operands are registers as they lie; each product's other half is not wanted.
template <class T>
struct WarpSquares {
  float upper[4] = {}, lower[4] = {};

  __device__ __forceinline__ void add(const Vec<T, kOwn>& v) {
    const auto* const words = reinterpret_cast<const uint32_t*>(v.value);
#pragma unroll
    for (int w = 0; w < 4; w += 2) {
      mma_k8<T>(upper, words[w], words[w + 1], words[w]);
      mma_k8<T>(lower, words[w], words[w + 1], words[w + 1]);
    }
  }
  __device__ __forceinline__ float sum() const {
    const int lane = threadIdx.x % 32, line = lane / 4;
    const float own = line % 2 ? upper[1] + lower[3] : upper[0] + lower[2];
    return sum_of_warp(lane % 4 == line / 2 ? own : 0.0f);
  }
};

// The part of a row in vectors [first, end), of a warp.
template <bool kRms, bool kResidual, class T>
__device__ __forceinline__ PartOfRow<kRms> part_of_warp(const NormRow<T>& row, int first, int end) {
  constexpr int kCount = kRowVectors<kResidual>;
  Vec<T, kOwn> v[kCount];
  const auto load = [&](int from) {
    kResidual ? load_sums(v, row, from, end) : load_vectors(v, row.x, from, end);
  };
  if constexpr (kRms) {
    WarpSquares<T> squares;
#pragma unroll 1
    for (; first < end; first += kCount * 32) {
      load(first);
#pragma unroll
      for (int i = 0; i < kCount; ++i) squares.add(v[i]);
    }
    return {squares.sum()};
  } else {
    constexpr uint32_t kOnes = __is_same(T, __half) ? 0x3c003c00u : 0x3f803f80u;
    PartOfRow<false> part{0, 0};
    float count = 0;
#pragma unroll 1
    for (; first < end; first += kCount * 32) {
      load(first);
      float sums[4] = {};
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        mma_k16<T>(sums, reinterpret_cast<const uint32_t (&)[4]>(v[i]), kOnes, kOnes);
      }
      const float now = float(min(end - first, kCount * 32) * kOwn);
      const float mean = sum_of_warp(0.25f * (sums[0] + sums[2])) / now;
      float squares = 0;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (first + int(threadIdx.x) % 32 + i * 32 >= end) continue;
#pragma unroll
        for (int c = 0; c < kOwn; c += 2) {
          const float2 x = two_of(v[i].value + c);
          const float a = x.x - mean, b = x.y - mean;
          squares = fmaf(a, a, fmaf(b, b, squares));
        }
      }
      // As Chan, Golub and LeVeque join parts.
      const float d = mean - part.mean, share = now / (count + now);
      part.squares += sum_of_warp(squares) + d * d * count * share;
      part.mean += d * share, count += now;
    }
    return part;
  }
}

// The vectors of a warp that has part `part` of a row: [first, end).
struct VectorRange {
  int first, end;
};
__device__ __forceinline__ VectorRange vectors_of(int part, int parts_log, int vectors) {
  return {part * vectors >> parts_log, (part + 1) * vectors >> parts_log};
}

// Finds the statistics of 2^rows_log rows from `row` on. All threads call it.
template <bool kRms, bool kResidual, class T>
__device__ __forceinline__ void find_statistics(int row, PartOfRow<kRms>* parts,
                                                const Fp8NormCall& a) {
  const Fp8Norm& p = a.norm;
  const int rows = 1 << a.rows_log, vectors = int(p.quantize.k / kOwn);
  const int parts_log = a.parts_log, parts_of_row = 1 << parts_log;
  static_assert(kTileWarps == 8);
#pragma unroll 1
  for (int i = int(threadIdx.x) / 32; i < rows << parts_log; i += kTileWarps) {
    const int own = row + (i >> parts_log);
    if (own >= int(p.quantize.m)) break;
    const VectorRange range = vectors_of(i & (parts_of_row - 1), parts_log, vectors);
    const auto part = part_of_warp<kRms, kResidual>(NormRow<T>(own, p), range.first, range.end);
    if (threadIdx.x % 32 == 0) parts[i] = part;
  }
  __syncthreads();
  const int own = threadIdx.x;
  if (own >= rows || row + own >= int(p.quantize.m)) return;
  const PartOfRow<kRms>* const of_row = parts + (own << parts_log);
  const float inverse = 1.0f / float(p.quantize.k);
  if constexpr (kRms) {
    float squares = 0;
    for (int i = 0; i < parts_of_row; ++i) squares += of_row[i].squares;
    const float rstd = rsqrtf(squares * inverse + p.eps);
    say(a.words + row + own, rstd);
    p.rstd[row + own] = rstd;
  } else {
    float mean = 0, squares = 0;
    const auto count = [&](int i) {
      const VectorRange range = vectors_of(i, parts_log, vectors);
      return float((range.end - range.first) * kOwn);
    };
    for (int i = 0; i < parts_of_row; ++i) mean += count(i) * of_row[i].mean;
    mean *= inverse;
    for (int i = 0; i < parts_of_row; ++i) {
      const float d = of_row[i].mean - mean;
      squares += of_row[i].squares + count(i) * d * d;
    }
    const float rstd = rsqrtf(squares * inverse + p.eps);
    say(a.words + 2 * (row + own), mean), say(a.words + 2 * (row + own) + 1, rstd);
    p.rstd[row + own] = rstd, p.mean[row + own] = mean;
  }
}

// ---- the kernel ----

__global__ void fp8_norm_words_kernel(uint64_t* words, int64_t count) {
  wait_for_predecessor();
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) words[i] = 0;
}

template <class T, bool kRms, bool kResidual>
__global__ void __launch_bounds__(kTileThreads, 3)
    fp8_norm_kernel(const __grid_constant__ Fp8NormCall a) {
  extern __shared__ __align__(32) uint8_t bytes[];  // a tile's transpose, then its x
  __shared__ RowStatistics<kRms> statistics[kTile];
  __shared__ PartOfRow<kRms> parts[kTile];
  __shared__ uint2 of_warps[kTileWarps];
  const Fp8Norm& p = a.norm;
  const Fp8Quantize& q = p.quantize;
  auto* const slot = reinterpret_cast<Vec<T, kOwn>*>(bytes + kTileBytes) + threadIdx.x;
  const int tile = blockIdx.x, ahead = blockIdx.y;  // blocks begin in the order of both
  const int tile_row = ahead - a.bands;
  wait_for_predecessor();

  // Copies, and statistics
  if (tile_row >= 0) {
    TilePlace at;
    at.tile_row = tile_row, at.tile_column = tile;
    at.row = at.tile_row * kTile + threadIdx.x / kTileX * kOwn;
    at.column = at.tile_column * kTile + threadIdx.x % kTileX * kOwn;
    fetch(slot, at, q);
    commit_copies();
  }
  // NOTE: asked early, so that what is there mostly has come when it is wanted.
  const int own_row = max(min(tile_row * kTile + int(threadIdx.x) % kTile, int(q.m) - 1), 0);
  const uint64_t* const words = a.words + int64_t{own_row} * (kRms ? 1 : 2);
  const uint64_t asked = ask(words), asked_too = kRms ? 0 : ask(words + 1);
  const int first = tile << a.rows_log;
  if (ahead < int(gridDim.y) - a.bands && first < kTile) {
    find_statistics<kRms, kResidual, T>(ahead * kTile + first, parts, a);
  }
  if (tile_row < 0) return;

  // What this tile's rows wait for
  NormPlace at(tile_row, tile, q);
  if (threadIdx.x < kTile) {
    RowStatistics<kRms> found;
    if constexpr (kRms) {
      found.rstd = hear(words, asked);
    } else {
      found.mean = hear(words, asked), found.rstd = hear(words + 1, asked_too);
    }
    statistics[threadIdx.x] = found;
  }
  __syncthreads();

  // The tile
  if constexpr (kResidual) {
    Vec<T, kOwn> others[kOwn];
    const int64_t row = int64_t{tile_row} * kTile + threadIdx.x / kTileX * kOwn;
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      others[r] = {};
      if (r >= at.rows || at.column >= int(q.k)) continue;
      const T* const from = NormRow<T>(row + r, p).residual + at.column;
      others[r] = *reinterpret_cast<const Vec<T, kOwn>*>(from);
    }
    wait_for_copies<0>();
#pragma unroll
    for (int r = 0; r < kOwn; ++r) add_to(slot[r * kTileThreads], others[r]);
  }
  wait_for_copies<0>();  // each thread reads what it has copied
  NormParameters<kRms> with;
  with.template load_all<T>(at.column, p);
  RowStatistics<kRms> of_row[kOwn];
#pragma unroll
  for (int r = 0; r < kOwn; ++r) of_row[r] = statistics[threadIdx.x / kTileX * kOwn + r];
  OwnValues<T> own;
  uint32_t maxima[kOwn / 2];
  normalize<kRms>(own, maxima, slot, of_row, with, at, q);
  const Fp8Scale scale =
      fp8_scale(maximum_of_row<T>(maxima), largest_value(q.format), q.power_of_two);
  if (q.rows.scaling != Fp8Scaling::kNone) write_rows(own, scale, at, q);
  if (q.columns.scaling == Fp8Scaling::kNone) return;
  scale_columns(own, scale, tile_row, tile, bytes, of_warps, q);
  __syncthreads();
  store_columns(bytes, at.column_bytes, q.columns.pitch, at.columns);
}

}  // namespace fusedops
