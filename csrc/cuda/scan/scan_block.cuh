// Tiles of contiguous rows in registers: which elements a thread holds, and the scan of a block.
//
// 16-byte vectors are aligned in the output whatever the row length. Rows that share a tile are
// told apart by head flags (a segmented scan). A reverse scan walks the same vectors from the other
// end.
#pragma once

#include "csrc/common/int_math.h"
#include "csrc/cuda/scan/scan_op.cuh"

namespace fusedops {

inline constexpr int kScanVectors = 2;  // per thread
inline constexpr int kScanThreads = 512;
inline constexpr int kScanWarps = kScanThreads / 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;
static_assert(kScanVectors * kScanWarps == 32, "one total per lane");

template <class Op>
inline constexpr int kScanTile = kScanThreads * kScanVectors * Op::kVec;

// s with fn of each of its 32-bit pieces.
template <class State, class Fn>
__device__ __forceinline__ State map_pieces(const State& s, Fn&& fn) {
  auto p = __builtin_bit_cast(Pieces<State>, s);
#pragma unroll
  for (uint32_t& piece : p.piece) piece = fn(piece);
  return __builtin_bit_cast(State, p);
}
template <class State>
__device__ __forceinline__ State shfl_up(const State& s, int delta) {
  return map_pieces(s, [&](uint32_t piece) { return __shfl_up_sync(kAllLanes, piece, delta); });
}
template <class State>
__device__ __forceinline__ State shfl_down(const State& s, int delta) {
  return map_pieces(s, [&](uint32_t piece) { return __shfl_down_sync(kAllLanes, piece, delta); });
}
template <class State>
__device__ __forceinline__ State shfl(const State& s, int lane) {
  return map_pieces(s, [&](uint32_t piece) { return __shfl_sync(kAllLanes, piece, lane); });
}

// All lanes combined in lane order; every lane gets the result.
template <class Op>
__device__ __forceinline__ typename Op::State reduce_lanes(typename Op::State s) {
#pragma unroll
  for (int d = 1; d < 32; d *= 2) s = Op::combine(s, shfl_down(s, d));
  return shfl(s, 0);
}

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
  int64_t tiles_per_row;  // more than one: `looped`, a cluster, `spread` or a chain
  bool looped, clustered, spread;
  int threads;      // of a block; fewer than kScanThreads hold all elements in their first vectors
  uint64_t* chain;  // tiles drawn, then what (rows, tiles_per_row) publish; zero. spread: totals
};

// A thread's vectors in a tile, kStep vectors apart. The tile consists of vectors that are aligned
// in y; of its elements, which are counted in memory order, those in [low, high) exist.
template <class Op, class Mode, int kVectors = kScanVectors, int kStep = kScanThreads>
struct ScanWindow {
  static constexpr int kVec = Op::kVec;
  using In = Vec<typename Op::In, kVec>;
  int64_t begin;             // of the tile in the row, or the rows; may lie before it
  const typename Op::In* x;  // of the tile
  int64_t out;               // offset of the tile in y
  int low, high;
  bool full;  // the tile's elements all exist
  int first;  // element of the thread's first vector

  __device__ ScanWindow(const typename Op::In* x, int64_t out, int64_t count, int64_t tile) {
    constexpr int kTileVectors = kVectors * kScanThreads;
    const int phase = static_cast<int>(out % kVec);
    const int64_t vectors = (phase + count + kVec - 1) / kVec;
    const int64_t before =
        Mode::reverse ? vectors - (tile + 1) * kTileVectors : tile * kTileVectors;
    begin = before * kVec - phase;
    this->x = x + begin;
    this->out = out + begin;
    low = static_cast<int>(max(-begin, int64_t{0}));
    high = static_cast<int>(min(count - begin, int64_t{kTileVectors * kVec}));
    full = high - low == kTileVectors * kVec;
    const int thread = static_cast<int>(threadIdx.x);
    const int vector = thread / kStep * kStep * kVectors + thread % kStep;
    first = (Mode::reverse ? kTileVectors - 1 - vector : vector) * kVec;
  }

  __device__ int element(int k) const {
    return first + k * ((Mode::reverse ? -1 : 1) * kStep * kVec);
  }
  __device__ bool whole(int k) const {
    return full || (element(k) >= low && element(k) + kVec <= high);
  }

  // Item i in scan order
  static __device__ int place(int i) { return Mode::reverse ? kVec - 1 - i : i; }

  __device__ bool aligned() const { return reinterpret_cast<uintptr_t>(x) % sizeof(In) == 0; }
  __device__ const Packed<In>* vector(int k) const {
    return reinterpret_cast<const Packed<In>*>(x + element(k));
  }
  __device__ Packed<In> gather(int k) const {
    In v;
#pragma unroll
    for (int i = 0; i < kVec; ++i) v.value[i] = Op::pad();
    if (element(k) < high && element(k) + kVec > low) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const int e = element(k) + i;
        if (e >= low && e < high) v.value[i] = x[e];
      }
    }
    return pack(v);
  }

  __device__ void load(Packed<In> (&in)[kVectors]) const {
    const bool vectors = aligned();
    if (vectors && full) {
#pragma unroll
      for (int k = 0; k < kVectors; ++k) in[k] = load_evict_last(vector(k));
      return;
    }
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (vectors && whole(k)) {
        in[k] = load_evict_last(vector(k));
      } else {
        in[k] = gather(k);
      }
    }
  }

  template <class T>
  __device__ void store(T* y, int k, const Vec<T, kVec>& v) const {
    if (whole(k)) return store_whole(y + out + element(k), v);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const int e = element(k) + i;
      if (e >= low && e < high) y[out + e] = v.value[i];
    }
  }

  // Bit i: item i of vector k starts a row. Packed rows only: an element's number is less than
  // 2^14, so that one rounding of e / n cannot reach the next integer.
  __device__ unsigned heads(int k, int n, float per_n) const {
    if constexpr (!Mode::packed) return 0;
    const int e = Mode::reverse ? high - kVec - element(k) : element(k) - low;
    const int at = e - n * __float2int_rd((static_cast<float>(e) + 0.5f) * per_n);
    if constexpr (!Mode::anywhere) return at == 0;
    const int next = at > 0 ? n - at : 0;
    if (n >= kVec) return next < kVec ? 1u << next : 0;
    unsigned bits = 0;
    for (int i = next; i < kVec; i += n) bits |= 1u << i;
    return bits;
  }

  // Position along its row of the first item of vector k; indexed operators only.
  __device__ int64_t position(int k, int64_t n) const {
    if constexpr (!Op::kIndexed) return 0;
    return Mode::packed ? (element(k) - low) % static_cast<int>(n) : begin + element(k);
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

  // What warps that a small block lacks would leave.
  __device__ void clear_missing() {
    const unsigned place = threadIdx.x;
    if (place < 32 && place % kScanWarps >= blockDim.x / 32) {
      total[place] = Op::identity();
      head[place] = false;
    }
  }
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

// Indices of a warp's vectors on their way to memory: 8 bytes an element leave in whole lines.
template <class Op>
struct IndexStage {
  static constexpr int kVec = Op::kVec;
  Packed<Vec<int32_t, kVec>> index[Op::kIndexed ? kScanThreads : 1];

  // Every lane of the warp holds a whole vector; `to` is where lane 0's starts.
  __device__ void store(const Vec<int32_t, kVec>& mine, int64_t* to) {
    const int lane = threadIdx.x % 32;
    auto* const warp = index + threadIdx.x / 32 * 32;
    __syncwarp();
    warp[lane] = pack(mine);
    __syncwarp();
#pragma unroll
    for (int i = lane * 2; i < 32 * kVec; i += 64) {
      const auto pair = *reinterpret_cast<const int2*>(warp->word + i);
      store_whole(to + i, make_longlong2(pair.x, pair.y));
    }
  }
};

// A thread's share of a tile. The heads of a vector are bits: item i starts a row. kSmall: of a
// block that may be small.
template <class Op, class Mode, bool kSmall = false>
struct ScanShare {
  using State = typename Op::State;
  using Window = ScanWindow<Op, Mode>;
  using In = typename Window::In;
  static constexpr int kVec = Op::kVec;
  unsigned heads[kScanVectors];
  bool split[kScanVectors];   // rows that start anywhere do so in a vector of the warp
  State carry[kScanVectors];  // what the vector starts from
  // From the vector's begin, or its last head, to each item; made again where a state is large
  State upto[kScanVectors][Op::kIndexed ? 1 : kVec];

  // No thread of the block has a vector k.
  static __device__ bool lacks(int k, const ScanRows<Op>& p) {
    return kSmall && k > 0 && p.threads < kScanThreads;
  }
  __device__ bool starts_row(int k, int i) const {
    return Mode::packed && (Mode::anywhere || i == 0) && (heads[k] >> i & 1);
  }
  // A row starts in the vector, at item i or before.
  __device__ bool started_row(int k, int i) const {
    return Mode::packed && (heads[k] & (Mode::anywhere ? (2u << i) - 1 : 1)) != 0;
  }

  // Calls each(i, state) with the scan of a vector's items, rows apart, after `before`. kSplit:
  // rows may start in it.
  template <bool kSplit, class Each>
  __device__ void walk(const Window& window, const Packed<In>& in, int k, int64_t n, State before,
                       Each each) const {
    const auto v = unpack(in);
    int64_t at = window.position(k, n);
#pragma unroll
    for (int i = 0; i < kVec; ++i, at = Window::next_position(at, n)) {
      const State item = Op::lift(v.value[Window::place(i)], at);
      before = kSplit && starts_row(k, i) ? item : Op::combine(before, item);
      each(i, before);
    }
  }

  template <class Prefix>
  __device__ void scan(ScanShared<Op>& shared, const Window& window, Packed<In> (&in)[kScanVectors],
                       const ScanRows<Op>& p, Prefix prefix_of) {
    bool any_head[kScanVectors];
#pragma unroll
    for (int k = 0; k < kScanVectors; ++k) {
      if (lacks(k, p)) {
        heads[k] = 0;
        any_head[k] = split[k] = false;
        carry[k] = Op::identity();
        continue;
      }
      heads[k] = window.heads(k, static_cast<int>(p.n), p.per_n);
      any_head[k] = heads[k] != 0;
      split[k] = Mode::anywhere && __any_sync(kAllLanes, any_head[k]);
      const auto keep = [&](int i, const State& s) {
        if constexpr (!Op::kIndexed) upto[k][i] = s;
        carry[k] = s;
      };
      if (!Mode::anywhere || split[k]) {
        walk<true>(window, in[k], k, p.n, Op::identity(), keep);
      } else {
        walk<false>(window, in[k], k, p.n, Op::identity(), keep);
      }
    }
    scan_block<Op, Mode::packed>(shared, any_head, carry, prefix_of);
#pragma unroll
    for (int k = 0; k < kScanVectors; ++k) stay_packed(in[k]);
  }

  // The scan of a vector's items.
  __device__ void finish(const Window& window, const Packed<In>& in, int k, int64_t n,
                         State (&scan)[kVec]) const {
    if constexpr (Op::kIndexed) {
      walk<true>(window, in, k, n, carry[k], [&](int i, const State& s) { scan[i] = s; });
    } else if (Mode::anywhere && !split[k]) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) scan[i] = Op::combine(carry[k], upto[k][i]);
    } else {
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        scan[i] = started_row(k, i) ? upto[k][i] : Op::combine(carry[k], upto[k][i]);
      }
    }
  }

  __device__ void store(const Window& window, const Packed<In> (&in)[kScanVectors],
                        const ScanRows<Op>& p, IndexStage<Op>& stage) {
#pragma unroll
    for (int k = 0; k < kScanVectors; ++k) {
      if (lacks(k, p)) break;
      State scan[kVec];
      finish(window, in[k], k, p.n, scan);
      Vec<typename Op::Out, kVec> out;
      if (p.exclusive) {
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          const State& before = i > 0 ? scan[i > 0 ? i - 1 : 0] : carry[k];
          out.value[Window::place(i)] = Op::value(starts_row(k, i) ? Op::identity() : before);
        }
      } else {
#pragma unroll
        for (int i = 0; i < kVec; ++i) out.value[Window::place(i)] = Op::value(scan[i]);
      }
      window.store(p.y, k, out);
      if constexpr (Op::kIndexed) {
        Vec<int32_t, kVec> index;
#pragma unroll
        for (int i = 0; i < kVec; ++i) index.value[i] = scan[i].index;
        store_index(window, k, index, p.index, stage);
      }
    }
  }

  __device__ void store_index(const Window& window, int k, const Vec<int32_t, kVec>& index,
                              int64_t* to, IndexStage<Op>& stage) const {
    if (__all_sync(kAllLanes, window.whole(k))) {
      const int lane = threadIdx.x % 32;
      return stage.store(index, to + window.out + window.element(k) - lane * kVec);
    }
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const int e = window.element(k) + i;
      if (e >= window.low && e < window.high) to[window.out + e] = index.value[i];
    }
  }
};

}  // namespace fusedops
