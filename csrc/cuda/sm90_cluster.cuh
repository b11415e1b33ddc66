// y (M, N) = act(a (M, K) @ b (K, N) + bias) where the tiles of y are too few for the SMs: the
// blocks of a cluster take the same tile and split K. Each adds up some columns of the tile, with
// what the others store into its shared memory. A tile has rows in steps of 64 and columns in finer
// ones: where M is the more ragged extent the operands change places, and columns are rows of y.
#pragma once

#include <cuda_runtime.h>

#include "common/pdl.cuh"
#include "common/vec.cuh"
#include "cuda/sm90_pipeline.cuh"
#include "cuda/wgmma.cuh"
#include "cutlass/activation.cuh"
#include "cutlass/sm90_tma.cuh"

namespace fusedops::cluster {

using namespace sm90;

struct Problem {
  const void* bias;  // (n,) or null
  void* y;           // (m, n), rows of ldy, each of whole 16-byte units
  void* z;           // the same before the activation, or null
  int64_t ldy;
  int m, n;
  int row_tiles;                      // of whole clusters
  int cluster_rows, cluster_columns;  // tiles of a cluster; 1 where its blocks share a tile
  int steps;                          // of K
  Activation activation;
};

inline constexpr int kStepK = 64;         // values of K in a box: 128 bytes
inline constexpr int kPieceBytes = 2048;  // 64 rows by 8 columns in fp32, as WGMMA leaves them

// kGroups: warpgroups, of 64 rows of the tile each. kBlocks: of a cluster, each adds up a part of
// the tile's columns. kTransA, kTransB: K is not what is contiguous. kSwapped: rows are columns of
// y.
template <int kGroups_, int kColumns_, int kBlocks_, bool kTransA_, bool kTransB_, bool kSwapped_>
struct Shape {
  static constexpr int kGroups = kGroups_, kRows = kGroups * 64, kColumns = kColumns_;
  static constexpr int kBlocks = kBlocks_, kPart = kColumns / kBlocks, kPieces = kPart / 8;
  static constexpr bool kTransA = kTransA_, kTransB = kTransB_, kSwapped = kSwapped_;
  static_assert(kColumns % (kBlocks * (kTransB ? 64 : kSwapped ? 8 : 16)) == 0);
  static constexpr int kMultipliers = kGroups * 128, kThreads = kMultipliers + 32;
  static constexpr int kABytes = kRows * kBoxRowBytes, kPartBytes = kPart * kBoxRowBytes;
  static constexpr int kStageBytes = kABytes + kBlocks * kPartBytes;
  // Shared memory: stages, what other blocks send, a full and an empty barrier of each stage, and
  // one for what each warpgroup gets. Outputs take the place of stages.
  static constexpr int kReceivedBytes = kGroups * (kBlocks - 1) * kPieces * kPieceBytes;
  static constexpr int kFit = (shared_budget(1) - kReceivedBytes - 1024) / kStageBytes;
  static constexpr int kStages = kFit < 12 ? kFit : 12;
  static constexpr int kBarriers = kStages * kStageBytes + kReceivedBytes;
  static constexpr int kSharedBytes = kBarriers + (2 * kStages + kGroups) * 8;
  static constexpr int kOutRowBytes = kSwapped ? 128 : kPart * 2 + 16;
  static constexpr int kOutBytes = (kSwapped ? kGroups * kPart : kRows) * kOutRowBytes;
  static_assert(kStages >= 3 && kOutBytes <= kStages * kStageBytes);
};

// Addresses in shared memory.
template <class S>
struct Shared {
  unsigned char* bytes;
  uint32_t base;
  __device__ uint32_t stage(int i) const { return base + i * S::kStageBytes; }
  // From the block `distance` ranks before.
  __device__ uint32_t received(int group, int distance) const {
    return base + S::kStages * S::kStageBytes +
           (group * (S::kBlocks - 1) + distance - 1) * S::kPieces * kPieceBytes;
  }
  __device__ uint32_t full(int stage) const { return base + S::kBarriers + stage * 8; }
  __device__ uint32_t empty(int stage) const { return full(S::kStages + stage); }
  __device__ uint32_t sent(int group) const { return full(2 * S::kStages + group); }
};

// This block's part of the work.
template <class S>
struct Part {
  int rank;
  int row0, tile_column0;  // of the tile
  int first, last;         // steps of K
  __device__ explicit Part(const Problem& p) {
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if constexpr (S::kBlocks > 1) {
      const int tile = blockIdx.x / S::kBlocks;
      row0 = tile % p.row_tiles * S::kRows;
      tile_column0 = tile / p.row_tiles * S::kColumns;
      first = int(int64_t{p.steps} * rank / S::kBlocks);
      last = int(int64_t{p.steps} * (rank + 1) / S::kBlocks);
    } else {
      const int cluster = blockIdx.x / (p.cluster_rows * p.cluster_columns);
      const int across = p.row_tiles / p.cluster_rows;
      const int row = cluster % across * p.cluster_rows + rank % p.cluster_rows;
      const int column = cluster / across * p.cluster_columns + rank / p.cluster_rows;
      row0 = row * S::kRows;
      tile_column0 = column * S::kColumns;
      first = 0, last = p.steps;
    }
  }
  __device__ int rank_after(int distance) const {
    const int r = rank + distance;
    return r < S::kBlocks ? r : S::kBlocks == 1 ? 0 : r - S::kBlocks;
  }
  // Of the columns that the block `distance` ranks on adds up. In shared memory and registers they
  // come in the order of distances: a block's own columns are the first.
  __device__ int column0(int distance) const {
    return tile_column0 + rank_after(distance) * S::kPart;
  }
};

// ---- operands that the blocks of a cluster share ----

// Blocks with tiles of the same rows share those of a, with the same columns those of b: stage by
// stage they take turns, and a copy reaches all of them. The numbers of blocks are powers of two.
template <class S>
struct Sharing {
  int rows, columns;      // tiles of the cluster
  int rank, row, column;  // this block's
  __device__ Sharing(const Problem& p, const Part<S>& part)
      : rows(p.cluster_rows),
        columns(p.cluster_columns),
        rank(part.rank),
        row(part.rank % p.cluster_rows),
        column(part.rank / p.cluster_rows) {}
  // Who loads a stage's rows of a and of b.
  __device__ int loader_of_a(int stage) const { return row + (stage & (columns - 1)) * rows; }
  __device__ int loader_of_b(int stage) const { return (stage & (rows - 1)) + column * rows; }
  __device__ bool any() const { return rows * columns > 1; }
  __device__ bool loads_a(int stage) const { return (stage & (columns - 1)) == column; }
  __device__ bool loads_b(int stage) const { return (stage & (rows - 1)) == row; }
  // Whom these copies reach.
  __device__ uint16_t blocks_of_row() const {
    int blocks = 0;
    for (int i = 0; i < columns; ++i) blocks |= 1 << (row + i * rows);
    return uint16_t(blocks);
  }
  __device__ uint16_t blocks_of_column() const {
    return uint16_t(((1 << rows) - 1) << (column * rows));
  }
  // What each warp of those that read this block's copies says when it is done with a stage.
  __device__ int releases(int stage) const {
    return 1 + (any() && loads_a(stage) ? columns : 0) + (any() && loads_b(stage) ? rows : 0);
  }
};

// ---- the copying thread ----

// Some rows of an operand by a step of K.
template <bool kTrans, int kRows>
__device__ __forceinline__ void load(const CUtensorMap& map, uint64_t* full, unsigned char* to,
                                     int row, int k) {
  if constexpr (!kTrans) {
    load_box<false>(map, full, to, k, row);
  } else {
#pragma unroll
    for (int i = 0; i < kRows / 64; ++i) {
      load_box<false>(map, full, to + i * kStepK * kBoxRowBytes, row + i * 64, k);
    }
  }
}

// The same for all of some blocks.
__device__ __forceinline__ void load_shared(const CUtensorMap& map, uint64_t* full,
                                            unsigned char* to, int row, int k, uint16_t blocks) {
  constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
  cute::SM90_TMA_LOAD_MULTICAST_2D::copy(&map, full, blocks, kHint, to, k, row);
}

template <class S>
__device__ void copy_stages(const CUtensorMap& a, const CUtensorMap& b, const Shared<S>& shared,
                            const Part<S>& part) {
  Place place;
  for (int step = part.first; step < part.last; ++step, place.advance(S::kStages)) {
    unsigned char* to = shared.bytes + place.stage * S::kStageBytes;
    uint64_t* full =
        reinterpret_cast<uint64_t*>(shared.bytes + shared.full(place.stage) - shared.base);
    wait_barrier(shared.empty(place.stage), place.parity ^ 1);
    expect_bytes(shared.full(place.stage), S::kStageBytes);
    load<S::kTransA, S::kRows>(a, full, to, part.row0, step * kStepK);
#pragma unroll
    for (int i = 0; i < S::kBlocks; ++i) {
      load<S::kTransB, S::kPart>(b, full, to + S::kABytes + i * S::kPartBytes, part.column0(i),
                                 step * kStepK);
    }
  }
}

template <class S>
__device__ void copy_shared_stages(const CUtensorMap& a, const CUtensorMap& b,
                                   const Shared<S>& shared, const Part<S>& part,
                                   const Sharing<S>& sharing) {
  Place place;
  const uint16_t of_row = sharing.blocks_of_row(), of_column = sharing.blocks_of_column();
  for (int step = 0; step < part.last; ++step, place.advance(S::kStages)) {
    unsigned char* to = shared.bytes + place.stage * S::kStageBytes;
    uint64_t* full =
        reinterpret_cast<uint64_t*>(shared.bytes + shared.full(place.stage) - shared.base);
    wait_barrier(shared.empty(place.stage), place.parity ^ 1);
    expect_bytes(shared.full(place.stage), S::kStageBytes);
    if (sharing.loads_a(place.stage)) load_shared(a, full, to, part.row0, step * kStepK, of_row);
    if (sharing.loads_b(place.stage)) {
      load_shared(b, full, to + S::kABytes, part.tile_column0, step * kStepK, of_column);
    }
  }
}

// ---- the multiplying warpgroups ----

// Whom this thread tells that its warp is done with a stage: lane 0 this block, lanes 1 and 2 the
// loaders of a and b.
template <class S>
struct Reader {
  bool tells;
  int rank0, mask, stride;
  __device__ explicit Reader(const Sharing<S>& sharing) {
    const int lane = threadIdx.x % 32;
    tells = lane < (S::kBlocks == 1 && sharing.any() ? 3 : 1);
    rank0 = lane == 0 ? sharing.rank : lane == 1 ? sharing.loader_of_a(0) : sharing.loader_of_b(0);
    mask = lane == 0 ? 0 : lane == 1 ? sharing.columns - 1 : sharing.rows - 1;
    stride = lane == 1 ? sharing.rows : 1;
  }
  // NOTE: no branch, which between WGMMAs would make them wait for each other.
  __device__ void release(int stage, bool used_again, const Shared<S>& shared) const {
    const int rank = S::kBlocks == 1 ? rank0 + (stage & mask) * stride : rank0;
    arrive_remote_if(address_of_rank(shared.empty(stage), rank), tells && used_again);
  }
};

// The steps of a stage by WGMMA, from one to another.
template <class T, class S, int kFrom, int kTo>
__device__ __forceinline__ void multiply_stage(float (&sum)[S::kColumns / 2], uint32_t a,
                                               uint32_t b) {
#pragma unroll
  for (int j = kFrom; j < kTo; ++j) {
    wgmma::multiply<T, S::kColumns, S::kTransA, S::kTransB>(
        sum, wgmma::descriptor(a) + j * (S::kTransA ? wgmma::kStepRows : wgmma::kStepK),
        wgmma::descriptor(b, S::kTransB ? kStepK * kBoxRowBytes : 16) +
            j * (S::kTransB ? wgmma::kStepRows : wgmma::kStepK));
  }
}

// What else a step needs happens while its first WGMMAs run: between the last of a step and the
// first of the next the tensor cores would wait for it.
template <class T, class S>
__device__ void multiply_stages(float (&sum)[S::kColumns / 2], const Shared<S>& shared,
                                const Part<S>& part, const Sharing<S>& sharing) {
  constexpr int kSteps = kStepK / 16;
  const int group = wgmma::warpgroup();
  const Reader<S> reader(sharing);
  Place place;
  int previous = 0, before = 0;  // stages of the last two steps
  bool ready = false;
  for (int step = part.first; step < part.last; ++step) {
    if (!ready) wait_barrier(shared.full(place.stage), place.parity);
    const uint32_t a = shared.stage(place.stage) + group * 64 * kBoxRowBytes;
    const uint32_t b = shared.stage(place.stage) + S::kABytes;
    wgmma::fence();
    multiply_stage<T, S, 0, kSteps / 2>(sum, a, b);
    reader.release(before, step - 2 >= part.first && step - 2 + S::kStages < part.last, shared);
    before = previous, previous = place.stage;
    place.advance(S::kStages);
    ready = step + 1 < part.last && is_complete(shared.full(place.stage), place.parity);
    multiply_stage<T, S, kSteps / 2, kSteps>(sum, a, b);
    wgmma::commit();
    wgmma::wait<1>();
  }
  wgmma::wait<0>();
  wgmma::settle(sum);
}

// ---- sums over the cluster ----

template <class S>
__device__ void send(const float (&sum)[S::kColumns / 2], const Shared<S>& shared,
                     const Part<S>& part) {
  const int group = threadIdx.x / 128;
#pragma unroll
  for (int d = 1; d < S::kBlocks; ++d) {
    const int to = part.rank_after(d);
    const uint32_t at = address_of_rank(shared.received(group, d) + threadIdx.x % 128 * 16, to);
    const uint32_t sent = address_of_rank(shared.sent(group), to);
#pragma unroll
    for (int i = 0; i < S::kPieces; ++i) {
      const float* v = sum + (d * S::kPieces + i) * 4;
      asm volatile(
          "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
          "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(at + i * kPieceBytes),
          "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(sent)
          : "memory");
    }
  }
}

// In the order of distances, which is the same in every run.
template <class S>
__device__ void add_received(float (&sum)[S::kColumns / 2], const Shared<S>& shared) {
  if constexpr (S::kBlocks == 1) return;
  const int group = threadIdx.x / 128;
  wait_barrier<true>(shared.sent(group), 0);
#pragma unroll
  for (int d = 1; d < S::kBlocks; ++d) {
    const uint32_t at = shared.received(group, d) + threadIdx.x % 128 * 16;
#pragma unroll
    for (int i = 0; i < S::kPieces; ++i) {
      float4 s;
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(s.x), "=f"(s.y), "=f"(s.z), "=f"(s.w)
                   : "r"(at + i * kPieceBytes)
                   : "memory");
      float* v = sum + i * 4;
      v[0] += s.x, v[1] += s.y, v[2] += s.z, v[3] += s.w;
    }
  }
}

// ---- epilogue ----

// Of the columns 2 (lane % 4) and the next of each piece, or of the rows lane / 4 and 8 on.
template <class T, class S>
struct Bias {
  uint32_t pairs[S::kSwapped ? 1 : S::kPieces] = {};
  __device__ Bias(const Problem& p, const Part<S>& part) {
    if (p.bias == nullptr) return;
    const T* bias = static_cast<const T*>(p.bias);
    if constexpr (S::kSwapped) {
      const int row = part.row0 + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
      T pair[2] = {row < p.n ? bias[row] : T(0.0f), row + 8 < p.n ? bias[row + 8] : T(0.0f)};
      memcpy(pairs, pair, sizeof pair);
    } else {
#pragma unroll
      for (int i = 0; i < S::kPieces; ++i) {
        const int column = part.column0(0) + i * 8 + threadIdx.x % 4 * 2;
        if (column < p.n) pairs[i] = *reinterpret_cast<const uint32_t*>(bias + column);
      }
    }
  }
  __device__ void add(float (&sum)[S::kColumns / 2]) const {
#pragma unroll
    for (int i = 0; i < S::kPieces; ++i) {
      T pair[2];
      memcpy(pair, &pairs[S::kSwapped ? 0 : i], sizeof pair);
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[i * 4 + j] += to_compute(pair[S::kSwapped ? j / 2 : j % 2]);
    }
  }
};

// 16 bytes of the output by way of shared memory.
template <class T>
__device__ __forceinline__ void copy_unit(T* to, uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  *reinterpret_cast<uint4*>(to) = v;
}

// The warp's 16 rows of this block's columns, by way of shared memory: 64 bytes of a row at a time.
template <class T, class S>
__device__ __forceinline__ void store(const Problem& p, T* to, const float (&sum)[S::kColumns / 2],
                                      const Shared<S>& shared, const Part<S>& part) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t out = shared.base + warp * 16 * S::kOutRowBytes;
  const uint32_t matrix = out + lane % 16 * S::kOutRowBytes + lane / 16 * 16;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < S::kPieces; i += 2) {
    const float* v = sum + i * 4;
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(matrix + i * 16),
        "r"(rounded<T>(v[0], v[1])), "r"(rounded<T>(v[2], v[3])), "r"(rounded<T>(v[4], v[5])),
        "r"(rounded<T>(v[6], v[7]))
        : "memory");
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = i * 8 + lane / 4, m = part.row0 + warp * 16 + row;
#pragma unroll
    for (int chunk = lane % 4; chunk < S::kPieces; chunk += 4) {
      const int n = part.column0(0) + chunk * 8;
      if (m < p.m && n < p.n) {
        copy_unit(to + m * p.ldy + n, out + row * S::kOutRowBytes + chunk * 16);
      }
    }
  }
}

// The warpgroup's 64 rows of this block's columns, transposed by way of shared memory: 128 bytes of
// a column at a time. The 16-byte unit u of column c lies at unit u ^ (c % 8).
template <class T, class S>
__device__ __forceinline__ void store_swapped(const Problem& p, T* to,
                                              const float (&sum)[S::kColumns / 2],
                                              const Shared<S>& shared, const Part<S>& part) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = threadIdx.x / 128;
  const uint32_t out = shared.base + group * S::kPart * S::kOutRowBytes;
  const auto at = [&](int column, int unit) {
    return out + column * S::kOutRowBytes + (unit ^ (column % 8)) * 16;
  };
#pragma unroll
  for (int i = 0; i < S::kPieces; ++i) {
    const float* v = sum + i * 4;
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(
                     at(i * 8 + lane % 8, warp * 2 + lane / 8 % 2)),
                 "r"(rounded<T>(v[0], v[1])), "r"(rounded<T>(v[2], v[3]))
                 : "memory");
  }
  named_barrier<128>(2 + group);
  const int unit = lane % 8, n = part.row0 + group * 64 + unit * 8;
#pragma unroll
  for (int i = 0; i < S::kPart; i += 16) {
    const int column = i + warp * 4 + lane / 8, m = part.column0(0) + column;
    if (column < S::kPart && m < p.m && n < p.n) copy_unit(to + m * p.ldy + n, at(column, unit));
  }
}

template <class T, class S>
__device__ __forceinline__ void activate(float (&sum)[S::kColumns / 2], Activation activation) {
  with_activation(activation, [&]<Activation kActivation>() {
#pragma unroll
    for (int i = 0; i < S::kPieces * 4; ++i) {
      sum[i] = activate_as<kActivation, kAccuracyOf<T>>(sum[i]);
    }
  });
}

// ---- the kernel ----

// For the barriers of the other blocks. NOTE: without a cluster its barrier is that of the block,
// where the copying warp would come last.
template <class S>
__device__ __forceinline__ bool has_peers(const Problem& p) {
  return S::kBlocks > 1 || p.cluster_rows * p.cluster_columns > 1;
}

template <class T, class S>
__device__ void multiply_and_store(const Problem& p, const Shared<S>& shared, const Part<S>& part,
                                   const Sharing<S>& sharing) {
  const Bias<T, S> bias(p, part);
  if (has_peers<S>(p)) cluster_wait();
  float sum[S::kColumns / 2] = {};
  multiply_stages<T, S>(sum, shared, part, sharing);
  send<S>(sum, shared, part);
  add_received<S>(sum, shared);
  bias.add(sum);
  const auto store_to = [&](void* to) {
    named_barrier<S::kMultipliers>(1);  // outputs overwrite what other warps may still read
    if constexpr (S::kSwapped) {
      store_swapped<T, S>(p, static_cast<T*>(to), sum, shared, part);
    } else {
      store<T, S>(p, static_cast<T*>(to), sum, shared, part);
    }
  };
  if (p.z != nullptr) store_to(p.z);
  activate<T, S>(sum, p.activation);
  store_to(p.y);
}

template <class S>
__device__ void init_barriers(const Shared<S>& shared, const Sharing<S>& sharing) {
  for (int i = 0; i < S::kStages; ++i) {
    init_barrier(shared.full(i), 1);
    init_barrier(shared.empty(i), S::kMultipliers / 32 * sharing.releases(i));
  }
  for (int i = 0; i < S::kGroups; ++i) {
    init_barrier(shared.sent(i), 1);
    expect_bytes(shared.sent(i), (S::kBlocks - 1) * S::kPieces * kPieceBytes);
  }
  fence_barrier_init();
}

template <class T, class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    cluster_kernel(const Problem p, const __grid_constant__ CUtensorMap a,
                   const __grid_constant__ CUtensorMap b) {
  extern __shared__ __align__(1024) unsigned char bytes[];
  const Part<S> part(p);
  const Sharing<S> sharing(p, part);
  const Shared<S> shared{bytes, static_cast<uint32_t>(__cvta_generic_to_shared(bytes))};
  const bool copies = threadIdx.x == S::kMultipliers;
  if (copies) {
    init_barriers<S>(shared, sharing);
    asm volatile("prefetch.tensormap [%0];" ::"l"(&a) : "memory");
    asm volatile("prefetch.tensormap [%0];" ::"l"(&b) : "memory");
  }
  __syncthreads();
  if (has_peers<S>(p)) cluster_arrive();
  wait_for_predecessor();
  if (threadIdx.x < S::kMultipliers) {
    multiply_and_store<T, S>(p, shared, part, sharing);
  } else if (S::kBlocks > 1 || !has_peers<S>(p)) {
    if (copies) copy_stages<S>(a, b, shared, part);
    __syncwarp();
    if (has_peers<S>(p)) cluster_wait();
  } else {
    cluster_wait();
    if constexpr (S::kBlocks == 1 && !S::kTransA && !S::kTransB) {
      if (copies) copy_shared_stages<S>(a, b, shared, part, sharing);
    }
  }
}

}  // namespace fusedops::cluster
