// How blocks anywhere on the device agree on the statistics of 128 rows, of which each has a part:
// by words in global memory that say to which round they belong.
//
// A group of blocks has the rows. The two lanes 2 r and 2 r + 1 of a warp have row r of its 16, and
// hear of it from the same lanes of the group's other blocks alone. Each joins half of the parts in
// the blocks' order, and both the halves. A round's words lie where those of two rounds before
// did: who writes them has read what all blocks wrote in the last round, after they had read those.
// NOTE: number and round are written at once, so that no order of writes is asked for.
// NOTE: blocks that wait for others need them to run. A group's blocks are neighbours in the grid,
// blocks start in its order, and no group waits for another one.
#pragma once

#include "csrc/cuda/fp8/norm/row_parts.cuh"

namespace fusedops {

inline constexpr int kLeastGroup = 4;  // blocks; each lane reads parts in twos
inline constexpr int kMostGroup = 32;
inline constexpr int kPartsAtOnce = 4;

// A part as words: its number or numbers, each with its round.
template <bool kRms>
inline constexpr int kPartWords = int(sizeof(PartOfRow<kRms>) / sizeof(float));

// Words of a group: of two rounds.
template <bool kRms>
constexpr int64_t group_words(int64_t blocks) {
  return 2 * kTile * blocks * kPartWords<kRms>;
}

__device__ __forceinline__ uint64_t word_of(float value, uint32_t round) {
  return uint64_t{round} << 32 | __float_as_uint(value);
}
__device__ __forceinline__ bool is_of_round(uint64_t word, uint32_t round) {
  return uint32_t(word >> 32) == round;
}
__device__ __forceinline__ float value_of(uint64_t word) { return __uint_as_float(uint32_t(word)); }

// Both are read and written in the L2 cache, each word at once.
__device__ __forceinline__ void write_word(uint64_t* to, uint64_t word) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
__device__ __forceinline__ ulonglong2 read_words(const uint64_t* from) {
  ulonglong2 words;
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(words.x), "=l"(words.y)
               : "l"(from)
               : "memory");
  return words;
}

// Whether pairs of words are of the round; words behind the last do not count.
template <int kPairs>
__device__ __forceinline__ bool read_round(ulonglong2 (&words)[kPairs], const uint64_t* from,
                                           int pairs, uint32_t round) {
  bool there = true;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    if (i < pairs) words[i] = read_words(from + 2 * i);
  }
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    if (i >= pairs) continue;
    there = there && is_of_round(words[i].x, round) && is_of_round(words[i].y, round);
  }
  return there;
}

// Parts of a row that are joined to one, as Chan, Golub and LeVeque do.
template <bool kRms>
struct JoinedParts {
  PartOfRow<kRms> part = {};
  float columns = 0;  // not counted for an RMS norm

  __device__ __forceinline__ void join(const PartOfRow<kRms>& other, float of_other) {
    part.squares += other.squares;
    if constexpr (!kRms) {
      const float both = columns + of_other, share = __fdividef(of_other, both);
      const float d = other.mean - part.mean;
      part.mean = fmaf(d, share, part.mean);
      part.squares = fmaf(d * d, columns * share, part.squares);
      columns = both;
    }
  }
};

// What a pair of lanes says of its row and hears of it.
template <bool kRms>
struct RowWords {
  uint64_t* row;  // of round 0: those of all blocks, one after the other
  int other;      // from there to round 1's

  __device__ __forceinline__ RowWords(uint64_t* words, ClusterSize group) {
    // NOTE: hides from the compiler that places are the same in every round: it would keep them in
    // registers that it has not.
    int thread = threadIdx.x;
    asm volatile("" : "+r"(thread));
    other = kTile * kPartWords<kRms> << group.log;
    const int of_thread = thread / 2 * kPartWords<kRms> << group.log;
    row = words + int64_t{blockIdx.x >> group.log} * 2 * other + of_thread;
  }
  __device__ __forceinline__ uint64_t* of(uint32_t round) const {
    return row + (round % 2 == 0 ? 0 : other);
  }
  __device__ __forceinline__ void send(int rank, const PartOfRow<kRms>& part,
                                       uint32_t round) const {
    if (threadIdx.x % 2 == 0) {
      uint64_t* const to = of(round) + rank * kPartWords<kRms>;
      write_word(to, word_of(part.squares, round));
      if constexpr (!kRms) write_word(to + 1, word_of(part.mean, round));
    }
    __syncwarp();
  }
  // All lanes call it; both of a row have the same.
  __device__ __forceinline__ RowStatistics<kRms> receive(ClusterSize group, uint32_t round,
                                                         int tiles, int64_t k, float eps) const {
    constexpr int kPairs = kPartsAtOnce * kPartWords<kRms> / 2;
    wait_for_row(group, round);
    const int each = group.blocks() / 2, first = int(threadIdx.x) % 2 * each;
    const uint64_t* const from = of(round) + first * kPartWords<kRms>;
    JoinedParts<kRms> joined;
#pragma unroll 1
    for (int b = 0; b < each; b += kPartsAtOnce) {
      ulonglong2 words[kPairs];
      const int pairs = (each - b) * kPartWords<kRms> / 2;
      while (!read_round(words, from + b * kPartWords<kRms>, pairs, round)) {
      }
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        if (i >= pairs) continue;
        if constexpr (kRms) {
          joined.join({value_of(words[i].x)}, 0);
          joined.join({value_of(words[i].y)}, 0);
        } else {
          joined.join({value_of(words[i].x), value_of(words[i].y)},
                      columns_of(tiles_of(first + b + i, group, tiles), k));
        }
      }
    }
    return join_halves(joined, 1.0f / float(k), eps);
  }

 private:
  // Waits for the parts of the warp's first row, whose other rows' come with them.
  // NOTE: all lanes that ask for theirs again and again take as much of the L2 cache as the copies.
  __device__ __forceinline__ void wait_for_row(ClusterSize group, uint32_t round) const {
    const int lane = threadIdx.x % 32, of_row = kPartWords<kRms> << group.log;
    if (2 * lane < of_row) {
      const uint64_t* const from = of(round) - lane / 2 * of_row + 2 * lane;
      ulonglong2 words[1];
      while (!read_round(words, from, 1, round)) {
      }
    }
    __syncwarp();
  }
  __device__ __forceinline__ static RowStatistics<kRms> join_halves(JoinedParts<kRms> joined,
                                                                    float inverse, float eps) {
    const float squares = __shfl_xor_sync(kAllLanes, joined.part.squares, 1);
    if constexpr (kRms) {
      return {rsqrtf((joined.part.squares + squares) * inverse + eps)};
    } else {
      JoinedParts<kRms> other;
      other.part = {squares, __shfl_xor_sync(kAllLanes, joined.part.mean, 1)};
      other.columns = __shfl_xor_sync(kAllLanes, joined.columns, 1);
      if (threadIdx.x % 2 != 0) {  // the same halves first
        const JoinedParts<kRms> own = joined;
        joined = other, other = own;
      }
      joined.join(other.part, other.columns);
      return {rsqrtf(joined.part.squares * inverse + eps), joined.part.mean};
    }
  }
};

}  // namespace fusedops
