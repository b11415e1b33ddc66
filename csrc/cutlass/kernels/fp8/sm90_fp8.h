// Host face of the FP8 kernels (sm90_fp8_kernel.cuh).
#pragma once

#include "csrc/common/activation.h"
#include "csrc/common/dtype.h"
#include "csrc/common/int_math.h"
#include "csrc/common/launch_context.h"

namespace fusedops::fp8 {

// Where the scales of operands act. kResult: a factor of a row and one of a column, upon the
// finished sums (tensorwise, rowwise). kRowTile: every 128 of K, one for each row of A and one for
// 128 columns (1x128 by 128x128). kRowRow: every 128 of K, one for each row of A, or for 128 of
// them, and one for each column.
enum class Scaling : int8_t { kResult, kRowTile, kRowRow };

inline constexpr int kBlock = 128;  // of K, of a step, and of the rows of a 128x128 scale

// One scale for a row (or 128 rows) by a block of K. NOTE: those that each row has lie side by
// side, 16-byte aligned, in memory that ends with a whole unit of 16 bytes.
struct Scales {
  const float* data = nullptr;
  int64_t row_stride = 0, block_stride = 0;
};

// d (m, n), leading dimension ldd, = act((a scale_a) @ (b scale_b)^T + bias); a (m, k), b (n, k).
// Rows of a, b, d and bias begin at whole units of 16 bytes, bias also ends with one.
struct Problem {
  int64_t m = 0, n = 0, k = 0;
  const void *a = nullptr, *b = nullptr;
  int64_t lda = 0, ldb = 0;
  Scaling scaling = Scaling::kResult;
  Scales scale_a, scale_b;
  bool a_by_tile = false;  // kRowRow: scale_a has one value for 128 rows
  void* d = nullptr;
  int64_t ldd = 0;
  const void* bias = nullptr;  // of d's type, or null
  Activation activation = Activation::kNone;
  bool accumulate = false;  // of fp32 d: add to what it holds
  int raster_width = 8;     // in tiles
};

// Which tile a product takes: 256x128, or 128x128 where that ends sooner. A wave of the larger
// ones takes twice the time, and uses the operands' way from L2 better.
constexpr bool takes_large_tile(int64_t m, int64_t n, int sm_count) {
  const int64_t columns = ceil_div(n, 128);
  const int64_t large = ceil_div(ceil_div(m, 256) * columns, sm_count);
  const int64_t small = ceil_div(ceil_div(m, 128) * columns, sm_count);
  return 20 * large <= 11 * small;
}

// Launches; returns null or the reason of the failure.
using RunFn = const char* (*)(const Problem&, const LaunchContext&);

// What instances/sm90_fp8_*.cu register, for A in e4m3 or e5m2 by B in e4m3; null where this build
// has no code for sm_90a.
RunFn find_kernels(bool a_is_e5m2, DType out);
bool register_kernels(bool a_is_e5m2, DType out, RunFn run);

}  // namespace fusedops::fp8
