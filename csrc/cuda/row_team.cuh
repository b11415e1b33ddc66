// How threads share a row of memory: softmax, norms and their backward.
//
// A row is cut into chunks of 16 bytes, aligned in memory whatever the row length: a row of odd
// length starts inside a chunk that it shares with the row before, and only this first and the last
// chunk are partial. A team of threads holds the row, every thread the chunks t, t + size, ...:
// up to 32 threads of a warp, or a whole block, or a cluster of blocks.
//
// Teams walk over rows with a stride that keeps a row's offset inside its chunk, so a thread's
// columns stay the same and parameters and column sums live in registers.
#pragma once

#include "common/pdl.cuh"
#include "cuda/row_chunk.cuh"
#include "cuda/row_layout.h"

namespace fusedops {

__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}

__device__ __forceinline__ void cluster_sync() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// The same shared memory in another block of the cluster.
template <class P>
__device__ __forceinline__ P* in_block(P* pointer, unsigned rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint64_t mapped;
  asm("mapa.u64 %0, %1, %2;" : "=l"(mapped) : "l"(reinterpret_cast<uint64_t>(pointer)), "r"(rank));
  return reinterpret_cast<P*>(mapped);
#else
  return pointer;
#endif
}

// The threads of a row, the rows they walk over, and how they agree on a value.
template <class C>
class RowTeam {
 public:
  __device__ __forceinline__ RowTeam(const RowLayout& layout, void* slots)
      : lanes_(layout.lanes),
        cluster_(layout.cluster),
        lane_(threadIdx.x % 32),
        slots_(static_cast<RowSlot<C>*>(slots)) {
    if (cluster_ == 0) {
      const int teams = blockDim.x / lanes_;
      index_ = threadIdx.x % lanes_;
      size_ = lanes_;
      sub_ = lane_ / lanes_;
      first_ = int64_t{blockIdx.x} * teams + threadIdx.x / 32 * (32 / lanes_);
      stride_ = int64_t{gridDim.x} * teams;
    } else {
      const int rank = cluster_ > 1 ? static_cast<int>(cluster_rank()) : 0;
      warps_ = cluster_ * (blockDim.x / 32);
      warp_ = rank * (blockDim.x / 32) + threadIdx.x / 32;
      index_ = rank * blockDim.x + threadIdx.x;
      size_ = cluster_ * blockDim.x;
      first_ = blockIdx.x / cluster_;
      stride_ = gridDim.x / cluster_;
      if (cluster_ > 1) cluster_sync();  // nobody writes to a block that has not started
    }
  }

  __device__ __forceinline__ int index() const { return index_; }
  __device__ __forceinline__ int size() const { return size_; }
  // NOTE: loops run from first() on, the same for a whole warp, since lanes of several rows shuffle
  // together; the row of this lane is sub() further.
  __device__ __forceinline__ int64_t first() const { return first_; }
  __device__ __forceinline__ int sub() const { return sub_; }
  __device__ __forceinline__ int64_t stride() const { return stride_; }
  __device__ __forceinline__ bool in_warp() const { return cluster_ == 0; }
  __device__ __forceinline__ bool leader() const { return index_ == 0; }

  // Over the row's lanes in this warp.
  __device__ __forceinline__ C warp_sum(C value) const {
    return warp_fold(value, [](C a, C b) { return a + b; });
  }
  __device__ __forceinline__ C warp_max(C value) const {
    return warp_fold(value, [](C a, C b) { return larger(a, b); });
  }

  // Every warp's values to every warp of the row: read them with slots().
  // NOTE: two sets of slots in turn, so that one barrier per row is enough.
  __device__ __forceinline__ void publish(C a, C b, C c = 0) {
    parity_ ^= 1;
    RowSlot<C>* mine = slots_ + parity_ * warps_ + warp_;
    if (cluster_ == 1) {
      if (lane_ == 0) *mine = {a, b, c};
      __syncthreads();
    } else {
      if (lane_ < cluster_) *in_block(mine, lane_) = {a, b, c};
      cluster_sync();
    }
  }

  // Sum over the published slots, the same bits in every thread.
  template <class Fn>
  __device__ __forceinline__ C sum_slots(Fn fn) const {
    C sum = 0;
    if (warps_ <= kFewWarps) {
      for (int i = 0; i < warps_; ++i) sum += fn(slots_[parity_ * warps_ + i]);
      return sum;
    }
    for (int i = lane_; i < warps_; i += 32) sum += fn(slots_[parity_ * warps_ + i]);
    return warp_sum(sum);
  }
  __device__ __forceinline__ C max_slot_a() const {
    C top = -static_cast<C>(INFINITY);
    if (warps_ <= kFewWarps) {
      for (int i = 0; i < warps_; ++i) top = larger(top, slots_[parity_ * warps_ + i].a);
      return top;
    }
    for (int i = lane_; i < warps_; i += 32) {
      top = larger(top, slots_[parity_ * warps_ + i].a);
    }
    return warp_max(top);
  }

  // Over the whole row.
  __device__ __forceinline__ C sum(C value) {
    value = warp_sum(value);
    if (in_warp()) return value;
    publish(value, 0);
    return sum_slots([](const RowSlot<C>& s) { return s.a; });
  }
  __device__ __forceinline__ void sum(C& a, C& b) {
    a = warp_sum(a);
    b = warp_sum(b);
    if (in_warp()) return;
    publish(a, b);
    a = sum_slots([](const RowSlot<C>& s) { return s.a; });
    b = sum_slots([](const RowSlot<C>& s) { return s.b; });
  }

  // No block may leave while another one of its cluster can still write to it.
  __device__ __forceinline__ void leave() const {
    if (cluster_ > 1) cluster_sync();
  }

 private:
  static constexpr int kFewWarps = 8;  // whose slots every thread reads

  template <class Fn>
  __device__ __forceinline__ C warp_fold(C value, Fn fn) const {
    if (lanes_ == 32) {
#pragma unroll
      for (int width = 16; width > 0; width /= 2) {
        value = fn(value, __shfl_xor_sync(~0u, value, width));
      }
      return value;
    }
    // NOTE: selects, since a branch around a shuffle costs more than the shuffle.
#pragma unroll
    for (int width = 16; width > 0; width /= 2) {
      const C joined = fn(value, __shfl_xor_sync(~0u, value, width));
      value = lanes_ > width ? joined : value;
    }
    return value;
  }

  int lanes_, cluster_, lane_;
  int index_, size_;
  int sub_ = 0, warps_ = 1, warp_ = 0, parity_ = 0;
  int64_t first_, stride_;
  RowSlot<C>* slots_;
};

// The chunks of one thread, of rows that all begin at the same place inside a chunk: element e of
// chunk i is column(i) + e. Only the first and the last chunk of a row can be partial, which takes
// kRagged; kMax: the most chunks that the kernel unrolls for.
template <int kVec, int kMax, bool kRagged>
class RowSlice {
 public:
  template <class C>
  __device__ __forceinline__ RowSlice(const RowTeam<C>& team, const RowLayout& layout)
      : begin_(team.index() * kVec),
        step_(team.size() * kVec),
        shift_(kRagged ? static_cast<int>((team.first() + team.sub()) * layout.n % kVec) : 0),
        end_(shift_ + layout.n),
        count_(layout.chunks) {
#pragma unroll
    for (int i = 0; i < kMax; ++i) {
      some_ |= (begin(i) < end_) << i;
      full_ |= (hi(i) == kVec && lo(i) == 0) << i;
    }
  }

  __device__ __forceinline__ int count() const { return count_; }
  __device__ __forceinline__ int column(int i) const { return begin(i) - shift_; }
  __device__ __forceinline__ bool some(int i) const { return some_ >> i & 1; }
  __device__ __forceinline__ bool full(int i) const { return (kRagged ? full_ : some_) >> i & 1; }
  // Elements [lo, hi) of chunk i belong to the row.
  __device__ __forceinline__ int lo(int i) const {
    return i == 0 && begin_ < shift_ ? shift_ - begin_ : 0;
  }
  __device__ __forceinline__ int hi(int i) const {
    const int left = end_ - begin(i);
    return left < 0 ? 0 : left < kVec ? left : kVec;
  }
  // Where the row's elements begin in this thread's first chunk.
  __device__ __forceinline__ int first() const { return kRagged ? lo(0) : 0; }
  // All chunks are full: nothing to fill.
  __device__ __forceinline__ bool whole() const { return full_ == (1u << count_) - 1; }
  // NOTE: the compiler would compute what follows from these once for all rows, and spill it.
  __device__ __forceinline__ void hold() {
    asm volatile(""
                 : "+r"(begin_), "+r"(step_), "+r"(shift_), "+r"(end_), "+r"(some_), "+r"(full_));
  }
  // Elements of all chunks that do not belong to the row.
  __device__ __forceinline__ int outside() const {
    int sum = 0;
#pragma unroll
    for (int i = 0; i < kMax; ++i) sum += i < count_ ? kVec - (some(i) ? hi(i) - lo(i) : 0) : 0;
    return sum;
  }

  // out points to element 0 of the row.
  template <class O, class C>
  __device__ __forceinline__ void store(int i, O* out, const C (&value)[kVec]) const {
    O* chunk = out + column(i);
    if (full(i)) {
      store_packed(chunk, pack<O>(value));
    } else if (kRagged && some(i)) {
#pragma unroll
      for (int e = 0; e < kVec; ++e) {
        if (e >= lo(i) && e < hi(i)) chunk[e] = from_compute<O>(value[e]);
      }
    }
  }

  // The same into a tensor of T, or of float where wide.
  template <class T, class C>
  __device__ __forceinline__ void store_as(int i, T* out, bool wide, int64_t row_start,
                                           const C (&value)[kVec]) const {
    if constexpr (sizeof(T) == 2) {
      if (wide) return store(i, reinterpret_cast<float*>(out) + row_start, value);
    }
    store(i, out + row_start, value);
  }

 private:
  // Elements from the start of the row's first chunk.
  __device__ __forceinline__ int begin(int i) const { return begin_ + i * step_; }

  int begin_, step_, shift_, end_, count_;
  unsigned some_ = 0, full_ = 0;  // a bit per chunk
};

// NOTE: as 16-byte words: a chunk of fp32 beside one of half has 32 bytes.
template <class S, int kVec>
inline constexpr int kWordsOf = sizeof(S) * kVec / 16;

// Rows on their way from memory. Every thread copies its own chunks into shared memory
// asynchronously and reads back its own only, so no barrier is needed.
class RowRing {
 public:
  // `words`: 16-byte words of one row that a thread holds, over all streams.
  __device__ __forceinline__ RowRing(void* shared, int words)
      : base_(static_cast<unsigned>(__cvta_generic_to_shared(shared)) + threadIdx.x * 16),
        row_bytes_(words * blockDim.x * 16) {}

  // Asks for chunk i of a row, at `chunk`. Of the row's last one, what lies behind the row becomes
  // zero.
  template <class S, int kVec, int kMax, bool kRagged>
  __device__ __forceinline__ void fetch(int stage, int word, const S* chunk,
                                        const RowSlice<kVec, kMax, kRagged>& slice, int i) const {
    if (!slice.some(i)) return;
#pragma unroll
    for (int h = 0; h < kWordsOf<S, kVec>; ++h) {
      const char* from = reinterpret_cast<const char*>(chunk) + 16 * h;
      if constexpr (kRagged) {
        const int left = slice.hi(i) * static_cast<int>(sizeof(S)) - 16 * h;
        copy(stage, word + h, from, left < 0 ? 0 : left < 16 ? left : 16);
      } else {
        copy(stage, word + h, from);
      }
    }
  }
  __device__ __forceinline__ void copy(int stage, int word, const void* from) const {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at(stage, word)), "l"(from)
                 : "memory");
  }
  // Zeros behind the first `bytes`.
  __device__ __forceinline__ void copy(int stage, int word, const void* from, int bytes) const {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at(stage, word)), "l"(from),
                 "r"(bytes)
                 : "memory");
  }

  // Writes `value` over what the chunks of a stage hold beside the row; chunk i is word
  // words * i + first.
  template <class S, int kVec, int kMax, bool kRagged>
  __device__ __forceinline__ void fill(int stage, int words, int first, S value,
                                       const RowSlice<kVec, kMax, kRagged>& slice) const {
    if (slice.whole()) return;
#pragma unroll 1
    for (int i = 0; i < slice.count(); ++i) {
      if (slice.full(i)) continue;
      const int lo = slice.some(i) ? slice.lo(i) : kVec, hi = slice.some(i) ? slice.hi(i) : kVec;
#pragma unroll
      for (int e = 0; e < kVec; ++e) {
        if (e < lo || e >= hi) put(stage, words * i + first, e, value);
      }
    }
  }

  template <class S>
  __device__ __forceinline__ S get(int stage, int word, int e) const {
    unsigned short bits16;
    S out;
    if constexpr (sizeof(S) == 2) {
      asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits16) : "r"(element<S>(stage, word, e)));
      memcpy(&out, &bits16, 2);
    } else if constexpr (sizeof(S) == 4) {
      asm volatile("ld.shared.f32 %0, [%1];" : "=f"(out) : "r"(element<S>(stage, word, e)));
    } else {
      asm volatile("ld.shared.f64 %0, [%1];" : "=d"(out) : "r"(element<S>(stage, word, e)));
    }
    return out;
  }
  __device__ __forceinline__ void commit() const {
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  // Until the oldest of kRowStages commits has arrived.
  __device__ __forceinline__ void wait() const {
    asm volatile("cp.async.wait_group %0;" ::"n"(kRowStages - 1) : "memory");
  }
  __device__ __forceinline__ void drain() const {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
  }

  template <class S, int kVec>
  __device__ __forceinline__ Packed<S, kVec> read(int stage, int word) const {
    Packed<S, kVec> out;
#pragma unroll
    for (int h = 0; h < kWordsOf<S, kVec>; ++h) {
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(out.word[4 * h]), "=r"(out.word[4 * h + 1]), "=r"(out.word[4 * h + 2]),
                     "=r"(out.word[4 * h + 3])
                   : "r"(at(stage, word + h))
                   : "memory");
    }
    return out;
  }

 private:
  __device__ __forceinline__ unsigned at(int stage, int word) const {
    return base_ + stage * row_bytes_ + word * (blockDim.x * 16);
  }
  // Element e of a chunk, which may have several words.
  template <class S>
  __device__ __forceinline__ unsigned element(int stage, int word, int e) const {
    const unsigned offset = e * static_cast<unsigned>(sizeof(S));
    return at(stage, word + static_cast<int>(offset / 16)) + offset % 16;
  }
  template <class S>
  __device__ __forceinline__ void put(int stage, int word, int e, S value) const {
    const unsigned to = element<S>(stage, word, e);
    if constexpr (sizeof(S) == 2) {
      unsigned short bits;
      memcpy(&bits, &value, 2);
      asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(bits) : "memory");
    } else if constexpr (sizeof(S) == 4) {
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
    } else {
      asm volatile("st.shared.f64 [%0], %1;" ::"r"(to), "d"(value) : "memory");
    }
  }

  unsigned base_, row_bytes_;
};

__device__ __forceinline__ int next_stage(int stage) {
  return stage + 1 == kRowStages ? 0 : stage + 1;
}
__device__ __forceinline__ int previous_stage(int stage) {
  return stage == 0 ? kRowStages - 1 : stage - 1;
}

}  // namespace fusedops
