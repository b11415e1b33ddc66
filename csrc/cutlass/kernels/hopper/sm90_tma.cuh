// Tensor maps for the bulk copy engine (TMA), and the copies that the sm_90a kernels make with
// them.
#pragma once

#include <cuda.h>

#include <cstdint>

#include <cute/arch/copy_sm90_desc.hpp>
#include <cute/arch/copy_sm90_tma.hpp>

#include "csrc/common/host/driver_entry.h"
#include "csrc/common/int_math.h"

namespace fusedops::sm90 {

// Every box is rows of 128 bytes, stored in shared memory with the 128-byte swizzle: the 16-byte
// unit u of row r lies at unit u ^ (r % 8).
inline constexpr int kBoxRowBytes = 128;

// A row-major (outer, rows, columns) tensor; two-dimensional where outer is 0.
struct TmaTensor {
  const void* data = nullptr;
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  int element_bytes = 2;
  int64_t columns = 0, rows = 0, outer = 0;
  int64_t row_stride = 0, outer_stride = 0;  // elements
};

// The map of boxes of `box_rows` rows of 128 bytes. Returns null, or why the driver refuses.
inline const char* encode_tensor_map(const TmaTensor& t, int box_rows, CUtensorMap* map) {
  static const auto encode =
      driver_entry<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  if (encode == nullptr) return "the driver has no cuTensorMapEncodeTiled";
  const auto bytes = [&](int64_t elements) { return cuuint64_t(elements * t.element_bytes); };
  const cuuint64_t sizes[3] = {cuuint64_t(t.columns), cuuint64_t(t.rows), cuuint64_t(t.outer)};
  // The driver wants legal strides also where an extent of 1 never uses them.
  const auto legal = [](int64_t stride, int64_t extent) {
    return extent > 1 ? stride : round_up(stride, 8);
  };
  const cuuint64_t strides[2] = {bytes(legal(t.row_stride, t.rows)),
                                 bytes(legal(t.outer_stride, t.outer))};
  const cuuint32_t box[3] = {cuuint32_t(kBoxRowBytes / t.element_bytes), cuuint32_t(box_rows), 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult status =
      encode(map, t.type, t.outer > 0 ? 3 : 2, const_cast<void*>(t.data), sizes, strides, box,
             steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return status == CUDA_SUCCESS ? nullptr : "the driver refuses a tensor map";
}

// Encodes the map of what Staging stages.
template <class Staging>
const char* encode_panel_map(const TmaTensor& t, CUtensorMap* map) {
  static_assert(sizeof(Staging::Shared::staging[0]) == Staging::kPanelRows * kBoxRowBytes);
  return encode_tensor_map(t, Staging::kPanelRows, map);
}

// A box at (column, row) into shared memory of this CTA, or of both CTAs of a pair.
template <bool kMulticast>
__device__ __forceinline__ void load_box(const CUtensorMap& map, uint64_t* barrier, void* to,
                                         int column, int row) {
  constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
  if constexpr (kMulticast) {
    cute::SM90_TMA_LOAD_MULTICAST_2D::copy(&map, barrier, uint16_t{0b11}, kHint, to, column, row);
  } else {
    cute::SM90_TMA_LOAD_2D::copy(&map, barrier, kHint, to, column, row);
  }
}

}  // namespace fusedops::sm90
