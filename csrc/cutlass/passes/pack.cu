#include <climits>

#include "csrc/common/dispatch.h"
#include "csrc/cutlass/passes/pack.cuh"
#include "csrc/cutlass/passes/pack.h"

namespace fusedops {
namespace {

constexpr const char* kTooLarge = "pack_operand: more than 2^31 - 1 blocks";

// units: of 16 bytes, for sources whose columns are contiguous.
template <class T>
auto transposing_kernel(bool units) {
  if constexpr (sizeof(T) <= 4) {
    if (units) return &pack_columns_kernel<T>;
  }
  return &pack_transpose_kernel<T>;
}

template <class T>
const char* launch(const PackSource& source, const PackShape& shape, void* out,
                   const LaunchContext& context) {
  const T* data = static_cast<const T*>(source.data);
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const auto magnitude = [](int64_t stride) { return stride < 0 ? -stride : stride; };
  cudaError_t status;
  if (magnitude(source.row_stride) < magnitude(source.col_stride) && source.rows > 1) {
    // NOTE: elements of 8 bytes have no kernel of whole units.
    constexpr bool kUnits = sizeof(T) <= 4;
    const bool units = kUnits && source.row_stride == 1 && source.col_stride > 0;
    const int64_t tile_rows = units ? TransposedTile<T>::kRows : kPackTileRows;
    const int64_t col_tiles = ceil_div(shape.ld * int64_t{sizeof(T)}, kPackTileBytes);
    const int64_t row_tiles = ceil_div(shape.out_rows, tile_rows);
    if (col_tiles > INT_MAX / row_tiles) return kTooLarge;
    status = launch_kernel(transposing_kernel<T>(units), dim3(unsigned(col_tiles * row_tiles)),
                           dim3(kPackThreads), 0, stream, context.overlap, data,
                           static_cast<T*>(out), shape, static_cast<int>(col_tiles));
  } else {
    constexpr int64_t kVector = 16 / sizeof(T);
    const int64_t blocks = ceil_div(shape.out_rows * (shape.ld / kVector), kPackThreads);
    if (blocks > INT_MAX) return kTooLarge;
    const bool contiguous = source.col_stride == 1 && source.row_stride >= 0;
    status = dispatch_bool(contiguous, [&]<bool kContiguous>(Tag<kContiguous>) {
      return launch_kernel(pack_rows_kernel<T, kContiguous>, dim3(unsigned(blocks)),
                           dim3(kPackThreads), 0, stream, context.overlap, data,
                           static_cast<T*>(out), shape);
    });
  }
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace

const char* unpack_rows(const PackSource& padded, void* out, const LaunchContext& context) {
  // checks
  if (padded.col_stride != 1 || reinterpret_cast<uintptr_t>(out) % 16 != 0) {
    return "unpack_rows: rows must be contiguous, and the output aligned to 16 bytes";
  }
  // empty early return
  if (padded.rows == 0 || padded.cols == 0) return nullptr;
  // launch
  using T = uint16_t;
  constexpr int64_t kVector = 16 / sizeof(T);
  const int64_t vectors = ceil_div(padded.rows * padded.cols, kVector);
  const int64_t blocks = ceil_div(vectors, kPackThreads);
  if (blocks > INT_MAX) return kTooLarge;
  const cudaError_t status =
      launch_kernel(unpack_rows_kernel<T>, dim3(unsigned(blocks)), dim3(kPackThreads), 0,
                    static_cast<cudaStream_t>(context.stream), context.overlap,
                    static_cast<const T*>(padded.data), static_cast<T*>(out), padded.rows,
                    padded.cols, padded.row_stride);
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

const char* pack_operand(const PackSource& source, int64_t element_bytes, void* out,
                         int64_t out_rows, int64_t ld, const LaunchContext& context) {
  // checks
  if (out_rows < source.rows || ld < source.cols) return "pack_operand: the buffer is too small";
  if (ld * element_bytes % 16 != 0 || reinterpret_cast<uintptr_t>(out) % 16 != 0) {
    return "pack_operand: the buffer must be aligned to 16 bytes";
  }
  // empty early return
  if (out_rows == 0 || ld == 0) return nullptr;
  // launch
  const PackShape shape = {source.rows,       source.cols, source.row_stride,
                           source.col_stride, out_rows,    ld};
  switch (element_bytes) {
    case 2: return launch<uint16_t>(source, shape, out, context);
    case 4: return launch<uint32_t>(source, shape, out, context);
    case 8: return launch<uint64_t>(source, shape, out, context);
    default: return "pack_operand: elements must have 2, 4 or 8 bytes";
  }
}

}  // namespace fusedops
