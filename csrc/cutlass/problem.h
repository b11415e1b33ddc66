// The GEMM vocabulary: plain structs shared by selection (host only), the kernel families and the
// ops. No torch, no CUTLASS, no CUDA header: selection and its tests build without a GPU
// toolchain.
#pragma once

#include <cstdint>

#include "csrc/common/activation.h"
#include "csrc/common/dtype.h"
#include "csrc/common/launch_context.h"
#include "csrc/cutlass/column_norm.h"

namespace fusedops {

// How fp32 products are formed: kTf32 rounds operands to TF32, kFp32 keeps fp32 accuracy. Other
// dtypes use kNative.
enum class MathMode : int8_t { kNative, kTf32, kFp32 };

enum class Major : int8_t { kK, kMN };  // the index of an operand that is contiguous in memory

// kFused: d = act(a b + bias). kPreact: the same and preact = a b + bias. kAccumulator: d = a b in
// fp32, or d += a b. kGrad: d = (a b) * act'(aux), and the sums of its columns. kResidual:
// d = act(a b + bias) + aux. kMoments: d = a b, and the moments of its columns.
// kNorm: d = act(norm(a b) + aux).
enum class Epilogue : int8_t { kFused, kPreact, kAccumulator, kGrad, kResidual, kMoments, kNorm };
inline constexpr int kNumEpilogues = 7;

// A (M, K) or B (K, N) operand. Element (i, k) lies at i * ld + k when K is contiguous, at k * ld +
// i otherwise.
struct GemmOperand {
  const void* data = nullptr;
  int64_t ld = 0;
  Major major = Major::kK;
};

// Global memory for CTAs that share tiles (sm90_tile_exchange.cuh).
struct ExchangeSpace {
  float* sums = nullptr;      // a tile for every CTA; null: none shares, flags are a tile counter's
  uint64_t* flags = nullptr;  // two for every CTA: one for each warpgroup that has rows of the tile
  uint64_t written = 0;       // what a flag becomes; no other launch has the same
};

// d (M, N) = act(a (M, K) @ b (K, N) + bias (N)); d and preact are row-major with leading dimension
// ldd. slices > 1 (kAccumulator only): slice s sums over k in [s * slice_k, (s + 1) * slice_k) and
// writes to d + s * slice_stride.
struct GemmProblem {
  int64_t m = 0, n = 0, k = 0;
  int64_t slices = 1, slice_k = 0;  // slice_k: a multiple of 64
  GemmOperand a, b;
  void* d = nullptr;
  int64_t ldd = 0;
  int64_t slice_stride = 0;   // elements of d
  void* preact = nullptr;     // kPreact only
  const void* aux = nullptr;  // kGrad: what forward saved, or null; kResidual, kNorm: (M, N) like d
  void* hidden = nullptr;     // kGrad: act(aux) out, or null
  // For each summed_rows() rows: kGrad: sums (blocks of rows, N), or null; kMoments: means and sums
  // of squares about them (blocks of rows, N, 2).
  float* column_sums = nullptr;
  bool accumulate = false;     // kAccumulator, or run_gemm_adding: add to d
  const void* bias = nullptr;  // (N,) of dtype, or null
  Activation activation = Activation::kNone;
  Epilogue epilogue = Epilogue::kFused;
  DType dtype = DType::kBFloat16;  // of a, b, bias, d, preact; kAccumulator writes d in fp32
  MathMode math = MathMode::kNative;
  int raster_width = 8, shared_tiles = 1;  // those of GemmPlan
  ExchangeSpace exchange;
  ColumnNorm norm;  // kNorm
};

// A compiled kernel: launches or returns the reason why it cannot (null on success).
using GemmRunFn = const char* (*)(const GemmProblem&, const LaunchContext&);

}  // namespace fusedops
