// What a kernel that holds its rows in registers is compiled for, beside dtype and team.
#pragma once

#include <bit>
#include <cstdint>

namespace fusedops {

// A kernel takes a variant as its code, one template argument. NOTE: nvcc 13.0 cannot launch
// kernels whose template argument is a struct of a namespace: its host code spells that argument
// wrongly.
struct RowVariant {
  uint16_t threads;        // of a block, the most
  uint16_t blocks;         // on a multiprocessor, the least: so that registers keep none away
  uint8_t held;            // chunks of a row in a thread's registers
  bool ragged = false;     // rows begin or end inside a chunk
  bool full = false;       // a row has `held` chunks for every thread of its team
  bool overflows = false;  // chunks that registers do not hold wait in shared memory

  constexpr operator uint64_t() const { return std::bit_cast<uint64_t>(*this); }
  static constexpr RowVariant of(uint64_t code) { return std::bit_cast<RowVariant>(code); }
};

}  // namespace fusedops
