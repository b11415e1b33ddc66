// Rows that go from memory straight to registers and back: which chunks a thread holds.
//
// Chunks are aligned in memory, so a row of odd length begins and ends inside chunks that it shares
// with its neighbours. Where both ends together fill no more than one chunk, the row's first thread
// holds them as one, so that no row takes more chunks than its elements fill.
#pragma once

#include <type_traits>

#include "csrc/cuda/rows/team/row_slice.cuh"
#include "csrc/cuda/rows/team/row_variant.h"

namespace fusedops {

// ---- teams of one row, lean ones ----

// Some lanes of a warp. Lanes of rows that do not exist shuffle with the others.
class LaneTeam {
 public:
  static constexpr int kSlots = 1;
  __device__ __forceinline__ LaneTeam(const RowLayout& layout, RowSlot<float>*)
      : lanes_(layout.lanes) {}

  __device__ __forceinline__ int index() const { return threadIdx.x & (lanes_ - 1); }
  __device__ __forceinline__ int size() const { return lanes_; }
  __device__ __forceinline__ int64_t row() const {
    // NOTE: a shift, since a division takes as long as a short row.
    return (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) >> (__ffs(lanes_) - 1);
  }
  static constexpr __device__ bool always() { return false; }  // whether every team has a row
  static constexpr __device__ bool in_warp() { return true; }
  __device__ __forceinline__ bool leader() const { return index() == 0; }

  __device__ __forceinline__ float warp_sum(float value) const {
    return fold_lanes(value, lanes_, [](float a, float b) { return a + b; });
  }
  __device__ __forceinline__ float warp_max(float value) const {
    return fold_lanes(value, lanes_, [](float a, float b) { return larger(a, b); });
  }
  __device__ __forceinline__ float sum(float value) const { return warp_sum(value); }
  __device__ __forceinline__ void sum(float& a, float& b) const {
    a = warp_sum(a);
    b = warp_sum(b);
  }
  // NOTE: never called, but compiled.
  __device__ __forceinline__ void publish(float, float, float) const {}
  __device__ __forceinline__ float max_slot_a() const { return 0; }
  template <class Fn>
  __device__ __forceinline__ float sum_slots(Fn) const {
    return 0;
  }

 private:
  int lanes_;
};

// A block.
class BlockTeam {
 public:
  static constexpr int kSlots = kDirectSlots;
  __device__ __forceinline__ BlockTeam(const RowLayout&, RowSlot<float>* slots) : slots_(slots) {}

  __device__ __forceinline__ int index() const { return threadIdx.x; }
  __device__ __forceinline__ int size() const { return blockDim.x; }
  __device__ __forceinline__ int64_t row() const { return blockIdx.x; }
  static constexpr __device__ bool always() { return true; }
  static constexpr __device__ bool in_warp() { return false; }
  __device__ __forceinline__ bool leader() const { return threadIdx.x == 0; }

  __device__ __forceinline__ float warp_sum(float value) const {
    return fold(value, [](float a, float b) { return a + b; });
  }
  __device__ __forceinline__ float warp_max(float value) const {
    return fold(value, [](float a, float b) { return larger(a, b); });
  }
  // Every warp's values to every warp: read them with slots(). Once.
  __device__ __forceinline__ void publish(float a, float b, float c = 0) const {
    if (threadIdx.x % 32 == 0) slots_[threadIdx.x / 32] = {a, b, c};
    __syncthreads();
  }
  template <class Fn>
  __device__ __forceinline__ float sum_slots(Fn fn) const {
    const int warps = blockDim.x / 32, lane = threadIdx.x % 32;
    return warp_sum(lane < warps ? fn(slots_[lane]) : 0.0f);
  }
  __device__ __forceinline__ float max_slot_a() const {
    const int warps = blockDim.x / 32, lane = threadIdx.x % 32;
    return warp_max(lane < warps ? slots_[lane].a : -INFINITY);
  }
  __device__ __forceinline__ float sum(float value) const {
    publish(warp_sum(value), 0);
    return sum_slots([](const RowSlot<float>& s) { return s.a; });
  }
  __device__ __forceinline__ void sum(float& a, float& b) const {
    publish(warp_sum(a), warp_sum(b));
    a = sum_slots([](const RowSlot<float>& s) { return s.a; });
    b = sum_slots([](const RowSlot<float>& s) { return s.b; });
  }

  // Folds the values of a whole warp.
  template <class Fn>
  static __device__ __forceinline__ float fold(float value, Fn fn) {
#pragma unroll
    for (int width = 16; width > 0; width /= 2) {
      value = fn(value, __shfl_xor_sync(~0u, value, width));
    }
    return value;
  }

 private:
  RowSlot<float>* slots_;
};

// A cluster of blocks, whose warps tell each other their values once.
class FewClusterTeam {
 public:
  static constexpr int kSlots = kRowCluster * 32 + 1;  // and the barrier
  __device__ __forceinline__ FewClusterTeam(const RowLayout& layout, RowSlot<float>* slots)
      : cluster_(layout.cluster),
        rank_(static_cast<int>(cluster_rank())),
        warps_(static_cast<int>(blockDim.x) / 32 * layout.cluster),
        barrier_(shared_address(slots + kSlots - 1)),
        slots_(slots) {
    if (threadIdx.x == 0) {
      init_barrier(barrier_, 1);
      release_barrier_init();
      expect_bytes(barrier_, warps_ * static_cast<unsigned>(sizeof(RowSlot<float>)));
    }
    cluster_arrive();
  }

  __device__ __forceinline__ int index() const { return rank_ * blockDim.x + threadIdx.x; }
  __device__ __forceinline__ int size() const { return cluster_ * blockDim.x; }
  __device__ __forceinline__ int64_t row() const { return cluster_id(); }
  static constexpr __device__ bool always() { return true; }
  static constexpr __device__ bool in_warp() { return false; }
  __device__ __forceinline__ bool leader() const { return index() == 0; }

  __device__ __forceinline__ float warp_sum(float value) const {
    return BlockTeam::fold(value, [](float a, float b) { return a + b; });
  }
  __device__ __forceinline__ float warp_max(float value) const {
    return BlockTeam::fold(value, [](float a, float b) { return larger(a, b); });
  }
  // NOTE: a block that has all values may leave: nobody writes to its slots any more.
  __device__ __forceinline__ void publish(float a, float b, float c = 0) const {
    const int lane = threadIdx.x % 32;
    cluster_wait();  // nobody writes to a block that has not started
    if (lane < cluster_) {
      const RowSlot<float>* mine = slots_ + index() / 32;
      send_to_block(shared_address(mine), barrier_, lane, RowSlot<float>{a, b, c});
    }
    wait_for_barrier(barrier_, 0);
  }
  template <class Fn>
  __device__ __forceinline__ float sum_slots(Fn fn) const {
    float sum = 0;
#pragma unroll 2
    for (int i = threadIdx.x % 32; i < warps_; i += 32) sum += fn(slots_[i]);
    return warp_sum(sum);
  }
  __device__ __forceinline__ float max_slot_a() const {
    float top = -INFINITY;
#pragma unroll 2
    for (int i = threadIdx.x % 32; i < warps_; i += 32) top = larger(top, slots_[i].a);
    return warp_max(top);
  }
  __device__ __forceinline__ float sum(float value) const {
    publish(warp_sum(value), 0);
    return sum_slots([](const RowSlot<float>& s) { return s.a; });
  }
  __device__ __forceinline__ void sum(float& a, float& b) const {
    publish(warp_sum(a), warp_sum(b));
    a = sum_slots([](const RowSlot<float>& s) { return s.a; });
    b = sum_slots([](const RowSlot<float>& s) { return s.b; });
  }

 private:
  int cluster_, rank_, warps_;
  unsigned barrier_;
  RowSlot<float>* slots_;
};

template <class T, int kVec>
__device__ __forceinline__ Packed<T, kVec> load_once(const T* from) {
  static_assert(sizeof(T) * kVec == 16);
  return load_evict_last(reinterpret_cast<const Packed<T, kVec>*>(from));
}

// Elements from `from` on come from `value`, those before from `other`.
template <class T, int kVec>
__device__ __forceinline__ Packed<T, kVec> splice(const Packed<T, kVec>& other,
                                                  const Packed<T, kVec>& value, int from) {
  static_assert(sizeof(T) <= 4);
  constexpr int kBits = 8 * sizeof(T);
  Packed<T, kVec> out;
#pragma unroll
  for (int w = 0; w < Packed<T, kVec>::kWords; ++w) {
    unsigned mask;  // NOTE: in PTX, where a shift by 32 and more gives zero
    asm("shl.b32 %0, %1, %2;" : "=r"(mask) : "r"(~0u), "r"(max(kBits * from - 32 * w, 0)));
    out.word[w] = (value.word[w] & mask) | (other.word[w] & ~mask);
  }
  return out;
}

// The chunks of a thread, kMax at the most.
template <int kVec, int kMax, bool kRagged>
class DirectRow {
 public:
  template <class Team>
  __device__ __forceinline__ DirectRow(const Team& team, const RowLayout& layout, int64_t row)
      : thread_(team.index()),
        threads_(team.size()),
        n_(layout.n),
        chunks_((layout.n + kVec - 1) / kVec),
        shift_(kRagged ? static_cast<int>(row * layout.n % kVec) : 0) {}

  __device__ __forceinline__ int shift() const { return shift_; }
  __device__ __forceinline__ bool some(int k) const { return chunk(k) < chunks_; }

  // The first chunks of a row, on their way; `end`: what goes with the first. last: nothing may be
  // read behind the row.
  template <class T, int kCount>
  __device__ __forceinline__ void request(Packed<T, kVec> (&x)[kCount], Packed<T, kVec>& end,
                                          const T* row, bool active, bool last) const {
    asm volatile("" : "+l"(row));  // NOTE: else computed again for every chunk
    end = {};
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = {};
    if (!active) return;
    if (kRagged && last) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (some(i)) x[i] = head<T>(row + column(i), elements(i));
      }
      if (thread_ == 0) end = head<T>(row + column_of_tail(), tail());
      return;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (some(i)) x[i] = load_once<T, kVec>(row + column(i));
    }
    if (kRagged && thread_ == 0 && tail() > 0) {
      end = load_once<T, kVec>(row + column_of_tail());
    }
  }
  // Once all are on their way: what does not belong to the row becomes `filler`.
  template <class T, int kCount>
  __device__ __forceinline__ void settle(Packed<T, kVec> (&x)[kCount], const Packed<T, kVec>& end,
                                         bool active, T filler) const {
    if (active && whole(kCount)) return;
    const Packed<T, kVec> fill = splat<T, kVec>(filler);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (!active || !some(i)) {
        x[i] = fill;
      } else if (elements(i) < kVec) {
        x[i] = splice(x[i], fill, elements(i));
      }
    }
    if (kRagged && active && thread_ == 0) {
      x[0] = splice(splice(end, fill, tail()), x[0], shift_);
    }
  }

  // The chunks from kMax on go to shared memory, where each thread keeps its own.
  // NOTE: not unrolled, see copy_evict_last.
  template <class T>
  __device__ __forceinline__ void fetch_rest(unsigned shared, const T* row, bool last) const {
    unsigned to = place(shared, kMax);
#pragma unroll 1
    for (int k = kMax; some(k); ++k, to += blockDim.x * 16) {
      if (last && elements(k) < kVec) {
        put(shared, k, head<T>(row + column(k), elements(k)));
      } else {
        copy_evict_last(to, row + column(k));
      }
    }
    commit_copies();
  }
  template <class T>
  __device__ __forceinline__ void wait_for_rest(unsigned shared, T filler) const {
    wait_for_copies();
    if constexpr (kRagged) {
      const int k = (chunks_ - 1) / threads_;
      if (k < kMax || chunk(k) != chunks_ - 1 || elements(k) >= kVec) return;
      put(shared, k, splice(get<T>(shared, k), splat<T, kVec>(filler), elements(k)));
    }
  }
  template <class T>
  __device__ __forceinline__ Packed<T, kVec> get(unsigned shared, int k) const {
    Packed<T, kVec> out;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out.word[0]), "=r"(out.word[1]), "=r"(out.word[2]), "=r"(out.word[3])
                 : "r"(place(shared, k))
                 : "memory");
    return out;
  }
  template <class T>
  __device__ __forceinline__ void put(unsigned shared, int k, const Packed<T, kVec>& value) const {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(place(shared, k)),
                 "r"(value.word[0]), "r"(value.word[1]), "r"(value.word[2]), "r"(value.word[3])
                 : "memory");
  }
  // fn(k, chunk) for them.
  template <class T, class Fn>
  __device__ __forceinline__ void each_of_rest(unsigned shared, Fn fn) const {
#pragma unroll 2
    for (int k = kMax; some(k); ++k) fn(k, get<T>(shared, k));
  }

  // Chunk k of a parameter that DirectParameter laid out for this shift.
  template <class W>
  __device__ __forceinline__ Packed<W, kVec> parameter(const W* from, int k) const {
    Packed<W, kVec> out{};
    if (some(k)) out = load_packed<W, kVec>(from + chunk(k) * kVec);
    return out;
  }
  // The same of one that lies as it is.
  template <class W>
  __device__ __forceinline__ Packed<W, kVec> plain_parameter(const W* from, int k) const {
    Compute<W> value[kVec];
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      const int column = parameter_column(chunk(k) * kVec + e, shift_, n_);
      value[e] = column >= 0 ? to_compute(from[column]) : 0.0f;
    }
    return pack<W>(value);
  }
  // Which element of a parameter goes with element i of the chunks of a row that begins `shift`
  // elements into a chunk; negative: none.
  static __device__ __forceinline__ int parameter_column(int i, int shift, int n) {
    int column = i - shift;
    if (kRagged && column < 0) column += (n + kVec - 1) / kVec * kVec;
    return column < n ? column : -1;
  }

  template <class T>
  __device__ __forceinline__ void store(T* row, int k, const Packed<T, kVec>& value) const {
    if (!some(k)) return;
    asm volatile("" : "+l"(row));
    const bool first = kRagged && k == 0 && thread_ == 0;
    if (!first && elements(k) >= kVec) return store_packed(row + column(k), value);
    store_elements(row + column(k), value, first ? shift_ : 0, elements(k));
    if (first) store_elements(row + column_of_tail(), value, 0, tail());
  }

 private:
  __device__ __forceinline__ unsigned place(unsigned shared, int k) const {
    return shared + (threadIdx.x + (k - kMax) * blockDim.x) * 16;
  }
  __device__ __forceinline__ int chunk(int k) const { return thread_ + k * threads_; }
  // The first `count` chunks are there and the row's alone.
  __device__ __forceinline__ bool whole(int count) const {
    const bool full = chunk(count - 1) * kVec + kVec <= n_ + shift_ && some(count - 1);
    return full && !(kRagged && thread_ == 0);
  }
  // Element 0 of chunk k has this column;
  __device__ __forceinline__ int column(int k) const { return chunk(k) * kVec - shift_; }
  // the row has so many elements from there to its end.
  __device__ __forceinline__ int elements(int k) const { return kRagged ? n_ - column(k) : kVec; }
  // Elements behind the last chunk, which go with the first.
  __device__ __forceinline__ int tail() const { return max(n_ - column_of_tail(), 0); }
  __device__ __forceinline__ int column_of_tail() const { return chunks_ * kVec - shift_; }

  // The first elements of a chunk.
  template <class T>
  __device__ __forceinline__ Packed<T, kVec> head(const T* from, int count) const {
    Compute<T> value[kVec];
#pragma unroll
    for (int e = 0; e < kVec; ++e) value[e] = e < count ? to_compute(from[e]) : 0;
    return pack<T>(value);
  }
  // Elements [begin, end) of a chunk.
  template <class T>
  __device__ __forceinline__ void store_elements(T* to, const Packed<T, kVec>& value, int begin,
                                                 int end) const {
    const unsigned inside = (1u << min(end, kVec)) - (1u << begin);
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      // NOTE: predicates, where the compiler would branch around every store.
      if constexpr (sizeof(T) == 4) {
        asm volatile(
            "{\n"
            ".reg .pred here;\n"
            "setp.ne.u32 here, %2, 0;\n"
            "@here st.global.u32 [%0], %1;\n"
            "}\n" ::"l"(to + e),
            "r"(value.word[e]), "r"(inside & 1u << e)
            : "memory");
      } else {
        asm volatile(
            "{\n"
            ".reg .pred here;\n"
            "setp.ne.u32 here, %2, 0;\n"
            "@here st.global.u16 [%0], %1;\n"
            "}\n" ::"l"(to + e),
            "h"(static_cast<unsigned short>(value.word[e / 2] >> (e % 2 * 16))),
            "r"(inside & 1u << e)
            : "memory");
      }
    }
  }

  int thread_, threads_, n_, chunks_, shift_;
};

// What the kernels of a kind are compiled for.
template <DirectKind kKind>
constexpr RowVariant direct_variant(bool ragged) {
  using K = DirectKind;
  if constexpr (kKind == K::kFewLanes) {
    return {.threads = 128, .blocks = 8, .held = 1, .ragged = ragged};
  } else if constexpr (kKind == K::kFewBlocks) {
    return {.threads = kRowThreads, .blocks = 2, .held = 1, .ragged = ragged};
  } else if constexpr (kKind == K::kFewClusters) {
    return {.threads = 1024, .blocks = 1, .held = 2, .ragged = ragged};
  } else if constexpr (kKind == K::kLanes) {
    return {.threads = 64, .blocks = 16, .held = 4, .ragged = ragged};
  } else {
    static_assert(kKind == K::kBlock);
    return {.threads = kBlockThreads, .blocks = 4, .held = 4, .ragged = ragged};
  }
}
template <DirectKind kKind>
using DirectTeam = std::conditional_t<
    kKind == DirectKind::kFewClusters, FewClusterTeam,
    std::conditional_t<kKind == DirectKind::kFewLanes || kKind == DirectKind::kLanes, LaneTeam,
                       BlockTeam>>;

}  // namespace fusedops
