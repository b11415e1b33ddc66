// FP8 matrices and their scales: what quantisers write and products read. x = q * scale.
//
// q (rows, columns): bytes of e4m3 or e5m2, row-major, columns padded with zeros to a multiple of
// 16 (TMA's). Scales are fp32:
//   one scale      (1, 1)
//   each row       (rows, 1)
//   1x128          (ceil(columns / 128), rows padded to a multiple of 4): a column of it belongs to
//                  a row of q, so that a tile reads those of neighbouring rows at once; the op
//                  _fp8_matmul takes its transpose (rows, ceil(columns / 128)).
//   128x128        (ceil(rows / 128), ceil(columns / 128))
#pragma once

#include <bit>
#include <cstdint>

#include "csrc/common/int_math.h"

namespace fusedops {

enum class Fp8Format : int8_t { kE4M3, kE5M2 };
constexpr float largest_value(Fp8Format format) {
  return format == Fp8Format::kE4M3 ? 448.0f : 57344.0f;
}

enum class Fp8Scaling : int8_t { kNone, kTensor, kRow, kBlock, kTile };
inline constexpr int64_t kNumFp8Scalings = 5;

inline constexpr int64_t kFp8Block = 128;
inline constexpr int64_t kFp8Columns = 16;   // columns of q come in these
inline constexpr int64_t kFp8ScaleRows = 4;  // and the rows of 1x128 scales

// The smallest maximum of a block: zeros stay zeros, and 448 / maximum stays finite.
inline constexpr float kFp8SmallestMaximum = 0x1p-100f;

// The bits of a normal number: the mantissa becomes 0, the exponent one more where it was not.
constexpr float next_power_of_two(float value) {
  return std::bit_cast<float>((std::bit_cast<uint32_t>(value) + 0x7fffffu) & 0xff800000u);
}

// The sizes of a scale tensor of a (rows, columns) matrix.
struct Fp8ScaleShape {
  int64_t rows, columns;
};
constexpr Fp8ScaleShape scale_shape(Fp8Scaling scaling, int64_t rows, int64_t columns) {
  switch (scaling) {
    case Fp8Scaling::kNone: return {0, 0};
    case Fp8Scaling::kTensor: return {1, 1};
    case Fp8Scaling::kRow: return {rows, 1};
    case Fp8Scaling::kBlock: return {ceil_div(columns, kFp8Block), round_up(rows, kFp8ScaleRows)};
    default: return {ceil_div(rows, kFp8Block), ceil_div(columns, kFp8Block)};
  }
}

}  // namespace fusedops
