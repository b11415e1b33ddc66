// Half rows whose threads hold whole chunks only. The elements before the first and behind the last
// of them, at most seven each, are held by single lanes, one each, so that a row that begins inside
// a chunk takes few more instructions than one that does not.
#pragma once

#include "csrc/cuda/rows/team/row_direct.cuh"

namespace fusedops {

// What a thread holds of a row: chunks, and an element of one of the ends.
//
// kLines: the first thread's chunks begin lines of 128 bytes, before the row perhaps, so that
// neither reads nor writes of a warp cut one in two; a row takes up to kLineChunks - 1 chunks more.
//
// NOTE: a thread that has no chunk k loads another one's. Branches around loads would let the
// compiler wait for a load together with those behind it.
template <int kVec, bool kRagged, bool kFull, bool kLines = false>
class RowEnds {
  static_assert(!(kFull && kLines));

 public:
  static constexpr bool kInLines = kLines;
  __device__ __forceinline__ RowEnds(int index, int size, int n, int64_t row)
      : index_(index), size_(size) {
    if constexpr (kRagged) {
      const int shift = static_cast<int>(row % kVec) * (n % kVec) % kVec;
      head_ = (kVec - shift) % kVec;
    }
    chunks_ = (n - head_) / kVec;
    if constexpr (kLines) {
      constexpr int kLine = kLineChunks * kVec;
      first_ = (static_cast<int>(row % kLine) * (n % kLine) + head_) % kLine / kVec;
    }
    if constexpr (kRagged) {
      const int behind = head_ + chunks_ * kVec + index - kVec;
      if (index < head_) alone_ = index;
      if (index >= kVec && index < 2 * kVec && behind < n) alone_ = behind;
    }
  }
  __device__ __forceinline__ int head() const { return head_; }  // elements before the chunks
  __device__ __forceinline__ int rounds() const { return (first_ + chunks_ + size_ - 1) / size_; }
  __device__ __forceinline__ bool some(int k) const {
    if constexpr (kFull) return true;
    return chunk(k) < chunks_ && (!kLines || chunk(k) >= 0);
  }
  // Element 0 of chunk k has this place behind the head.
  __device__ __forceinline__ int place(int k) const {
    if constexpr (kFull) return chunk(k) * kVec;
    const int inside = min(chunk(k), chunks_ - 1);
    return (kLines ? max(inside, 0) : inside) * kVec;
  }
  __device__ __forceinline__ int column(int k) const { return head_ + place(k); }
  template <class T>
  __device__ __forceinline__ void store(T* row, int k, const Packed<T, kVec>& value) const {
    T* const to = row + column(k);
    if constexpr (kFull) return store_packed(to, value);
    asm volatile(
        "{\n"
        ".reg .pred some;\n"
        "setp.ne.u32 some, %5, 0;\n"
        "@some st.global.v4.b32 [%0], {%1, %2, %3, %4};\n"
        "}\n" ::"l"(to),
        "r"(value.word[0]), "r"(value.word[1]), "r"(value.word[2]), "r"(value.word[3]),
        "r"(static_cast<unsigned>(some(k)))
        : "memory");
  }

  __device__ __forceinline__ bool alone() const { return kRagged && alone_ >= 0; }
  __device__ __forceinline__ int alone_column() const { return alone_; }

 private:
  __device__ __forceinline__ int chunk(int k) const { return index_ + k * size_ - first_; }

  int index_, size_, head_ = 0, chunks_, first_ = 0, alone_ = -1;
};

// The first kMax chunks of a thread, and its element of the ends.
template <class T, int kMax, class Slice>
struct EndsRow {
  static constexpr int kVec = kChunkOf<T>, kHeld = kMax;
  using Chunk = Packed<T, kVec>;
  Chunk held[kMax];
  T alone;

  // missing: the element of a thread without one.
  __device__ __forceinline__ EndsRow(const Slice& slice, const T* row, T missing) : alone(missing) {
#pragma unroll
    for (int k = 0; k < kMax; ++k) held[k] = load_once<T, kVec>(row + slice.column(k));
    if (slice.alone()) alone = row[slice.alone_column()];
  }
  // What is not the row's becomes `filler`.
  // NOTE: a branch would let the compiler move loads behind it.
  __device__ __forceinline__ void fill(const Slice& slice, T filler) {
    const Chunk chunk = splat<T, kVec>(filler);
#pragma unroll
    for (int k = 0; k < kMax; ++k) {
#pragma unroll
      for (int w = 0; w < Chunk::kWords; ++w) {
        held[k].word[w] = slice.some(k) ? held[k].word[w] : chunk.word[w];
      }
    }
  }
};

}  // namespace fusedops
