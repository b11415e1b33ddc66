// Host face of pack.cuh.
#pragma once

#include <cstdint>

#include "csrc/common/launch_context.h"

namespace fusedops {

// A strided matrix: element (r, c) lies at r * row_stride + c * col_stride (elements, any sign).
struct PackSource {
  const void* data = nullptr;
  int64_t rows = 0, cols = 0;
  int64_t row_stride = 0, col_stride = 0;
};

// Copies source into out (out_rows >= rows, ld >= cols), row-major, zero where source has no
// element. out is 16-byte aligned, ld a multiple of 16 bytes; elements have 2, 4 or 8 bytes.
// A packed A or B is K-contiguous with rows = M or N and cols = K: ld then serves as K too,
// provided that the other operand is zero-padded (or K-major and packed) up to the same K. An
// operand that stays MN-major can be padded along K with out_rows. Returns null or the reason why
// nothing was launched.
const char* pack_operand(const PackSource& source, int64_t element_bytes, void* out,
                         int64_t out_rows, int64_t ld, const LaunchContext& context);

// The way back: copies the rows of a matrix of 2-byte elements, which are contiguous, into a dense
// one (rows, cols) that is 16-byte aligned. Returns as pack_operand does.
const char* unpack_rows(const PackSource& padded, void* out, const LaunchContext& context);

}  // namespace fusedops
