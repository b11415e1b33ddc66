// Which elements of a row a thread holds, and the ring that brings rows from memory.
#pragma once

#include "csrc/common/device/async_copy.cuh"
#include "csrc/cuda/rows/team/row_team.cuh"

namespace fusedops {

// Whether whole chunks around this row would reach behind the tensor's last element.
__device__ __forceinline__ bool ends_tensor(const RowLayout& layout, int64_t row) {
  return (layout.rows - 1 - row) * layout.n < 16;
}

// The chunks of one thread, of rows that all begin at the same place inside a chunk: element e of
// chunk i is column(i) + e. Only the first and the last chunk of a row can be partial, which takes
// kRagged; kMax: the most chunks that the kernel unrolls for.
template <int kVec, int kMax, bool kRagged>
class RowSlice {
 public:
  template <class C>
  __device__ __forceinline__ RowSlice(const RowTeam<C>& team, const RowLayout& layout)
      : begin_((team.rank() * layout.chunks * team.size() + team.index()) * kVec),
        step_(team.size() * kVec),
        shift_(kRagged ? static_cast<int>((team.first() + team.sub()) * layout.n % kVec) : 0),
        end_(shift_ + layout.n),
        count_(layout.chunks) {
#pragma unroll
    for (int i = 0; i < kMax; ++i) {
      if (i >= count_) break;
      some_ |= (begin(i) < end_) << i;
      full_ |= (hi(i) == kVec && lo(i) == 0) << i;
    }
  }

  __device__ __forceinline__ int count() const { return count_; }
  // Chunk i in the part of the row that the block holds begins at this column.
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
  // A bit for every chunk with elements that do not belong to the row.
  __device__ __forceinline__ unsigned not_full() const { return ~full_ & ((1u << count_) - 1); }
  // NOTE: the compiler would compute what follows from these once for all rows, and spill it.
  __device__ __forceinline__ void hold() {
    asm volatile("" : "+r"(begin_), "+r"(step_), "+r"(some_));
    if constexpr (kRagged) asm volatile("" : "+r"(shift_), "+r"(end_), "+r"(full_));
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

  // The part of the row that the threads of a block share, seen by its first thread: elements from
  // its first chunk (before the row where negative) to its last, or to the row's end.
  __device__ __forceinline__ int part_begin() const { return begin_ - shift_; }
  __device__ __forceinline__ int part_elements() const {
    const int left = end_ - begin_, all = count_ * step_;
    return left < 0 ? 0 : left < all ? left : all;
  }

 private:
  // Elements from the start of the row's first chunk.
  __device__ __forceinline__ int begin(int i) const { return begin_ + i * step_; }

  int begin_, step_, shift_, end_, count_;
  unsigned some_ = 0, full_ = 0;  // a bit per chunk
};

// A tensor's row, and its place in a stage.
template <class S>
struct RowStream {
  const S* row;  // element 0
  int place;
};

// Rows on their way from memory to shared memory: `stages` stages, up to kAhead of them at a time.
// A thread reads back its own chunks only.
//
// One thread of a team asks for a whole row by bulk copies, or every thread for its own chunks:
// that is sooner there, which counts where a team has one row, and takes many more instructions.
template <int kAhead>
class RowRing {
 public:
  // shared: behind the slots of the team; streams: places of a stage, two for fp32 beside half.
  template <class C>
  __device__ __forceinline__ RowRing(void* shared, const RowTeam<C>& team, const RowLayout& layout,
                                     int streams, int stages = kRowStages)
      : bulk_(layout.bulk), pitch_(layout.pitch), stage_bytes_(streams * layout.pitch) {
    const int warps = team.in_warp() ? static_cast<int>(blockDim.x) / 32 : 1;
    const int mine = team.in_warp() ? static_cast<int>(threadIdx.x) / team.lanes() : 0;
    const unsigned barriers = shared_address(shared);
    barrier_ = barriers + (team.in_warp() ? threadIdx.x / 32 : 0) * stages * 8;
    part_ = barriers + row_barrier_bytes(warps, stages) + mine * stages * stage_bytes_;
    base_ = part_ + team.index() * 16;
    step_ = team.size() * 16;
    asks_ = team.index() == 0;
    if (bulk_) {
      const int arrivals = team.in_warp() ? 32 / team.lanes() : 1;
      if (static_cast<int>(threadIdx.x) < warps * stages) {
        init_barrier(barriers + threadIdx.x * 8, arrivals);
        release_barrier_init();
        fence_bulk_copies();
      }
      __syncthreads();
    }
  }

  // Asks for a row of every stream. last: nothing may be read behind it.
  template <int kVec, int kMax, bool kRagged, class... S>
  __device__ __forceinline__ void fetch(int stage, bool active, bool last,
                                        const RowSlice<kVec, kMax, kRagged>& slice,
                                        RowStream<S>... stream) const {
    if (!bulk_) {
#pragma unroll
      for (int i = 0; i < kMax; ++i) {
        if (!active || i >= slice.count()) break;
        (own(stage, stream, slice, i), ...);
      }
      commit_copies();
      return;
    }
    if (!asks_) return;
    const unsigned barrier = barrier_ + 8 * stage;
    if (!active) return expect_bytes(barrier, 0);
    const int begin = slice.part_begin(), elements = slice.part_elements();
    const int whole = (kRagged && last ? elements : elements + kVec - 1) / kVec * kVec;
    if (kRagged && last) {
      (copy_elements(stage, stream, begin, whole, elements), ...);
    }
    expect_bytes(barrier, whole * (static_cast<unsigned>(sizeof(S)) + ...));
    if (whole == 0) return;
    (bulk_copy(part_ + stage * stage_bytes_ + stream.place * pitch_, stream.row + begin,
               whole * static_cast<int>(sizeof(S)), barrier),
     ...);
  }

  // Until the oldest of kAhead rows has arrived, which is in this stage.
  __device__ __forceinline__ void wait(int stage) {
    if (bulk_) {
      wait_for_bytes(barrier_ + 8 * stage, phase_ >> stage & 1);
      phase_ ^= 1u << stage;
    } else {
      wait_for_copies<kAhead - 1>();
    }
  }
  __device__ __forceinline__ void drain() const { wait_for_copies(); }

  // Writes `value` over what the chunks of a stage hold beside the row.
  template <class S, int kVec, int kMax, bool kRagged>
  __device__ __forceinline__ void fill(int stage, int stream, S value,
                                       const RowSlice<kVec, kMax, kRagged>& slice) const {
    unsigned ragged = slice.not_full();
    if (ragged == 0) return;
#pragma unroll 1
    for (; ragged != 0; ragged &= ragged - 1) {
      const int i = __ffs(static_cast<int>(ragged)) - 1;
      const int lo = slice.some(i) ? slice.lo(i) : kVec, hi = slice.some(i) ? slice.hi(i) : kVec;
      const unsigned chunk = at<S, kVec>(stage, stream, i);
#pragma unroll
      for (int e = 0; e < kVec; ++e) {
        if (e < lo || e >= hi) put(chunk + e * static_cast<unsigned>(sizeof(S)), value);
      }
    }
    if (bulk_) fence_bulk_copies();
  }

  // Zero in the chunks of this thread that no row has, in every stage: they add nothing to any sum.
  template <class S, int kVec, int kMax, bool kRagged>
  __device__ __forceinline__ void clear(int stages, int stream,
                                        const RowSlice<kVec, kMax, kRagged>& slice) const {
#pragma unroll
    for (int i = 0; i < kMax; ++i) {
      if (i >= slice.count() || slice.some(i)) continue;
#pragma unroll 1
      for (int stage = 0; stage < stages; ++stage) {
#pragma unroll
        for (int h = 0; h < kWordsOf<S, kVec>; ++h) {
          asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(
                           at<S, kVec>(stage, stream, i) + 16 * h),
                       "r"(0)
                       : "memory");
        }
      }
    }
  }

  template <class S, int kVec>
  __device__ __forceinline__ Packed<S, kVec> read(int stage, int stream, int i) const {
    Packed<S, kVec> out;
#pragma unroll
    for (int h = 0; h < kWordsOf<S, kVec>; ++h) {
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(out.word[4 * h]), "=r"(out.word[4 * h + 1]), "=r"(out.word[4 * h + 2]),
                     "=r"(out.word[4 * h + 3])
                   : "r"(at<S, kVec>(stage, stream, i) + 16 * h)
                   : "memory");
    }
    return out;
  }

 private:
  // Chunk i of a row. What lies behind the row becomes zero.
  template <class S, int kVec, int kMax, bool kRagged>
  __device__ __forceinline__ void own(int stage, const RowStream<S>& stream,
                                      const RowSlice<kVec, kMax, kRagged>& slice, int i) const {
    if (!slice.some(i)) return;
    const char* chunk = reinterpret_cast<const char*>(stream.row + slice.column(i));
#pragma unroll
    for (int h = 0; h < kWordsOf<S, kVec>; ++h) {
      const int left = slice.hi(i) * static_cast<int>(sizeof(S)) - 16 * h;
      const int bytes = left < 0 ? 0 : left < 16 ? left : 16;
      const unsigned to = at<S, kVec>(stage, stream.place, i) + 16 * h;
      if (bytes % 16 == 0) {
        copy_async(to, chunk + 16 * h, bytes);
      } else {
        copy_part(to, reinterpret_cast<const S*>(chunk + 16 * h), bytes);
      }
    }
  }
  // The first `bytes` of 16, then zeros. NOTE: compute-sanitizer reports all of them where a part
  // is copied asynchronously.
  template <class S>
  __device__ __forceinline__ void copy_part(unsigned to, const S* from, int bytes) const {
    constexpr int kSize = sizeof(S);
#pragma unroll 1
    for (int at = 0; at < 16; at += kSize, ++from) put(to + at, at < bytes ? *from : S(0.0f));
  }
  // Elements [from, to) of the part.
  template <class S>
  __device__ __forceinline__ void copy_elements(int stage, const RowStream<S>& stream, int begin,
                                                int from, int to) const {
    const unsigned there = part_ + stage * stage_bytes_ + stream.place * pitch_;
    for (int e = from; e < to; ++e) {
      put(there + e * static_cast<unsigned>(sizeof(S)), stream.row[begin + e]);
    }
  }

  // NOTE: as 16-byte words: a chunk of fp32 beside one of half has 32 bytes.
  template <class S, int kVec>
  static constexpr int kWordsOf = sizeof(S) * kVec / 16;

  // Chunk i of this thread.
  template <class S, int kVec>
  __device__ __forceinline__ unsigned at(int stage, int stream, int i) const {
    constexpr int kWords = kWordsOf<S, kVec>;
    const unsigned first = kWords == 1 ? base_ : part_ + (base_ - part_) * kWords;
    return first + stage * stage_bytes_ + stream * pitch_ + i * (step_ * kWords);
  }
  template <class S>
  __device__ __forceinline__ void put(unsigned to, S value) const {
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

  bool bulk_, asks_;
  unsigned barrier_, part_, base_, step_, pitch_, stage_bytes_, phase_ = 0;
};

}  // namespace fusedops
