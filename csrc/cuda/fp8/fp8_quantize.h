// Host face of fp8_quantize.cuh: raw pointers, sizes and where to launch.
#pragma once

#include "csrc/common/activation.h"
#include "csrc/common/dtype.h"
#include "csrc/common/fp8.h"
#include "csrc/common/launch_context.h"

namespace fusedops {

// One orientation of the result; csrc/common/fp8.h says how it lies.
struct Fp8Side {
  Fp8Scaling scaling = Fp8Scaling::kNone;
  uint8_t* q = nullptr;
  int64_t pitch = 0;  // bytes between rows of q
  int64_t width = 0;  // bytes of a row, with its padding
  float* scale = nullptr;
  int64_t scale_pitch = 0;     // elements between rows of scale
  int64_t scale_lines = 0;     // of 1x128: how many of a row are written
  uint32_t* maxima = nullptr;  // of rows or of the tensor, by the pass before; as bits of floats
};

struct Fp8Quantize {
  DType dtype;  // of x, saved and factor: not fp64
  Activation activation;
  bool gradient;
  Fp8Format format;
  bool power_of_two;
  int64_t m, k;
  const void* x;
  const void* saved;                              // null: none
  const void* factor;                             // null: none
  int64_t x_stride, saved_stride, factor_stride;  // elements between rows
  bool vectors;                                   // rows may be read in accesses of 16 bytes
  Fp8Side rows, columns;
  float* partial = nullptr;  // sums of columns (ceil(m / 128), k), null: not wanted
};

// Rows in blocks of 1x128 and nothing else, of x or act(x), times factor.
const char* launch_fp8_rows(const Fp8Quantize& problem, const LaunchContext& context);

// One pass over x. maxima_only: the pass that finds those of rows or of the tensor.
// Returns null or the reason of the failure.
const char* launch_fp8_quantize(const Fp8Quantize& problem, bool maxima_only,
                                const LaunchContext& context);

// out (columns,) of dtype = the sums over rows of partial (rows, columns), in a fixed order.
const char* launch_fp8_sums(const float* partial, int64_t rows, int64_t columns, void* out,
                            DType dtype, const LaunchContext& context);

}  // namespace fusedops
