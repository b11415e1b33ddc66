// sm90_narrow.cuh for N, K > 128: two blocks in a cluster take the same rows. Each loads half of
// the columns of dy and of what was saved, stores its half of dz into the shared memory of both,
// and multiplies all of dz with its half of the columns of w and x.
//
// dy and saved, and x, which dx takes the place of, are in rings of their own: dy's slot is free
// for the next load as soon as dz is made.
#pragma once

#include "csrc/cutlass/kernels/narrow/sm90_narrow.cuh"

namespace fusedops::narrow {

inline constexpr int kPairSlots = 2;  // of each ring: place.stage ^ 1 is the other one

struct PairShape : Shape<4, 2> {
  static constexpr int kPieceBoxes = 2;  // of 64 columns of dy, of w and of x: half of each
  static constexpr int kSaved = kPieceBoxes * kBoxBytes;
  static constexpr int kDyBytes = 2 * kSaved, kXBytes = kPieceBoxes * kBoxBytes;
  static constexpr int kDzBytes = kNBoxes * kBoxBytes;
  static constexpr int kUnits = kPieceBoxes * 8;
  static constexpr int kRowStep = kMultipliers / kUnits;
  static constexpr int kPasses = kTileRows / kRowStep;
  static constexpr int kWarps = kMultipliers / 32;
  static constexpr int kBarriers = 6 * kPairSlots + 1;
  static constexpr int kCluster = 2;
  static constexpr int kBytes =
      kPairSlots * (kDyBytes + kXBytes + kDzBytes) + kWeightBytes + kBarriers * 8;
};

// Addresses in shared memory: three rings, w, a full and an empty barrier of each slot, w's.
struct PairShared {
  using S = PairShape;
  unsigned char* bytes;
  uint32_t base;

  __device__ explicit PairShared(unsigned char* memory)
      : bytes(memory), base(static_cast<uint32_t>(__cvta_generic_to_shared(memory))) {}
  __device__ uint32_t dy(int i) const { return base + i * S::kDyBytes; }
  __device__ uint32_t x(int i) const { return dy(kPairSlots) + i * S::kXBytes; }
  __device__ uint32_t dz(int i) const { return x(kPairSlots) + i * S::kDzBytes; }
  __device__ uint32_t weight() const { return dz(kPairSlots); }
  __device__ uint32_t barrier(int i) const { return weight() + S::kWeightBytes + i * 8; }
  __device__ uint32_t dy_full(int i) const { return barrier(i); }
  __device__ uint32_t dy_empty(int i) const { return barrier(kPairSlots + i); }
  __device__ uint32_t x_full(int i) const { return barrier(2 * kPairSlots + i); }
  __device__ uint32_t x_empty(int i) const { return barrier(3 * kPairSlots + i); }
  __device__ uint32_t dz_full(int i) const { return barrier(4 * kPairSlots + i); }
  __device__ uint32_t dz_empty(int i) const { return barrier(5 * kPairSlots + i); }
  __device__ uint32_t weight_full() const { return barrier(6 * kPairSlots); }
  template <class P = void>
  __device__ P* at(uint32_t address) const {
    return reinterpret_cast<P*>(bytes + (address - base));
  }
};

// Signals its bytes to a barrier of the same block. Plain stores would need fences of the whole
// GPU.
__device__ __forceinline__ void store_remote(uint32_t address, const Unit& unit, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
      "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
      "r"(unit.word[0]), "r"(unit.word[1]), "r"(unit.word[2]), "r"(unit.word[3]), "r"(barrier)
      : "memory");
}

// ---- the copying thread ----

struct PairCopies {
  using S = PairShape;
  const Problem& p;
  const Maps& maps;
  const PairShared& shared;
  const int column;
  const bool saved;

  __device__ void load(const CUtensorMap& map, uint32_t barrier, uint32_t to, int col, int row) {
    load_box<false>(map, shared.at<uint64_t>(barrier), shared.at(to), col, row);
  }
  __device__ void load_weight() {
    expect_bytes(shared.weight_full(), S::kWeightBytes);
    for (int b = 0; b < S::kPieceBoxes; ++b) {
      load(maps.weight, shared.weight_full(), shared.weight() + b * S::kNBoxes * kBoxBytes,
           column + b * kBoxFeatures, 0);
    }
  }
  __device__ void load_dy(int tile, const Place& place) {
    const uint32_t full = shared.dy_full(place.stage), to = shared.dy(place.stage);
    wait_barrier(shared.dy_empty(place.stage), place.parity ^ 1);
    expect_bytes(full, S::kSaved * (saved ? 2 : 1));
    for (int b = 0; b < S::kPieceBoxes; ++b) {
      const int col = column + b * kBoxFeatures;
      load(maps.dy, full, to + b * kBoxBytes, col, tile * kTileRows);
      if (saved) load(maps.saved, full, to + S::kSaved + b * kBoxBytes, col, tile * kTileRows);
    }
  }
  __device__ void load_x(int tile, const Place& place) {
    const uint32_t full = shared.x_full(place.stage), to = shared.x(place.stage);
    wait_barrier(shared.x_empty(place.stage), place.parity ^ 1);
    expect_bytes(full, p.needs_dweight ? S::kXBytes : 0);
    for (int b = 0; p.needs_dweight && b < S::kPieceBoxes; ++b) {
      load(maps.x, full, to + b * kBoxBytes, column + b * kBoxFeatures, tile * kTileRows);
    }
  }
};

// dy is a tile ahead of x: its slots are free earlier.
__device__ inline void copy_pair_tiles(const Problem& p, const Maps& maps, const PairShared& shared,
                                       int slot, int column) {
  const bool saved = saved_for_backward(p.activation) != Saved::kNothing;
  PairCopies copies{p, maps, shared, column, saved};
  Place place, next;
  copies.load_dy(slot, next);
  if (p.needs_dx) copies.load_weight();
  for (int tile = slot; tile < p.tiles; tile += p.slots, place = next) {
    next.advance(kPairSlots);
    if (tile + p.slots < p.tiles) copies.load_dy(tile + p.slots, next);
    copies.load_x(tile, place);
  }
}

// ---- the multiplying warpgroups ----

// Makes this block's half of the next tile's dz, in both blocks, while WGMMAs of the last one run.
template <class T>
__device__ __forceinline__ void make_dz(const Problem& p, const PairShared& shared,
                                        const Place& place, uint32_t rank, float (&bias_sum)[8]) {
  using S = PairShape;
  const int i = place.stage;
  const uint32_t dz = shared.dz(i) + rank * S::kSaved;
  const uint32_t peer = address_of_rank(dz, rank ^ 1);
  const uint32_t peer_full = address_of_rank(shared.dz_full(i), rank ^ 1);
  wait_barrier(shared.dy_full(i), place.parity);
  wait_barrier(shared.dz_empty(i), place.parity ^ 1);
  gradient<T, S>(p.activation, shared.dy(i), bias_sum, [&](uint32_t at, const Unit& unit) {
    unit.store(dz + at);
    store_remote(peer + at, unit, peer_full);
  });
  fence_async_copies();
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(shared.dy_empty(i));
  if (threadIdx.x == 0) {
    expect_bytes(shared.dz_full(i), S::kSaved);  // the other block's half
  } else if (threadIdx.x % 32 == 0) {
    arrive(shared.dz_full(i));
  }
}

// The copy of dx out of a slot of x has had the time of the next WGMMAs' issue.
__device__ __forceinline__ void free_x(const PairShared& shared, int slot) {
  if (threadIdx.x % 128 == 0) cute::tma_store_wait<0>();
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(shared.x_empty(slot));
}

template <class T>
__device__ void multiply_pair_tiles(const Problem& p, const Maps& maps, const PairShared& shared,
                                    int slot, uint32_t rank, Sums<PairShape>& sums,
                                    float (&bias_sum)[8]) {
  using S = PairShape;
  const int group = wgmma::warpgroup();
  const int column = (int(rank) * S::kPieceBoxes + group) * kBoxFeatures;
  const uint32_t weight = shared.weight() + group * S::kNBoxes * kBoxBytes;
  Place place, next;
  make_dz<T>(p, shared, next, rank, bias_sum);
  for (int tile = slot; tile < p.tiles; tile += p.slots, place = next) {
    const int i = place.stage;
    wait_barrier<true>(shared.dz_full(i), place.parity);
    fence_async_copies();
    wait_barrier(shared.x_full(i), place.parity);
    float dx[32];
    if (p.needs_dx) {
      if (tile == slot) wait_barrier(shared.weight_full(), 0);
      multiply_dx<T, S>(dx, shared.dz(i), weight);
    }
    if (p.needs_dweight) multiply_dweight<T, S>(sums, shared.dz(i), shared.x(i));
    if (tile > slot) free_x(shared, place.stage ^ 1);
    next.advance(kPairSlots);
    if (tile + p.slots < p.tiles) make_dz<T>(p, shared, next, rank, bias_sum);
    wgmma::wait<0>();
    if (threadIdx.x % 32 == 0) {
      arrive(shared.dz_empty(i));
      arrive_remote(address_of_rank(shared.dz_empty(i), rank ^ 1));
    }
    if (p.needs_dx) {
      wgmma::settle(dx);
      named_barrier<S::kMultipliers>(1);  // x is read; dx takes its place
      store_dx<T>(p, maps, dx, shared.at(shared.x(i) + group * kBoxBytes), tile * kTileRows,
                  column);
    }
  }
  if (threadIdx.x % 128 == 0) cute::tma_store_wait<0>();
#pragma unroll
  for (int i = 0; i < S::kParts; ++i) wgmma::settle(sums[i]);
}

// ---- the kernel ----

__device__ inline void init_pair_barriers(const PairShared& shared) {
  constexpr int kWarps = PairShape::kWarps;
  for (int i = 0; i < kPairSlots; ++i) {
    init_barrier(shared.dy_full(i), 1);
    init_barrier(shared.dy_empty(i), kWarps);
    init_barrier(shared.x_full(i), 1);
    init_barrier(shared.x_empty(i), kWarps);
    init_barrier(shared.dz_full(i), kWarps);
    init_barrier(shared.dz_empty(i), 2 * kWarps);
  }
  init_barrier(shared.weight_full(), 1);
  fence_barrier_init();
}

template <class T>
__global__ void __launch_bounds__(PairShape::kThreads, 1)
    narrow_pair_kernel(const Problem p, const __grid_constant__ Maps maps) {
  using S = PairShape;
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  const PairShared shared(shared_bytes);
  const int slot = int(blockIdx.x) / 2;
  const uint32_t rank = blockIdx.x % 2;
  const int column = int(rank) * S::kPieceBoxes * kBoxFeatures;
  if (threadIdx.x == S::kMultipliers) init_pair_barriers(shared);
  __syncthreads();
  cluster_sync();
  wait_for_predecessor();
  if (threadIdx.x >= S::kMultipliers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == S::kMultipliers) copy_pair_tiles(p, maps, shared, slot, column);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  Sums<S> sums = {};
  float bias_sum[8] = {};
  multiply_pair_tiles<T>(p, maps, shared, slot, rank, sums, bias_sum);
  __syncwarp();
  cluster_arrive();  // this block's shared memory must outlive the other's last signals
  float* partial = p.partial + slot * p.width;
  if (p.needs_dweight) {
    store_sums<S>(p, partial, sums, column);
    partial += int64_t{p.n} * p.k;
  }
  if (p.needs_dbias) {
    const int columns = min(p.n - column, S::kUnits * 8);
    store_bias_sums<S>(partial + column, columns, bias_sum, shared.at<float>(shared.dy(0)));
  }
  __syncwarp();
  cluster_wait();
}

}  // namespace fusedops::narrow
