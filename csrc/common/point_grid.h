// The index over a batch of point clouds that k-NN and ball query search: the points of a cloud in
// the order of a Hilbert curve, cut into leaves of 32, with bounding boxes over every 32 leaves,
// over every 32 of those, and so on. Host and device, no torch.
//
// A uniform grid degenerates on clustered, planar or lidar-like clouds; this one follows the
// points: 21 bits a coordinate, so that a cluster a million times smaller than its cloud still gets
// leaves of its own. Where many points coincide, the smallest index in a box decides whether it can
// still improve an answer, so ties never make a search visit all of them.
//
// Every cloud has room of its own on every level: group_base() says where, and needs no sums.
#pragma once

#include <cstdint>

#include "csrc/common/cloud.h"

namespace fusedops {

inline constexpr int kGroupBits = 5;
inline constexpr int kGroup = 1 << kGroupBits;  // points a leaf, boxes a box
inline constexpr int kMaxGridLevels = 7;        // 32^7 points
inline constexpr int kMaxGridDim = 3;
inline constexpr int kMaxCodeBits = 21;  // of a coordinate

// x, y, z and the index in its cloud, in the bits of w. A slot without a point holds NaN.
template <class T>
struct alignas(4 * sizeof(T)) GridPoint {
  T x, y, z, w;
};

// Both corners; min_index of all points inside in the bits of low.w.
template <class T>
struct GridBox {
  GridPoint<T> low, high;
};

// What a cloud's coordinates were scaled by. double, so that 21 bits survive any offset.
struct GridFrame {
  double low[3];
  double scale;  // to [0, 2^bits)
};

struct GridShape {
  int64_t rows = 0;    // of the points tensor
  int64_t clouds = 0;  // B
  int levels = 1;      // of boxes; the last has at most 32 a cloud
  int code_bits = 0;   // of one coordinate in a key
  int key_bits = 0;    // cloud and code

  FUSEDOPS_HOST_DEVICE int64_t groups(int level) const {
    return (rows >> (kGroupBits * (level + 1))) + clouds;
  }
  FUSEDOPS_HOST_DEVICE int64_t first_box(int level) const {
    int64_t first = 0;
    for (int i = 0; i < level; ++i) first += groups(i);
    return first;
  }
};

// Where cloud b's groups start on a level, counted in groups of that level.
FUSEDOPS_HOST_DEVICE int64_t group_base(int64_t first_row, int64_t b, int level) {
  return (first_row >> (kGroupBits * (level + 1))) + b;
}

FUSEDOPS_HOST_DEVICE int64_t num_groups(int64_t length, int level) {
  return (length + (int64_t{1} << (kGroupBits * (level + 1))) - 1) >> (kGroupBits * (level + 1));
}

// The lowest level on which a cloud has at most 32 boxes.
FUSEDOPS_HOST_DEVICE int top_level(int64_t length) {
  int level = 0;
  while (num_groups(length, level) > kGroup) ++level;
  return level;
}

// The index as one tensor of bytes.
template <class T>
struct GridView {
  GridShape shape;
  uint32_t* order = nullptr;       // (rows,) rows in curve order; a cloud keeps its place
  GridFrame* frames = nullptr;     // (B,)
  GridPoint<T>* points = nullptr;  // (groups(0), 32)
  GridBox<T>* boxes = nullptr;     // every level's groups(level)
};

inline GridShape grid_shape(const Clouds& clouds) {
  GridShape shape;
  shape.rows = clouds.num_rows();
  shape.clouds = clouds.count;
  shape.levels = top_level(clouds.capacity) + 1;
  int cloud_bits = 0;
  while ((int64_t{1} << cloud_bits) < clouds.count) ++cloud_bits;
  shape.code_bits = (64 - cloud_bits) / 3 < kMaxCodeBits ? (64 - cloud_bits) / 3 : kMaxCodeBits;
  shape.key_bits = cloud_bits + 3 * shape.code_bits;
  return shape;
}

inline constexpr int64_t kGridAlign = 256;

// Lays the arrays out from `base` on (null: only measures); returns the bytes.
template <class T>
int64_t grid_layout(const GridShape& shape, char* base, GridView<T>* view) {
  int64_t at = 0;
  const auto take = [&](int64_t bytes) {
    char* start = base + at;
    at += (bytes + kGridAlign - 1) / kGridAlign * kGridAlign;
    return start;
  };
  view->shape = shape;
  view->frames = reinterpret_cast<GridFrame*>(take(shape.clouds * int64_t{sizeof(GridFrame)}));
  view->order = reinterpret_cast<uint32_t*>(take(shape.rows * 4));
  view->points = reinterpret_cast<GridPoint<T>*>(
      take(shape.groups(0) * kGroup * int64_t{sizeof(GridPoint<T>)}));
  view->boxes = reinterpret_cast<GridBox<T>*>(
      take(shape.first_box(shape.levels) * int64_t{sizeof(GridBox<T>)}));
  return at;
}

// Position of a cell on the Hilbert curve of `bits` bits a coordinate (Skilling, "Programming the
// Hilbert curve", 2004): turn coordinates into the transposed curve index, then interleave.
FUSEDOPS_HOST_DEVICE uint64_t hilbert_code(uint32_t x, uint32_t y, uint32_t z, int bits) {
  uint32_t axis[3] = {x, y, z};
  for (uint32_t q = 1u << (bits - 1); q > 1; q >>= 1) {
    const uint32_t p = q - 1;
    for (int i = 0; i < 3; ++i) {
      if (axis[i] & q) {
        axis[0] ^= p;
      } else {
        const uint32_t t = (axis[0] ^ axis[i]) & p;
        axis[0] ^= t;
        axis[i] ^= t;
      }
    }
  }
  axis[1] ^= axis[0];
  axis[2] ^= axis[1];
  uint32_t t = 0;
  for (uint32_t q = 1u << (bits - 1); q > 1; q >>= 1) {
    if (axis[2] & q) t ^= q - 1;
  }
  uint64_t code = 0;
  for (int bit = bits - 1; bit >= 0; --bit) {
    for (int i = 0; i < 3; ++i) code = code << 1 | ((axis[i] ^ t) >> bit & 1);
  }
  return code;
}

// One coordinate's cell. NaN and what lies outside goes to the nearest border.
FUSEDOPS_HOST_DEVICE uint32_t grid_cell(double x, double low, double scale, int bits) {
  const double last = static_cast<double>((1u << bits) - 1);
  const double cell = (x - low) * scale;
  return static_cast<uint32_t>(cell >= 0 ? (cell < last ? cell : last) : 0);
}

}  // namespace fusedops
