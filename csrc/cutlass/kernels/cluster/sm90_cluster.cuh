// y (M, N) = act(a (M, K) @ b (K, N) + bias) where the tiles of y are too few for the SMs. Either
// the blocks of a cluster take the same tile and split K: each adds up some columns of the tile,
// with what the others store into its shared memory. Or each takes a tile of its own, and they load
// once what their tiles have in common. A tile has rows in steps of 64 and columns in finer ones:
// where M is the more ragged extent the operands change places, and columns are rows of y.
#pragma once

#include <cuda_runtime.h>

#include "csrc/common/device/pdl.cuh"
#include "csrc/cutlass/kernels/cluster/sm90_cluster_epilogue.cuh"
#include "csrc/cutlass/kernels/cluster/sm90_cluster_tile.cuh"
#include "csrc/cutlass/kernels/hopper/wgmma.cuh"

namespace fusedops::cluster {

// ---- the copying thread ----

// Loads some rows of an operand by a step of K.
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

// Loads a box into all of some blocks of the cluster.
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
    if constexpr (S::kTurned) {
      load<true, S::kColumns>(b, full, to + S::kABytes, part.tile_column0, step * kStepK);
    } else {
#pragma unroll
      for (int i = 0; i < S::kBlocks; ++i) {
        load<S::kTransB, S::kPart>(b, full, to + S::kABytes + i * S::kPartBytes, part.column0(i),
                                   step * kStepK);
      }
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
  // NOTE: this has no branch, which between WGMMAs would make them wait for each other.
  __device__ void release(int stage, bool used_again, const Shared<S>& shared) const {
    const int rank = S::kBlocks == 1 ? rank0 + (stage & mask) * stride : rank0;
    arrive_remote(address_of_rank(shared.empty(stage), rank), tells && used_again);
  }
};

// Multiplies the steps [kFrom, kTo) of a stage.
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

// ---- the kernel ----

// Other blocks whose barriers must be there first. NOTE: without a cluster its barrier is that of
// the block, where the copying warp would come last.
template <class S>
__device__ __forceinline__ bool has_peers(const Problem& p) {
  return S::kBlocks > 1 || p.cluster_rows * p.cluster_columns > 1;
}

template <class T, class S>
__device__ void multiply_and_store(const Problem& p, const Shared<S>& shared, const Part<S>& part,
                                   const Sharing<S>& sharing) {
  const Bias<T, S> bias(p, part);
  const Norm<T, S> norm(p, part);
  if (has_peers<S>(p)) cluster_wait();
  float sum[S::kColumns / 2] = {};
  multiply_stages<T, S>(sum, shared, part, sharing);
  if constexpr (S::kTurned) turn<S>(sum, part);
  send<S>(sum, shared, part);
  add_received<S>(sum, shared);
  bias.add(sum);
  if (p.has_norm) norm.apply(sum, shared);
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
