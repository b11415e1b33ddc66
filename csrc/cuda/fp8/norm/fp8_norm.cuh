// layer_norm or rms_norm of rows, with a residual that is added first, straight into FP8 by rows of
// 1x128 and transposed by 128x128: x is read once and the norm's result never written.
//
// A thread block cluster has 128 rows in its shared memory, each block some tiles of 128x128. The
// blocks tell each other what they know of each row, and then each has whole tiles to scale. A
// cluster walks over rows: the slot of a tile that is in registers takes a tile of the next rows,
// so that copies are on the way through all of it.
#pragma once

#include <type_traits>

#include "csrc/common/device/mbarrier.cuh"
#include "csrc/common/device/mma.cuh"
#include "csrc/cuda/fp8/norm/fp8_norm_tile.cuh"

namespace fusedops {

inline constexpr int kNormTiles = 4;    // of a block, at most
inline constexpr int kNormSlots = 6;    // of a block, at most
inline constexpr int kNormSpare = 2;    // slots that copies may be on the way to at a row's start
inline constexpr int kNormBlocks = 16;  // of a cluster, at most; a power of two
inline constexpr int kSlotVectors = kTile * kTile / kOwn;

// The bytes of a transposed tile, what blocks exchange, and slots.
template <bool kRms>
constexpr int norm_shared_bytes(int slots) {
  return kTileBytes + int(round_up(int64_t{sizeof(RowExchange<kRms>)}, 128)) + slots * kSlotBytes;
}

// Slots of a block, which tiles take in turn.
struct NormSlots {
  int count, first;  // first: of the rows at hand

  __device__ __forceinline__ int of(int tile) const {
    const int slot = first + tile;
    return slot < count ? slot : slot - count;
  }
};

// Waits for all of a thread's groups of copies but the last `spare`.
__device__ __forceinline__ void wait_for_tiles(int spare) {
  static_assert(kNormSpare == 2);
  if (spare <= 0) {
    wait_for_copies<0>();
  } else if (spare == 1) {
    wait_for_copies<1>();
  } else {
    wait_for_copies<2>();
  }
}

// A tile of the residual, on its way to the L2 cache: each thread asks for half a row.
template <class T>
__device__ __forceinline__ void prefetch_residual(const TilePlace& at, const Fp8Norm& p) {
  const int64_t row = at.tile_row * kTile + threadIdx.x / 2;
  const int64_t column = at.tile_column * kTile + threadIdx.x % 2 * (kTile / 2);
  if (row >= p.quantize.m || column >= p.quantize.k) return;
  const T* const from = static_cast<const T*>(p.residual) + row * p.residual_stride + column;
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// Values of this thread's rows that 16 lanes share: afterwards the sum of row lane / 2.
__device__ __forceinline__ float sum_rows(float (&values)[kOwn]) {
  const auto add = [](float a, float b) { return a + b; };
  exchange<8>(values, 8, add);
  exchange<4>(values, 4, add);
  exchange<2>(values, 2, add);
  return values[0] + __shfl_xor_sync(kAllLanes, values[0], 1);
}

// x + residual of a tile, rounded to T, in x's place and to memory.
template <class T>
__device__ __forceinline__ void add_residual(Vec<T, kOwn>* slot, const TilePlace& at,
                                             const Fp8Norm& p) {
  if (at.column >= p.quantize.k) return;
  Vec<T, kOwn> others[kOwn];
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    const bool inside = at.row + r < p.quantize.m;
    others[r] =
        load_row<T>(p.residual, p.residual_stride, at.row + r, at.column, inside, p.quantize);
  }
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    Vec<T, kOwn> x = slot[r * kTileThreads];
    add_to(x, others[r]);
    slot[r * kTileThreads] = x;
    if (at.row + r < p.quantize.m) {
      T* const to = static_cast<T*>(p.sum) + (at.row + r) * p.quantize.k + at.column;
      *reinterpret_cast<Vec<T, kOwn>*>(to) = x;
    }
  }
}

// Calls each(row, its vector) for a thread's parts of a block's tiles.
template <class T, class Each>
__device__ __forceinline__ void for_own_rows(const Vec<T, kOwn>* slots, NormSlots ring, int count,
                                             const Each& each) {
#pragma unroll 1
  for (int t = 0; t < count; ++t) {
    const Vec<T, kOwn>* const slot = slots + ring.of(t) * kSlotVectors;
#pragma unroll
    for (int r = 0; r < kOwn; ++r) each(r, slot[r * kTileThreads]);
  }
}

// Sums of a row's values by Tensor Cores, which add in fp32: a product with ones. The four lanes of
// a row of the left operand have the sums of all, its two halves being parts of one row.
template <class T>
__device__ __forceinline__ float sum_values(const Vec<T, kOwn>* slots, NormSlots ring, int count) {
  constexpr uint32_t kOnes = __is_same(T, __half) ? 0x3c003c00u : 0x3f803f80u;
  float sums[kOwn][4] = {}, values[kOwn];
  for_own_rows(slots, ring, count, [&](int r, const Vec<T, kOwn>& v) {
    mma_k16<T>(sums[r], reinterpret_cast<const uint32_t (&)[4]>(v), kOnes, kOnes);
  });
#pragma unroll
  for (int r = 0; r < kOwn; ++r) values[r] = 0.25f * (sums[r][0] + sums[r][2]);
  return sum_rows(values);
}

// Sums of a row's squares likewise, of values that are multiplied exactly: a product with its own
// transpose. Its diagonal has squares of what four lanes have of a row, one of the four lanes an
// element. The left operand's halves are parts of one row, and each its own product.
// NOTE: so that operands are registers as they lie; each product's other half is not wanted.
template <class T>
__device__ __forceinline__ float sum_squares(const Vec<T, kOwn>* slots, NormSlots ring, int count) {
  float upper[kOwn][4] = {}, lower[kOwn][4] = {}, values[kOwn];
  for_own_rows(slots, ring, count, [&](int r, const Vec<T, kOwn>& v) {
    const auto* const words = reinterpret_cast<const uint32_t*>(v.value);
#pragma unroll
    for (int w = 0; w < 4; w += 2) {
      mma_k8<T>(upper[r], words[w], words[w + 1], words[w]);
      mma_k8<T>(lower[r], words[w], words[w + 1], words[w + 1]);
    }
  });
  const int lane = threadIdx.x % 32, line = lane / 4;
  const bool has = lane % 4 == line / 2, odd = line % 2;
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    const float sum = odd ? upper[r][1] + lower[r][3] : upper[r][0] + lower[r][2];
    values[r] = has ? sum : 0.0f;
  }
  return sum_rows(values);
}

// What this block knows of row lane / 2 of a thread's rows. NOTE: columns behind the last are
// zeros, and count in no mean.
template <bool kRms, class T>
__device__ __forceinline__ PartOfRow<kRms> part_of_row(const Vec<T, kOwn>* slots, NormSlots ring,
                                                       TileRange range, int64_t k) {
  const int count = range.end - range.first;
  if constexpr (kRms) {
    return {sum_squares(slots, ring, count)};
  } else {
    const float mean = sum_values(slots, ring, count) / columns_of(range, k);
    const int64_t column = int64_t{range.first} * kTile + threadIdx.x % kTileX * kOwn;
    const int inside = int(ceil_div(k - column, kTile));  // tiles in which the thread has columns
    float values[kOwn] = {}, means[kOwn];
#pragma unroll
    for (int r = 0; r < kOwn; ++r) means[r] = __shfl_sync(kAllLanes, mean, 2 * r, kTileX);
    for_own_rows(slots, ring, min(count, inside), [&](int r, const Vec<T, kOwn>& v) {
#pragma unroll
      for (int i = 0; i < kOwn; i += 2) {
        const float2 x = two_of(v.value + i);
        const float a = x.x - means[r], b = x.y - means[r];
        values[r] = fmaf(a, a, fmaf(b, b, values[r]));
      }
    });
    return {sum_rows(values), mean};
  }
}

// A tile of which both outputs take each value: as floats, since a pair of T costs each of them two
// instructions. A layer norm, with twice the parameters, has no registers for them.
template <class T, bool kRms>
using NormedValues = OwnValues<std::conditional_t<kRms, float, T>>;

template <class T, bool kRms>
__global__ void __launch_bounds__(kTileThreads, 2)
    fp8_norm_kernel(const __grid_constant__ Fp8Norm p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(32) uint8_t bytes[];  // of a tile, before it rows' statistics
  auto* const statistics = reinterpret_cast<RowStatistics<kRms>*>(bytes);
  auto* const exchange = reinterpret_cast<RowExchange<kRms>*>(bytes + kTileBytes);
  auto* const slots =
      reinterpret_cast<Vec<T, kOwn>*>(bytes + norm_shared_bytes<kRms>(0)) + threadIdx.x;
  const uint32_t parts_arrived = shared_address(&exchange->parts_arrived);
  const uint32_t statistics_arrived = shared_address(&exchange->statistics_arrived);
  if (threadIdx.x == 0) {
    init_barrier(parts_arrived, 1), init_barrier(statistics_arrived, 1);
    release_barrier_init();
  }
  __syncthreads();   // warps are whole
  cluster_arrive();  // this block can be told
  wait_for_predecessor();

  const ClusterSize cluster{31 - __clz(p.cluster)};
  const int rank = int(blockIdx.x) & (cluster.blocks() - 1);
  const int tiles = int(ceil_div(p.quantize.k, int64_t{kTile}));
  const int tile_rows = int(ceil_div(p.quantize.m, int64_t{kTile}));
  const TileRange range = tiles_of(rank, cluster, tiles);
  const int count = range.end - range.first, step = int(gridDim.x) >> cluster.log;
  const auto place = [&](int tile_row, int t) {
    TilePlace at;
    at.tile_row = tile_row;
    at.tile_column = range.first + t;
    at.row = at.tile_row * kTile + threadIdx.x / kTileX * kOwn;
    at.column = at.tile_column * kTile + threadIdx.x % kTileX * kOwn;
    return at;
  };
  int tile_row = int(blockIdx.x) >> cluster.log;
  // The next copy, and the number of tiles in which this thread has columns.
  int next_row = tile_row, next_tile = 0;
  const T* next_x = static_cast<const T*>(p.quantize.x) + place(next_row, 0).column +
                    place(next_row, 0).row * p.quantize.x_stride;
  const int whole_tiles = int(ceil_div(p.quantize.k - place(0, 0).column, kTile));
  const auto fetch_next = [&](int slot) {
    if (next_row < tile_rows) {
      fetch(slots + slot * kSlotVectors, next_x, p.quantize.x_stride, rows_of(next_row, p.quantize),
            next_tile < whole_tiles ? 16 : 0);
      if (p.residual) prefetch_residual<T>(place(next_row, next_tile), p);
    }
    commit_copies();  // of nothing at the end: they are counted
    next_x += kTile;
    if (++next_tile < count) return;
    next_x += step * kTile * p.quantize.x_stride - count * kTile;
    next_tile = 0, next_row += step;
  };
#pragma unroll 1
  for (int slot = 0; slot < p.slots; ++slot) fetch_next(slot);
  __syncwarp();
  cluster_wait();

  NormSlots ring{p.slots, 0};
  uint32_t parity = 0;
#pragma unroll 1
  for (; tile_row < tile_rows; tile_row += step, parity ^= 1) {
    if (threadIdx.x == 0) {
      expect_bytes(parts_arrived, sizeof(exchange->parts));
      expect_bytes(statistics_arrived, kTile * sizeof(RowStatistics<kRms>));
    }
    wait_for_tiles(p.slots - count);  // each thread reads what it has copied
    if (p.residual) {
#pragma unroll 1
      for (int t = 0; t < count; ++t) {
        add_residual(slots + ring.of(t) * kSlotVectors, place(tile_row, t), p);
      }
    }

    // Statistics
    __syncwarp();  // whole, for Tensor Cores
    const PartOfRow<kRms> part = part_of_row<kRms>(slots, ring, range, p.quantize.k);
    const int lane = threadIdx.x % kTileX, y = threadIdx.x / kTileX;
    const int in_tile = y * kOwn + lane / 2;
    __syncthreads();  // statistics may arrive where the last tile's bytes were
    if (lane % 2 == 0) {
      const int owned = cluster.owned_rows();
      send_to_block(exchange->parts + rank * owned + (in_tile & (owned - 1)),
                    &exchange->parts_arrived, cluster.owner_of(in_tile), part);
    }
    NormPlace at(tile_row, range.first, p.quantize);
    NormParameters<kRms> next;
    next.template load_all<T>(at.column, p);
    if (threadIdx.x < kTile) {
      answer_rows(exchange, statistics, rank, cluster, tiles, p.quantize.k, p.eps, parity,
                  [&](int of_tile, const RowStatistics<kRms>& found) {
                    const int64_t row = int64_t{tile_row} * kTile + of_tile;
                    if (row >= p.quantize.m) return;
                    p.rstd[row] = found.rstd;
                    if constexpr (!kRms) p.mean[row] = found.mean;
                  });
    }
    wait_for_barrier(statistics_arrived, parity);
    RowStatistics<kRms> of_row[kOwn];
#pragma unroll
    for (int r = 0; r < kOwn; ++r) of_row[r] = statistics[y * kOwn + r];

    // Tiles
#pragma unroll 1
    for (int t = 0; t < count; ++t) {
      const int slot = ring.of(t);
      NormedValues<T, kRms> own;
      uint32_t maxima[kOwn / 2];
      normalize<kRms>(own, maxima, slots + slot * kSlotVectors, of_row, next, at, p.quantize);
      const Fp8Quantize& q = p.quantize;
      const Fp8Scale scale =
          fp8_scale(maximum_of_row<T>(maxima), largest_value(q.format), q.power_of_two);
      fetch_next(slot);
      if (q.rows.scaling != Fp8Scaling::kNone) write_rows(own, scale, at, q);
      const bool columns = q.columns.scaling != Fp8Scaling::kNone;
      if (columns) {
        scale_columns(own, scale, tile_row, range.first + t, bytes, exchange->of_warps, q);
      }
      if (t + 1 < count) next.template load_all<T>(at.column + kTile, p);
      if (columns) {
        __syncthreads();
        store_columns(bytes, at.column_bytes, q.columns.pitch, at.columns);
      }
      at.next_tile(q);
    }
    ring.first = ring.of(count);
  }
#endif
}

}  // namespace fusedops
