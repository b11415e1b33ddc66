// Scans of rows that are long and few: a single pass over memory, in a fixed order.
//
// Blocks draw tiles in order, so that a tile waits for tiles that running blocks hold and for no
// others, whatever else runs on the GPU. Each tile publishes its total, and each block adds up
// everybody's totals itself: groups of 32 tiles, one per lane of a warp, then group after group.
// What precedes a tile is thus one exchange away, and the order of additions depends on its number
// alone; the usual look-back takes whatever is ready, so that rounding differs from run to run.
// A block publishes one tile ahead of the one it finishes and loads one further, so that neither
// exchange nor memory is waited for.
#pragma once

#include <cstdint>

#include "csrc/common/device/async_copy.cuh"
#include "csrc/common/device/pdl.cuh"
#include "csrc/cuda/scan/scan_block.cuh"

namespace fusedops {

inline constexpr int kChainVectors = 4;  // per thread; those of a warp are neighbours
inline constexpr int kChainStages = 3;   // tiles of a block
inline constexpr int kChainBlocks = 2;   // per SM

template <class Op>
inline constexpr int kChainTile = kScanThreads * kChainVectors * Op::kVec;

template <class Op, class Mode>
using ChainWindow = ScanWindow<Op, Mode, kChainVectors, 32>;

// A state is published in 4-byte pieces, each with a flag in one 8-byte word, which is written and
// read whole. All words start as zero.
template <class State>
inline constexpr int kPieces = sizeof(State) / 4;

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

// A state that another block publishes; `wanted` lanes poll until it is there.
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

template <class State>
struct ChainShared {
  State warp[kScanWarps];   // totals of the warps
  State group[kScanWarps];  // totals of groups, or of a part of the last one
  unsigned drawn;
};

struct ChainPart {
  unsigned row, tile;
  bool exists;
};

// What precedes the tiles of a row, one of this block's after the other.
template <class Op>
struct ChainCursor {
  using State = typename Op::State;
  uint64_t* words;  // of the row
  State base;       // all groups before `group`
  unsigned group;

  __device__ void start(uint64_t* row_words) {
    words = row_words;
    base = Op::identity();
    group = 0;
  }

  // The total that this lane awaits for `tile`
  __device__ Awaited<State> await(unsigned tile) const {
    const unsigned theirs = group * 32 + threadIdx.x;
    return {words, theirs, theirs < tile};
  }

  // `first` = await(tile). All threads of the block; ends behind a barrier.
  __device__ State prefix(ChainShared<State>& shared, unsigned tile, Awaited<State> first) {
    const unsigned warp = threadIdx.x / 32;
    for (;;) {
      const unsigned groups = tile / 32 - group;  // that are complete
      if (warp <= groups) {
        const State total = reduce_lanes<Op>(first.get(Op::identity()));
        if (threadIdx.x % 32 == 0) shared.group[warp] = total;
      }
      __syncthreads();
#pragma unroll
      for (unsigned w = 0; w < kScanWarps; ++w) {
        if (w < groups) base = Op::combine(base, shared.group[w]);
      }
      if (groups < kScanWarps) {
        group += groups;
        return Op::combine(base, shared.group[groups]);
      }
      group += kScanWarps;
      __syncthreads();
      first = await(tile);
    }
  }
};

// The vectors of a block's tiles on their way; a thread reads those that it asked for.
template <class Op, class Mode>
struct ChainRing {
  using Window = ChainWindow<Op, Mode>;
  using In = Packed<typename Window::In>;
  In* mine;

  __device__ In& at(int stage, int k) const {
    return mine[(stage * kChainVectors + k) * kScanThreads];
  }
  __device__ void load(const Window& window, int stage) const {
    const bool aligned = window.aligned();
#pragma unroll
    for (int k = 0; k < kChainVectors; ++k) {
      if (!aligned || !window.whole(k)) {
        at(stage, k) = window.gather(k);
      } else if constexpr (sizeof(In) >= 4) {
        copy_async_cached<sizeof(In)>(shared_address(&at(stage, k)), window.vector(k));
      } else {
        at(stage, k) = *window.vector(k);
      }
    }
  }
};

// A tile whose total is known: what each vector starts from, seen from the tile's begin.
template <class Op, class Mode>
struct ChainShare {
  using State = typename Op::State;
  using Window = ChainWindow<Op, Mode>;
  using Ring = ChainRing<Op, Mode>;
  static constexpr int kVec = Op::kVec;
  State carry[kChainVectors];

  // Returns the tile's total; one barrier.
  __device__ State add_up(const Ring& ring, int stage, const Window& window,
                          ChainShared<State>& shared) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int k = 0; k < kChainVectors; ++k) {
      const auto v = unpack(ring.at(stage, k));
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const State item = Op::lift(v.value[Window::place(i)], window.position(k, 0) + i);
        carry[k] = i == 0 ? item : Op::combine(carry[k], item);
      }
    }
    constexpr int kNoHeads[kChainVectors] = {};
    scan_lanes<Op>(carry, kNoHeads);
    State before = Op::identity();
#pragma unroll
    for (int k = 0; k < kChainVectors; ++k) {
      const State total = shfl(carry[k], 31), earlier = shfl_up(carry[k], 1);
      carry[k] = lane == 0 ? before : Op::combine(before, earlier);
      before = Op::combine(before, total);
    }
    if (lane == 0) shared.warp[warp] = before;
    __syncthreads();

    State totals[1] = {lane < kScanWarps ? shared.warp[lane % kScanWarps] : Op::identity()};
    constexpr int kNoHead[1] = {};
    scan_lanes<Op>(totals, kNoHead);
    const State earlier = shfl(totals[0], (warp + 31) % 32);
#pragma unroll
    for (int k = 0; k < kChainVectors; ++k) {
      if (warp > 0) carry[k] = Op::combine(earlier, carry[k]);
    }
    return shfl(totals[0], kScanWarps - 1);
  }

  __device__ void store(const Ring& ring, int stage, const Window& window, const State& prefix,
                        const ScanRows<Op>& p) const {
#pragma unroll
    for (int k = 0; k < kChainVectors; ++k) {
      const auto v = unpack(ring.at(stage, k));
      const State start = Op::combine(prefix, carry[k]);
      Vec<typename Op::Out, kVec> out;
      Vec<int64_t, kVec> index;
      State upto, before = start;
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const State item = Op::lift(v.value[Window::place(i)], window.position(k, 0) + i);
        upto = i == 0 ? item : Op::combine(upto, item);
        const State scan = Op::combine(start, upto);
        out.value[Window::place(i)] = Op::value(p.exclusive ? before : scan);
        if constexpr (Op::kIndexed) index.value[i] = scan.index;
        before = scan;
      }
      window.store(p.y, k, out);
      if constexpr (Op::kIndexed) window.store(p.index, k, index);
    }
  }
};

template <class Op, class Mode>
__global__ void __launch_bounds__(kScanThreads, kChainBlocks)
    scan_chain_kernel(const ScanRows<Op> p) {
  using State = typename Op::State;
  using Ring = ChainRing<Op, Mode>;
  using Window = typename Ring::Window;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ ChainShared<State> shared;
  const Ring ring{reinterpret_cast<typename Ring::In*>(memory) + threadIdx.x};
  const auto tiles = static_cast<unsigned>(p.tiles_per_row);
  const unsigned count = static_cast<unsigned>(p.rows) * tiles;  // < 2^32: a tile is 4 KB or more
  const auto draw = [&]() -> unsigned {
    return threadIdx.x > 0 ? 0 : atomicAdd(reinterpret_cast<unsigned*>(p.chain), 1u);
  };
  const auto part_of = [&](unsigned number) {
    const unsigned row = number / tiles;
    return ChainPart{row, number - row * tiles, number < count};
  };
  const auto share_drawn = [&](unsigned number) {
    if (threadIdx.x == 0) shared.drawn = number;
    __syncthreads();
    number = shared.drawn;
    __syncthreads();
    return part_of(number);
  };
  const auto window_of = [&](const ChainPart& part) {
    return Window(p.x + part.row * p.x_stride, part.row * p.n, p.n, part.tile);
  };
  const auto words_of = [&](const ChainPart& part) {
    return p.chain + 1 + int64_t{part.row} * tiles * kPieces<State>;
  };
  const auto load = [&](const ChainPart& part, int stage) {
    if (part.exists) ring.load(window_of(part), stage);
    commit_copies();
  };
  ChainShare<Op, Mode> share, following;
  const auto add_up = [&](const ChainPart& part, int stage) {
    const State total = following.add_up(ring, stage, window_of(part), shared);
    if (threadIdx.x == 0) publish(words_of(part), part.tile, total);
  };

  // Three tiles: one published, one on its way, one drawn
  ChainPart part = share_drawn(draw());
  load(part, 0);
  ChainPart next = share_drawn(draw());
  load(next, 1);
  ChainPart last = share_drawn(draw());
  unsigned ahead = draw();
  if (!part.exists) return;
  wait_for_copies<1>();
  add_up(part, 0);
  share = following;
  ChainCursor<Op> cursor;
  cursor.start(words_of(part));
  __syncthreads();
  for (int stage = 0; part.exists; stage = stage == kChainStages - 1 ? 0 : stage + 1) {
    const auto awaited = cursor.await(part.tile);
    load(last, stage == 0 ? kChainStages - 1 : stage - 1);
    // NOTE: read by all behind the barrier of add_up, written again behind that of prefix
    if (threadIdx.x == 0) shared.drawn = ahead;
    ahead = draw();
    wait_for_copies<1>();
    if (next.exists) {
      add_up(next, stage == kChainStages - 1 ? 0 : stage + 1);
    } else {
      __syncthreads();
    }
    const unsigned drawn = shared.drawn;
    const State prefix = cursor.prefix(shared, part.tile, awaited);
    share.store(ring, stage, window_of(part), prefix, p);
    share = following;
    if (next.row != part.row) cursor.start(words_of(next));
    part = next;
    next = last;
    last = part_of(drawn);
  }
}

template <class Op>
void plan_chain(ScanRows<Op>& p) {
  const int64_t lead = p.n % Op::kVec == 0 ? 0 : Op::kVec - 1;
  p.tiles_per_row = ceil_div(p.n + lead, int64_t{kChainTile<Op>});
}

template <class Op>
int64_t chain_bytes(const ScanRows<Op>& p) {
  return (1 + p.rows * p.tiles_per_row * kPieces<typename Op::State>)*int64_t{sizeof(uint64_t)};
}

template <class Op, bool kReverse>
void launch_scan_chain(const ScanRows<Op>& p, int sm_count, cudaStream_t stream) {
  using Mode = ScanMode<Heads::kNone, kReverse>;
  constexpr int kBytes = kChainStages * kChainTile<Op> * static_cast<int>(sizeof(typename Op::In));
  const auto kernel = scan_chain_kernel<Op, Mode>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  cudaMemsetAsync(p.chain, 0, chain_bytes(p), stream);
  const int64_t blocks = std::min<int64_t>(p.rows * p.tiles_per_row, kChainBlocks * sm_count);
  kernel<<<static_cast<unsigned>(blocks), kScanThreads, kBytes, stream>>>(p);
}

}  // namespace fusedops
