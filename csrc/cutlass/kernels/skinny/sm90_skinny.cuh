// y (M, N) = act(x (M, K) @ w (N, K)^T + bias) for few rows of x: the time is that of reading w
// once. A block takes 64 to 192 rows of w as the wide operand of WGMMA and all rows of x as the
// narrow one. Two, four or eight blocks in a cluster share the rows of w and split K; each adds up
// its share of the outputs, with what the others store into its shared memory.
//
// A warp of its own keeps TMA loads in flight. Before the preceding kernel is done it asks L2 for
// the first bytes of w: a prefetch reads nothing into the SM, so w may still be written.
#pragma once

#include <cuda_runtime.h>

#include "csrc/common/device/activation.cuh"
#include "csrc/common/device/cluster.cuh"
#include "csrc/common/device/vec.cuh"
#include "csrc/cutlass/kernels/hopper/sm90_pipeline.cuh"
#include "csrc/cutlass/kernels/hopper/sm90_tma.cuh"
#include "csrc/cutlass/kernels/hopper/wgmma.cuh"

namespace fusedops::skinny {

using namespace sm90;

struct Problem {
  const void* bias;  // (n,) or null
  void* y;           // (m, n), rows of ldy
  void* z;           // the same before the activation, or null
  int64_t ldy;
  int m, n, k;
  bool vectors;  // y and z take accesses of 8 elements
  Activation activation;
  int stages;  // of the pipeline
};

inline constexpr int kStepK = 64;                 // values of K in a box: 128 bytes
inline constexpr int kMaxStages = 16;             // of a pipeline
inline constexpr int kPrefetchBytes = 96 * 1024;  // of w, at most, for a block
inline constexpr int kPieceBytes = 2048;  // 64 rows of w by 8 of x in fp32, as WGMMA leaves them

// kRows: of w. kCols: rows of x, padded. kWide: boxes of K in a stage.
template <int kRows_, int kCols_>
struct Shape {
  static constexpr int kRows = kRows_, kCols = kCols_;
  static constexpr int kWide = kRows == 64 && kCols <= 64 ? 2 : 1;
  static constexpr int kGroups = kRows / 64;  // warpgroups that multiply
  static constexpr int kMultipliers = kGroups * 128;
  static constexpr int kThreads = kMultipliers + 32;
  static constexpr int kWBytes = kRows * kBoxRowBytes, kXBytes = kCols * kBoxRowBytes;
  static constexpr int kStageBytes = kWide * (kWBytes + kXBytes);
  static constexpr int kPieces = kCols / 8;
  static constexpr int kBarrierBytes = (2 * kMaxStages + 1) * 8;
};

// Addresses in shared memory: the stages, what other blocks send, a full and an empty barrier of
// each stage and one for what is sent.
struct Shared {
  unsigned char* bytes;
  uint32_t stages, received, barriers;
  __device__ uint32_t full(int stage) const { return barriers + stage * 8; }
  __device__ uint32_t empty(int stage) const { return barriers + (kMaxStages + stage) * 8; }
  __device__ uint32_t sent() const { return barriers + 2 * kMaxStages * 8; }
};

// This block's part of the work.
struct Part {
  int row0;         // of w
  int first, last;  // stages of K
  uint32_t rank, blocks;
  int log_blocks;
};

// ---- the copying thread ----

// A box that no other block reads.
__device__ __forceinline__ void load_once(const CUtensorMap& map, uint64_t* barrier, void* to,
                                          int column, int row) {
  constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
  cute::SM90_TMA_LOAD_2D::copy(&map, barrier, kHint, to, column, row);
}

// The block's first boxes of w.
template <class S>
__device__ void prefetch(const CUtensorMap& x, const CUtensorMap& w, const Part& part) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&w) : "memory");
  asm volatile("prefetch.tensormap [%0];" ::"l"(&x) : "memory");
  const int count = min((part.last - part.first) / 4, kPrefetchBytes / (S::kWide * S::kWBytes));
  const int last = (part.first + count) * S::kWide;
  for (int i = part.first * S::kWide; i < last; ++i) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(&w),
                 "r"(i * kStepK), "r"(part.row0)
                 : "memory");
  }
}

template <class S>
__device__ void copy_stages(const Problem& p, const CUtensorMap& x, const CUtensorMap& w,
                            const Shared& shared, const Part& part) {
  Place place;
  for (int step = part.first; step < part.last; ++step, place.advance(p.stages)) {
    unsigned char* to = shared.bytes + place.stage * S::kStageBytes;
    uint64_t* full =
        reinterpret_cast<uint64_t*>(shared.bytes + shared.full(place.stage) - shared.stages);
    const int k = step * kStepK * S::kWide;
    wait_barrier(shared.empty(place.stage), place.parity ^ 1);
    expect_bytes(shared.full(place.stage), S::kStageBytes);
#pragma unroll
    for (int i = 0; i < S::kWide; ++i) {
      load_once(w, full, to + i * S::kWBytes, k + i * kStepK, part.row0);
    }
#pragma unroll
    for (int i = 0; i < S::kWide; ++i) {
      load_box<false>(x, full, to + S::kWide * S::kWBytes + i * S::kXBytes, k + i * kStepK, 0);
    }
  }
}

// ---- the multiplying warpgroups ----

template <class T, class S>
__device__ void multiply_stages(float (&sum)[S::kCols / 2], int stages, const Shared& shared,
                                const Part& part) {
  const int group = wgmma::warpgroup();
  Place place, previous;
  for (int step = part.first; step < part.last; ++step) {
    wait_barrier(shared.full(place.stage), place.parity);
    const uint32_t w = shared.stages + place.stage * S::kStageBytes + group * 64 * kBoxRowBytes;
    const uint32_t x = shared.stages + place.stage * S::kStageBytes + S::kWide * S::kWBytes;
    wgmma::fence();
#pragma unroll
    for (int j = 0; j < S::kWide * 4; ++j) {
      wgmma::multiply<T, S::kCols>(
          sum, wgmma::descriptor(w + j / 4 * S::kWBytes) + j % 4 * wgmma::kStepK,
          wgmma::descriptor(x + j / 4 * S::kXBytes) + j % 4 * wgmma::kStepK);
    }
    wgmma::commit();
    wgmma::wait<1>();
    if (step > part.first && threadIdx.x % 32 == 0) arrive(shared.empty(previous.stage));
    previous = place;
    place.advance(stages);
  }
  wgmma::wait<0>();
}

// ---- sums over a cluster ----

template <class S>
__device__ __forceinline__ void sync_multipliers() {
  named_barrier<S::kMultipliers>(1);
}

// Piece i of the sums, rows [8 i, 8 i + 8) of x, is added up by block i % blocks of the cluster as
// its piece i / blocks: what it has itself lies in its stages, what the others have is sent to it.
// blocks: a power of two.
struct Pieces {
  int total;      // that hold rows of x
  int per_block;  // at most
  __host__ __device__ constexpr Pieces(int m, int blocks)
      : total((m + 7) / 8), per_block((total + blocks - 1) / blocks) {}
  __device__ int of_rank(const Part& part) const {
    return (total - int(part.rank) + int(part.blocks) - 1) >> part.log_blocks;
  }
  template <class S>
  __host__ __device__ constexpr int received_bytes(int blocks) const {
    return (blocks - 1) * per_block * S::kGroups * kPieceBytes;
  }
};

template <class S>
__device__ void distribute(const float (&sum)[S::kCols / 2], const Pieces& pieces,
                           const Shared& shared, const Part& part) {
  constexpr int kStep = S::kGroups * kPieceBytes;
  const uint32_t own = shared.stages + threadIdx.x * 16;
  const uint32_t received = shared.received + threadIdx.x * 16;
#pragma unroll
  for (int i = 0; i < S::kPieces; ++i) {
    if (i >= pieces.total) break;
    const float* v = sum + 4 * i;
    const uint32_t rank = i & (part.blocks - 1);
    const int slot = i >> part.log_blocks;
    if (rank == part.rank) {
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(own + slot * kStep), "f"(v[0]),
                   "f"(v[1]), "f"(v[2]), "f"(v[3])
                   : "memory");
    } else {
      const int sender = (part.rank - rank - 1) & (part.blocks - 1);
      const uint32_t to = received + (sender * pieces.per_block + slot) * kStep;
      asm volatile(
          "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
          "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(address_of_rank(to, rank)),
          "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(address_of_rank(shared.sent(), rank))
          : "memory");
    }
  }
}

// ---- epilogue ----

__device__ __forceinline__ void add_shared(float (&v)[4], uint32_t address) {
  float4 s;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(s.x), "=f"(s.y), "=f"(s.z), "=f"(s.w)
               : "r"(address)
               : "memory");
  v[0] += s.x, v[1] += s.y, v[2] += s.z, v[3] += s.w;
}

// The outputs of this block in shared memory: rows of x by kRows of w, the 16-byte unit u of row r
// at unit u ^ (r % 8).
template <class S>
struct Tile {
  static constexpr int kUnits = S::kRows / 8, kRowBytes = S::kRows * 2;
  uint32_t base;
  __device__ uint32_t at(int row, int unit) const {
    return base + row * kRowBytes + (unit ^ (row % 8)) * 16;
  }
};

// v: rows lane / 4 and lane / 4 + 8 of the warp's 16 of w, each by columns lane % 4 * 2 and the
// next of x. Neighbouring rows of w are neighbours in the output: stored transposed.
template <class T, class S>
__device__ __forceinline__ void to_tile(const Tile<S>& tile, int piece, const float (&v)[4]) {
  const int lane = threadIdx.x % 32;
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(
                   tile.at(piece * 8 + lane % 8, int(threadIdx.x) / 32 * 2 + lane / 8 % 2)),
               "r"(rounded<T>(v[0], v[1])), "r"(rounded<T>(v[2], v[3]))
               : "memory");
}

template <class T, class S>
__device__ void store_tile(const Problem& p, void* out, const Tile<S>& tile, int pieces,
                           const Part& part) {
  for (int i = threadIdx.x; i < pieces * 8 * Tile<S>::kUnits; i += S::kMultipliers) {
    const int row = i / Tile<S>::kUnits, unit = i % Tile<S>::kUnits;
    const int m = (row / 8 * int(part.blocks) + int(part.rank)) * 8 + row % 8;
    const int n = part.row0 + unit * 8;
    if (m >= p.m || n >= p.n) continue;
    uint32_t v[4];
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(tile.at(row, unit))
                 : "memory");
    T* to = static_cast<T*>(out) + m * p.ldy + n;
    if (p.vectors) {
      *reinterpret_cast<uint4*>(to) = uint4{v[0], v[1], v[2], v[3]};
      continue;
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (n + j < p.n) reinterpret_cast<uint16_t*>(to)[j] = uint16_t(v[j / 2] >> j % 2 * 16);
    }
  }
}

// This block's pieces: sums over the cluster, bias, activation. kBatch at a time, to overlap their
// latencies.
template <class T, class S, Activation kActivation>
__device__ void finish_as(const Problem& p, void* out, const float (&bias)[2], const Shared& shared,
                          const Part& part) {
  constexpr int kBatch = S::kPieces < 4 ? S::kPieces : 4, kStep = S::kGroups * kPieceBytes;
  const Pieces pieces(p.m, int(part.blocks));
  const int mine = pieces.of_rank(part);
  const Tile<S> tile{shared.stages + pieces.per_block * kStep};
  const uint32_t own = shared.stages + threadIdx.x * 16;
  const uint32_t received = shared.received + threadIdx.x * 16;
  for (int first = 0; first < mine; first += kBatch) {
    float v[kBatch][4] = {};
    const auto add = [&](uint32_t from) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) add_shared(v[i], from + min(first + i, mine - 1) * kStep);
    };
    add(own);
    for (int sender = 0; sender + 1 < int(part.blocks); ++sender) {
      add(received + sender * pieces.per_block * kStep);
    }
    resolve_rare<kActivation>(p.activation, [&]<Activation kNow>() {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          v[i][j] = activate_as<kNow, kAccuracyOf<T>>(v[i][j] + bias[j / 2]);
        }
      }
    });
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i < mine) to_tile<T>(tile, first + i, v[i]);
    }
  }
  sync_multipliers<S>();
  store_tile<T>(p, out, tile, mine, part);
}

// relu first: a switch reads its jump table from memory.
template <class T, class S>
__device__ __forceinline__ void finish(const Problem& p, const float (&bias)[2],
                                       const Shared& shared, const Part& part) {
  if (p.z != nullptr) {
    finish_as<T, S, Activation::kNone>(p, p.z, bias, shared, part);
    sync_multipliers<S>();
  }
  if (p.activation == Activation::kRelu) {
    finish_as<T, S, Activation::kRelu>(p, p.y, bias, shared, part);
  } else {
    with_activation(p.activation, [&]<Activation kActivation>() {
      finish_as<T, S, kActivation>(p, p.y, bias, shared, part);
    });
  }
}

template <class T>
__device__ __forceinline__ float bias_of(const Problem& p, int row) {
  if (p.bias == nullptr || row >= p.n) return 0.0f;
  return to_compute(static_cast<const T*>(p.bias)[row]);
}

// ---- the kernel ----

template <class S>
__device__ __forceinline__ Part part_of(const Problem& p) {
  Part part;
  part.rank = cluster_rank();
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(part.blocks));
  part.log_blocks = __ffs(int(part.blocks)) - 1;
  part.row0 = int(blockIdx.x / part.blocks) * S::kRows;
  const unsigned stages = (p.k + kStepK * S::kWide - 1) / (kStepK * S::kWide);
  part.first = stages * part.rank / part.blocks;
  part.last = stages * (part.rank + 1) / part.blocks;
  return part;
}

template <class T, class S>
__device__ void multiply_and_store(const Problem& p, const Shared& shared, const Part& part) {
  const int row = part.row0 + int(threadIdx.x) / 32 * 16 + threadIdx.x % 32 / 4;
  const float bias[2] = {bias_of<T>(p, row), bias_of<T>(p, row + 8)};
  float sum[S::kCols / 2] = {};
  multiply_stages<T, S>(sum, p.stages, shared, part);
  sync_multipliers<S>();  // the sums overwrite stages that WGMMAs of other warps may still read
  const Pieces pieces(p.m, int(part.blocks));
  distribute<S>(sum, pieces, shared, part);
  if (part.blocks > 1 && pieces.of_rank(part) > 0) wait_barrier<true>(shared.sent(), 0);
  finish<T, S>(p, bias, shared, part);
}

template <class S>
__device__ void init_barriers(const Problem& p, const Shared& shared, const Part& part) {
  for (int i = 0; i < p.stages; ++i) {
    init_barrier(shared.full(i), 1);
    init_barrier(shared.empty(i), S::kMultipliers / 32);
  }
  init_barrier(shared.sent(), 1);
  const int mine = Pieces(p.m, int(part.blocks)).of_rank(part);
  expect_bytes(shared.sent(), int(part.blocks - 1) * mine * S::kGroups * kPieceBytes);
  fence_barrier_init();
}

template <class T, class S>
__global__ void __launch_bounds__(S::kThreads)
    skinny_kernel(const Problem p, const __grid_constant__ CUtensorMap x,
                  const __grid_constant__ CUtensorMap w) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  const Part part = part_of<S>(p);
  Shared shared;
  shared.bytes = shared_bytes;
  shared.stages = static_cast<uint32_t>(__cvta_generic_to_shared(shared_bytes));
  shared.received = shared.stages + p.stages * S::kStageBytes;
  shared.barriers =
      shared.received + Pieces(p.m, int(part.blocks)).template received_bytes<S>(int(part.blocks));
  const bool copies = threadIdx.x == S::kMultipliers;
  if (copies) {
    init_barriers<S>(p, shared, part);
    prefetch<S>(x, w, part);
  }
  __syncthreads();
  if (part.blocks > 1) cluster_sync();
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (copies) {
    copy_stages<S>(p, x, w, shared, part);
    // The next kernel's blocks start when no more loads are to come, and ask for theirs.
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  }
  if (threadIdx.x < S::kMultipliers) multiply_and_store<T, S>(p, shared, part);
}

}  // namespace fusedops::skinny
