// Prefixes of the tiles of one long row, in a single pass over memory and in a fixed order.
//
// Every tile publishes its total and gathers those of its predecessors. The usual look-back takes
// whatever is ready, so that rounding differs from run to run. Here the order of additions is a
// function of the tile's number alone: totals of the tiles before it in its super of 512, and the
// prefix of the super, which is chained. A tile thus waits for one exchange, and a link of the
// chain is 512 tiles long, so that its latency does not bound the bandwidth.
//
// NOTE: tiles wait for tiles with lower numbers, so blocks must take them in order.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/int_math.h"
#include "cuda/scan_op.cuh"

namespace fusedops {

inline constexpr int kChainSuper = 512;  // tiles of a super: one per thread
inline constexpr unsigned kAllLanes = 0xffffffffu;

// Where the tiles of a row publish: a state is cut into 4-byte pieces, and each travels with a flag
// in one 8-byte word, which is written and read whole. All words start as zero.
struct ChainShape {
  int64_t tiles, supers;

  __host__ __device__ explicit ChainShape(int64_t tiles)
      : tiles(tiles), supers(ceil_div(tiles, kChainSuper)) {}
  __host__ __device__ int64_t states() const { return tiles + supers; }
};

template <class State>
inline constexpr int kPieces = sizeof(State) / 4;

template <class State>
__device__ __forceinline__ State shfl_up(const State& s, int delta) {
  auto p = __builtin_bit_cast(Pieces<State>, s);
#pragma unroll
  for (uint32_t& piece : p.piece) piece = __shfl_up_sync(kAllLanes, piece, delta);
  return __builtin_bit_cast(State, p);
}
template <class State>
__device__ __forceinline__ State shfl_down(const State& s, int delta) {
  auto p = __builtin_bit_cast(Pieces<State>, s);
#pragma unroll
  for (uint32_t& piece : p.piece) piece = __shfl_down_sync(kAllLanes, piece, delta);
  return __builtin_bit_cast(State, p);
}
template <class State>
__device__ __forceinline__ State shfl(const State& s, int lane) {
  auto p = __builtin_bit_cast(Pieces<State>, s);
#pragma unroll
  for (uint32_t& piece : p.piece) piece = __shfl_sync(kAllLanes, piece, lane);
  return __builtin_bit_cast(State, p);
}

// All lanes combined in lane order; every lane gets the result.
template <class Op>
__device__ __forceinline__ typename Op::State reduce_lanes(typename Op::State s) {
#pragma unroll
  for (int d = 1; d < 32; d *= 2) s = Op::combine(s, shfl_down(s, d));
  return shfl(s, 0);
}

template <class State>
__device__ __forceinline__ void publish(uint64_t* words, int64_t slot, const State& s) {
  const auto p = __builtin_bit_cast(Pieces<State>, s);
#pragma unroll
  for (int i = 0; i < kPieces<State>; ++i) {
    const uint64_t word = (uint64_t{1} << 32) | p.piece[i];
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(words + slot * kPieces<State> + i),
                 "l"(word)
                 : "memory");
  }
}

// A state that another block publishes; `wanted` lanes poll until ready().
template <class State>
struct Awaited {
  const uint64_t* slot;
  bool wanted;
  uint64_t word[kPieces<State>];

  __device__ Awaited(const uint64_t* words, int64_t index, bool wanted)
      : slot(words + index * kPieces<State>), wanted(wanted) {
    poll();
  }
  __device__ void poll() {
    if (!wanted) return;
#pragma unroll
    for (int i = 0; i < kPieces<State>; ++i) {
      asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                   : "=l"(word[i])
                   : "l"(slot + i)
                   : "memory");
    }
  }
  __device__ bool ready() const {
    bool all = true;
#pragma unroll
    for (int i = 0; i < kPieces<State>; ++i) all = all && (word[i] >> 32) != 0;
    return !wanted || all;
  }
  __device__ State get(const State& otherwise) {
    while (!ready()) poll();
    if (!wanted) return otherwise;
    Pieces<State> p;
#pragma unroll
    for (int i = 0; i < kPieces<State>; ++i) p.piece[i] = static_cast<uint32_t>(word[i]);
    return __builtin_bit_cast(State, p);
  }
};

template <class State, int kWarps>
struct ChainShared {
  State warp[kWarps];  // what their tiles add up to
  State super;
};

// Called by all threads of a block: publishes the tile's total and returns everything before the
// tile. `words` are those of the row.
template <class Op, int kWarps>
__device__ typename Op::State chain_prefix(ChainShared<typename Op::State, kWarps>& shared,
                                           uint64_t* words, const ChainShape& shape, int64_t tile,
                                           const typename Op::State& total) {
  using State = typename Op::State;
  static_assert(kWarps * 32 == kChainSuper);
  const int64_t super = tile / kChainSuper;
  const int place = static_cast<int>(tile % kChainSuper);
  if (threadIdx.x == 0) publish(words, tile, total);

  Awaited<State> a_super(words, shape.tiles + super, threadIdx.x == 0 && super > 0);
  State tiles = Op::identity();
  if (static_cast<int>(threadIdx.x / 32 * 32) < place) {
    Awaited<State> a(words, super * kChainSuper + threadIdx.x,
                     static_cast<int>(threadIdx.x) < place);
    tiles = reduce_lanes<Op>(a.get(Op::identity()));
  }
  if (threadIdx.x % 32 == 0) shared.warp[threadIdx.x / 32] = tiles;
  if (threadIdx.x == 0) shared.super = a_super.get(Op::identity());
  __syncthreads();
  State prefix = shared.super;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) prefix = Op::combine(prefix, shared.warp[w]);
  if (place == kChainSuper - 1 && super + 1 < shape.supers && threadIdx.x == 0) {
    publish(words, shape.tiles + super + 1, Op::combine(prefix, total));
  }
  return prefix;
}

}  // namespace fusedops
