// Scans along contiguous rows, one read and one write of memory.
//
// A block holds a tile in registers: 16-byte vectors, two per thread, aligned in the output
// whatever the row length. Short rows share a tile and are told apart by head flags (a segmented
// scan). Long rows are taken tile after tile by one block where there are rows for all SMs; else a
// row of up to eight tiles is a cluster of blocks, which exchange their totals through distributed
// shared memory, and a longer one is chained over the grid (scan_chain.cuh).
// A reverse scan walks the same vectors from the other end.
#pragma once

#include <cooperative_groups.h>

#include <algorithm>

#include "cuda/scan_chain.cuh"
#include "cuda/scan_op.cuh"

namespace fusedops {

inline constexpr int kScanVectors = 2;  // per thread
inline constexpr int kScanThreads = 512;
inline constexpr int kScanWarps = kScanThreads / 32;
inline constexpr int kScanMaxCluster = 8;  // blocks, what every GPU of 9.0 and later grants
static_assert(kScanVectors * kScanWarps == 32, "one total per lane");

template <class Op>
inline constexpr int kScanTile = kScanThreads * kScanVectors * Op::kVec;

// Where rows may start in a tile: nowhere (one row), with a vector, anywhere.
enum class Heads : int8_t { kNone, kVector, kAny };

// NOTE: a type, because nvcc 13.0 cannot name a structure's value as a template argument.
template <Heads kHeads, bool kReverse>
struct ScanMode {
  static constexpr bool packed = kHeads != Heads::kNone, anywhere = kHeads == Heads::kAny;
  static constexpr bool reverse = kReverse;
};

template <class Op>
struct ScanRows {
  const typename Op::In* x;  // (rows, n), row stride x_stride
  typename Op::Out* y;       // (rows, n)
  int64_t* index;            // (rows, n), indexed operators only
  int64_t rows, n, x_stride;
  float per_n;  // 1 / n
  bool exclusive, reverse;
  int64_t rows_per_tile;  // more than one: they are packed, x_stride is n
  int64_t tiles_per_row;  // more than one: `looped`, a cluster or a chain
  bool looped;
  bool clustered;
  uint64_t* chain;  // tiles drawn, then (rows, ChainShape(tiles_per_row).states(), pieces); zero
};

// A thread's vectors in what the block covers: `count` elements, in vectors that are aligned in y.
// Elements are counted in memory order from the start of the block's first row.
template <class Op, class Mode>
struct ScanWindow {
  static constexpr int kVec = Op::kVec;
  using In = Vec<typename Op::In, kVec>;
  const typename Op::In* x;
  int64_t out;  // offset in y
  int64_t count;
  int64_t first;  // element of the thread's first vector
  bool whole;     // every vector lies within [0, count)

  __device__ ScanWindow(const typename Op::In* x, int64_t out, int64_t count, int64_t tile)
      : x(x), out(out), count(count) {
    const int phase = static_cast<int>(out % kVec);
    const int64_t vector = tile * kScanVectors * kScanThreads + threadIdx.x;
    const int64_t last = (phase + count + kVec - 1) / kVec - 1;
    first = (Mode::reverse ? last - vector : vector) * kVec - phase;
    const int64_t a = element(0), b = element(kScanVectors - 1);
    whole = min(a, b) >= 0 && max(a, b) + kVec <= count;
  }

  __device__ int64_t element(int k) const {
    constexpr int kStep = (Mode::reverse ? -1 : 1) * kScanThreads * kVec;
    return first + k * kStep;
  }

  // Item i in scan order
  static __device__ int place(int i) { return Mode::reverse ? kVec - 1 - i : i; }

  __device__ void load(Packed<In> (&in)[kScanVectors]) const {
    if (whole && reinterpret_cast<uintptr_t>(x + first) % sizeof(In) == 0) {
#pragma unroll
      for (int k = 0; k < kScanVectors; ++k) {
        in[k] = *reinterpret_cast<const Packed<In>*>(x + element(k));
      }
      return;
    }
#pragma unroll
    for (int k = 0; k < kScanVectors; ++k) {
      In v;
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const int64_t e = element(k) + i;
        v.value[i] = e >= 0 && e < count ? x[e] : Op::pad();
      }
      in[k] = pack(v);
    }
  }

  template <class T>
  __device__ void store(T* y, int k, const Vec<T, kVec>& v) const {
    if (whole) {
      *reinterpret_cast<Vec<T, kVec>*>(y + out + element(k)) = v;
      return;
    }
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const int64_t e = element(k) + i;
      if (e >= 0 && e < count) y[out + e] = v.value[i];
    }
  }

  // Bit i: item i of vector k starts a row. Packed rows only: an element's number is less than
  // 2^14, so that one rounding of e / n cannot reach the next integer.
  __device__ unsigned heads(int k, int n, float per_n) const {
    if constexpr (!Mode::packed) return 0;
    int e = static_cast<int>(element(k));
    if constexpr (Mode::reverse) e = static_cast<int>(count) - kVec - e;
    const int at = e - n * __float2int_rd((static_cast<float>(e) + 0.5f) * per_n);
    if constexpr (!Mode::anywhere) return at == 0;
    unsigned bits = 0;
    for (int i = at > 0 ? n - at : 0; i < kVec; i += n) bits |= 1u << i;
    return bits;
  }

  // Position along its row of the first item of vector k; indexed operators only.
  __device__ int64_t position(int k, int64_t n) const {
    if constexpr (!Op::kIndexed) return 0;
    return Mode::packed ? static_cast<int>(element(k)) % static_cast<int>(n) : element(k);
  }
  __device__ static int64_t next_position(int64_t at, int64_t n) {
    if constexpr (!Op::kIndexed) return 0;
    return Mode::packed && at + 1 == n ? 0 : at + 1;
  }
};

// The first lane from which this one takes: the last at or before it that has a head, or 0.
__device__ __forceinline__ int first_lane(unsigned head_lanes) {
  const int lane = threadIdx.x % 32;
  const unsigned upto = head_lanes & (kAllLanes >> (31 - lane));
  return upto ? 31 - __clz(upto) : 0;
}

// Segmented inclusive scans over the lanes, several at a time.
template <class Op, int kCount>
__device__ __forceinline__ void scan_lanes(typename Op::State (&s)[kCount],
                                           const int (&first)[kCount]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const auto before = shfl_up(s[k], d);
      if (lane - d >= first[k]) s[k] = Op::combine(before, s[k]);
    }
  }
}

template <class Op>
struct ScanShared {
  typename Op::State total[32];  // of the warps' vectors; order: vector, then warp
  bool head[32];
  typename Op::State sum;  // of the block
  ChainShared<typename Op::State, kScanWarps> chain;
};

// What a block adds up to, and whether a row starts in it.
template <class State>
struct Total {
  State state;
  bool head;
};

// In: totals of the thread's vectors, and whether a row starts in them. Out: what each of them
// starts from. All threads call prefix_of(total of the block) for what precedes the block.
template <class Op, bool kHeads, class Prefix>
__device__ __forceinline__ void scan_block(ScanShared<Op>& shared,
                                           const bool (&heads)[kScanVectors],
                                           typename Op::State (&carry)[kScanVectors],
                                           Prefix prefix_of) {
  using State = typename Op::State;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  // Within warps
  unsigned head_lanes[kScanVectors];
  int first[kScanVectors];
#pragma unroll
  for (int k = 0; k < kScanVectors; ++k) {
    head_lanes[k] = kHeads ? __ballot_sync(kAllLanes, heads[k]) : 0;
    first[k] = kHeads ? first_lane(head_lanes[k]) : 0;
  }
  scan_lanes<Op>(carry, first);
  if (lane == 31) {
#pragma unroll
    for (int k = 0; k < kScanVectors; ++k) {
      shared.total[k * kScanWarps + warp] = carry[k];
      shared.head[k * kScanWarps + warp] = head_lanes[k] != 0;
    }
  }
#pragma unroll
  for (int k = 0; k < kScanVectors; ++k) {
    carry[k] = shfl_up(carry[k], 1);
    if (lane == 0) carry[k] = Op::identity();
  }
  __syncthreads();

  // Across warps and vectors: every warp scans the 32 totals
  const unsigned head_totals = kHeads ? __ballot_sync(kAllLanes, shared.head[lane]) : 0;
  const int first_total[1] = {kHeads ? first_lane(head_totals) : 0};
  State total[1] = {shared.total[lane]};
  scan_lanes<Op>(total, first_total);
  State before = shfl_up(total[0], 1);
  if (lane == 0) before = Op::identity();

  // Across blocks
  const State prefix = prefix_of(Total<State>{shfl(total[0], 31), head_totals != 0});
#pragma unroll
  for (int k = 0; k < kScanVectors; ++k) {
    const int j = k * kScanWarps + warp;
    State earlier = shfl(before, j);
    if ((head_totals & ((1u << j) - 1)) == 0) earlier = Op::combine(prefix, earlier);
    // A row that starts in a lane before this one takes nothing from earlier warps
    if ((head_lanes[k] & ((1u << lane) - 1)) == 0) carry[k] = Op::combine(earlier, carry[k]);
  }
}

// A thread's share of a tile. The heads of a vector are bits: item i starts a row.
template <class Op, class Mode>
struct ScanShare {
  using State = typename Op::State;
  using Window = ScanWindow<Op, Mode>;
  using In = typename Window::In;
  static constexpr int kVec = Op::kVec;
  unsigned heads[kScanVectors];
  State upto[kScanVectors][kVec];  // from the vector's begin, or its last head, to each item
  State carry[kScanVectors];       // what the vector starts from

  __device__ bool starts_row(int k, int i) const {
    return Mode::packed && (Mode::anywhere || i == 0) && (heads[k] >> i & 1);
  }
  // A row starts in the vector, at item i or before.
  __device__ bool started_row(int k, int i) const {
    return Mode::packed && (heads[k] & (Mode::anywhere ? (2u << i) - 1 : 1)) != 0;
  }

  template <class Prefix>
  __device__ void scan(ScanShared<Op>& shared, const Window& window,
                       const Packed<In> (&in)[kScanVectors], const ScanRows<Op>& p,
                       Prefix prefix_of) {
    bool any_head[kScanVectors];
#pragma unroll
    for (int k = 0; k < kScanVectors; ++k) {
      heads[k] = window.heads(k, static_cast<int>(p.n), p.per_n);
      any_head[k] = heads[k] != 0;
      const In v = unpack(in[k]);
      int64_t at = window.position(k, p.n);
#pragma unroll
      for (int i = 0; i < kVec; ++i, at = Window::next_position(at, p.n)) {
        upto[k][i] = Op::lift(v.value[Window::place(i)], at);
        if (i > 0 && !starts_row(k, i)) upto[k][i] = Op::combine(upto[k][i - 1], upto[k][i]);
      }
      carry[k] = upto[k][kVec - 1];
    }
    scan_block<Op, Mode::packed>(shared, any_head, carry, prefix_of);
  }

  __device__ void store(const Window& window, const ScanRows<Op>& p) {
#pragma unroll
    for (int k = 0; k < kScanVectors; ++k) {
      Vec<typename Op::Out, kVec> out;
      Vec<int64_t, kVec> index;
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        if (!started_row(k, i)) upto[k][i] = Op::combine(carry[k], upto[k][i]);
        if constexpr (Op::kIndexed) index.value[Window::place(i)] = upto[k][i].index;
      }
      if (p.exclusive) {
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          const State& before = i > 0 ? upto[k][i > 0 ? i - 1 : 0] : carry[k];
          out.value[Window::place(i)] = Op::value(starts_row(k, i) ? Op::identity() : before);
        }
      } else {
#pragma unroll
        for (int i = 0; i < kVec; ++i) out.value[Window::place(i)] = Op::value(upto[k][i]);
      }
      window.store(p.y, k, out);
      if constexpr (Op::kIndexed) window.store(p.index, k, index);
    }
  }
};

// Totals of the blocks of a cluster, combined in the order of their ranks.
template <class Op>
__device__ __forceinline__ typename Op::State cluster_prefix(ScanShared<Op>& shared,
                                                             const typename Op::State& total) {
#if __CUDA_ARCH__ >= 900
  const auto cluster = cooperative_groups::this_cluster();
  const int lane = threadIdx.x % 32, rank = static_cast<int>(cluster.block_rank());
  if (threadIdx.x == 0) shared.sum = total;
  cluster.sync();
  return reduce_lanes<Op>(lane < rank ? *cluster.map_shared_rank(&shared.sum, lane)
                                      : Op::identity());
#else
  return total;  // the host never asks for a cluster
#endif
}

template <class Op>
inline constexpr int kScanBlocks = sizeof(typename Op::State) > 4 ? 2 : 3;  // per SM
inline constexpr int kScanAheadBlocks = 2;  // with the next tile on its way

// A tile of whole rows, or one tile of a long row.
template <class Op, class Mode>
__global__ void __launch_bounds__(kScanThreads, kScanBlocks<Op>)
    scan_rows_kernel(const ScanRows<Op> p) {
  using State = typename Op::State;
  using Window = ScanWindow<Op, Mode>;
  __shared__ ScanShared<Op> shared;
  const auto tiles = static_cast<unsigned>(p.tiles_per_row);
  const int64_t row = blockIdx.x / tiles * p.rows_per_tile;
  const int64_t rows = Mode::packed ? min(p.rows_per_tile, p.rows - row) : 1;
  const Window window(p.x + row * p.x_stride, row * p.n, rows * p.n, blockIdx.x % tiles);
  Packed<typename Window::In> in[kScanVectors];
  window.load(in);
  ScanShare<Op, Mode> share;
  share.scan(shared, window, in, p, [&](const Total<State>& total) {
    return Mode::packed || tiles == 1 ? Op::identity() : cluster_prefix(shared, total.state);
  });
  share.store(window, p);
#if __CUDA_ARCH__ >= 900
  // Shared memory stays until every block has read it
  if (!Mode::packed && p.clustered) cooperative_groups::this_cluster().sync();
#endif
}

// A long row: tile after tile, the next one already on its way.
template <class Op, class Mode>
__global__ void __launch_bounds__(kScanThreads, kScanAheadBlocks)
    scan_loop_kernel(const ScanRows<Op> p) {
  using State = typename Op::State;
  using Window = ScanWindow<Op, Mode>;
  __shared__ ScanShared<Op> shared[2];  // NOTE: two, so that one barrier per tile is enough
  const int64_t row = blockIdx.x;
  const auto window_of = [&](int64_t tile) {
    return Window(p.x + row * p.x_stride, row * p.n, p.n, tile);
  };
  Packed<typename Window::In> in[kScanVectors], next[kScanVectors];
  window_of(0).load(next);
  State before = Op::identity();
  for (int64_t tile = 0; tile < p.tiles_per_row; ++tile) {
#pragma unroll
    for (int k = 0; k < kScanVectors; ++k) in[k] = next[k];
    if (tile + 1 < p.tiles_per_row) window_of(tile + 1).load(next);
    const Window window = window_of(tile);
    ScanShare<Op, Mode> share;
    share.scan(shared[tile % 2], window, in, p, [&](const Total<State>& total) {
      const State prefix = before;
      before = Op::combine(before, total.state);
      return prefix;
    });
    share.store(window, p);
  }
}

// Tiles of rows that are too few to have a block each. Blocks draw tiles in order, so that a tile
// waits for tiles that running blocks hold and for no others, whatever else runs on the GPU. The
// next tile is already on its way, the one after it is being drawn.
template <class Op, class Mode>
__global__ void __launch_bounds__(kScanThreads, kScanAheadBlocks)
    scan_chain_kernel(const ScanRows<Op> p) {
  using State = typename Op::State;
  using Window = ScanWindow<Op, Mode>;
  __shared__ ScanShared<Op> shared[2];  // NOTE: as above
  __shared__ int64_t first[2], drawn[2];
  const int64_t tiles = p.tiles_per_row, count = p.rows * tiles;
  const ChainShape shape(tiles);
  const auto draw = [&] {
    return threadIdx.x > 0 ? count
                           : static_cast<int64_t>(
                                 atomicAdd(reinterpret_cast<unsigned long long*>(p.chain), 1ull));
  };
  const auto window_of = [&](int64_t part) {
    const int64_t row = part / tiles;
    return Window(p.x + row * p.x_stride, row * p.n, p.n, part - row * tiles);
  };
  if (threadIdx.x == 0) {
    first[0] = draw();
    first[1] = draw();
  }
  __syncthreads();
  int64_t part = first[0], following = first[1], ahead = draw();
  Packed<typename Window::In> in[kScanVectors], next[kScanVectors];
  if (part < count) window_of(part).load(next);
  for (int turn = 0; part < count; turn ^= 1) {
#pragma unroll
    for (int k = 0; k < kScanVectors; ++k) in[k] = next[k];
    if (following < count) window_of(following).load(next);
    // NOTE: read by all behind the barriers of this tile, written again behind those of the next
    if (threadIdx.x == 0) drawn[turn] = ahead;
    ahead = draw();
    const Window window = window_of(part);
    ScanShare<Op, Mode> share;
    share.scan(shared[turn], window, in, p, [&](const Total<State>& total) {
      const int64_t row = part / tiles;
      return chain_prefix<Op>(shared[turn].chain,
                              p.chain + 1 + row * shape.states() * kPieces<State>, shape,
                              part - row * tiles, total.state);
    });
    share.store(window, p);
    part = following;
    following = drawn[turn];
  }
}

// Rows per tile and tiles per row, one of which is 1; the first vector may start before the row.
template <class Op>
void plan_rows(ScanRows<Op>& p, bool clusters, int sm_count) {
  constexpr int kWaves = 2;
  p.per_n = 1.0f / static_cast<float>(p.n);
  const int64_t lead = p.n % Op::kVec == 0 ? 0 : Op::kVec - 1;
  p.rows_per_tile = p.x_stride == p.n ? std::max<int64_t>(1, (kScanTile<Op> - lead) / p.n) : 1;
  p.tiles_per_row = ceil_div(p.n + lead, int64_t{kScanTile<Op>});
  p.looped = p.tiles_per_row > 1 && p.rows >= int64_t{kWaves} * kScanBlocks<Op> * sm_count;
  p.clustered = clusters && p.tiles_per_row > 1 && p.tiles_per_row <= kScanMaxCluster && !p.looped;
}

template <class Op>
int64_t chain_bytes(const ScanRows<Op>& p) {
  if (p.tiles_per_row <= 1 || p.clustered || p.looped) return 0;
  return (1 + p.rows * ChainShape(p.tiles_per_row).states() * kPieces<typename Op::State>)*8;
}

template <class Op, class Mode>
void launch_tiles(const ScanRows<Op>& p, cudaStream_t stream) {
  const int64_t blocks = ceil_div(p.rows, p.rows_per_tile) * p.tiles_per_row;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(p.tiles_per_row);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kScanThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = p.clustered ? 1 : 0;
  cudaLaunchKernelEx(&config, scan_rows_kernel<Op, Mode>, p);
}

template <class Op, bool kReverse>
void launch_scan_rows(const ScanRows<Op>& p, int sm_count, cudaStream_t stream) {
  using OneRow = ScanMode<Heads::kNone, kReverse>;
  if (p.looped) {
    scan_loop_kernel<Op, OneRow><<<static_cast<unsigned>(p.rows), kScanThreads, 0, stream>>>(p);
  } else if (p.tiles_per_row > 1 && !p.clustered) {
    cudaMemsetAsync(p.chain, 0, chain_bytes(p), stream);
    const int64_t blocks = std::min<int64_t>(p.rows * p.tiles_per_row, kScanAheadBlocks * sm_count);
    scan_chain_kernel<Op, OneRow><<<static_cast<unsigned>(blocks), kScanThreads, 0, stream>>>(p);
  } else if (p.rows_per_tile == 1) {
    launch_tiles<Op, OneRow>(p, stream);
  } else if (p.n % Op::kVec == 0) {
    launch_tiles<Op, ScanMode<Heads::kVector, kReverse>>(p, stream);
  } else {
    launch_tiles<Op, ScanMode<Heads::kAny, kReverse>>(p, stream);
  }
}

}  // namespace fusedops
