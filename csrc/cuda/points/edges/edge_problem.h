// An MLP over the edges of groups: edge (i, k) joins group i and its neighbour j = idx[i, k],
//   y_1 = rows[j] + group_rows[i] + first_weight (points[j] - centers[i], features[j]),
//   y_l = W_l a_{l-1},  a_l = act(scale_l y_l + shift_l).
// Rows are the edges that count, group by group in the order of k: an entry that repeats its
// group's first one, as searches pad, is merged into that one's weight. All layers but the last
// have the same width, 32, 64 or 128, and the last has 64 or a multiple of 128: narrower ones are
// padded with zeros. Biases are part of the shifts.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_types.h>

#include <cstdint>

namespace fusedops {

inline constexpr int kEdgeSlice = 128;           // columns of the last layer that a block takes
inline constexpr int kEdgeMaxNeighbours = 2000;  // places are kept as 8 bits a lane
inline constexpr int kEdgeRows = 16;             // that a warp takes at a time

// Widths of three layers, for kernels of sm_90a: the only ones whose hidden layers may differ.
struct EdgeShape {
  int first, middle, last;

  friend constexpr bool operator==(const EdgeShape&, const EdgeShape&) = default;
};
// Those that inference has kernels of their own for, with ReLU.
inline constexpr EdgeShape kEdgeShapes[] = {{32, 32, 64},   {64, 64, 64},    {64, 64, 128},
                                            {64, 96, 128},  {128, 128, 128}, {128, 128, 256},
                                            {128, 208, 256}};
inline constexpr int kEdgeShapeCount = sizeof(kEdgeShapes) / sizeof(EdgeShape);
inline constexpr EdgeShape kEdgeTaper = {64, 128, 128};  // training as well

// What an edge multiplies by first_weight, its operand, is one or two planes of eight columns: the
// offset x y z rounded, what rounding left of x y z, features 8 and 9; then features 0 to 7.
inline constexpr int kEdgePlane = 8;
inline constexpr int kEdgeMostFeatures = 10;

// The scale of a hidden layer's padded channels, which no other channel has.
inline constexpr float kPaddingScale = -0.f;

template <class T>
struct EdgeProblem {
  // Channel 32 c + 8 b + 2 q + h of a row is at 32 c + 8 q + 2 b + h: a lane's share in one piece.
  const float* rows;        // [clouds * n][hidden] (width, of one layer), or null
  const float* group_rows;  // [groups][likewise], or null
  const T* first_weight;    // [planes][width of layer 1][kEdgePlane]
  const T* operands;        // [planes][edges][kEdgePlane], in the list's order
  int planes;               // 0, 1 or 2
  int64_t edges;            // room for rows
  const int4* list;         // of every row: point, group, k, weight (a float's bits)
  const int* ends;          // [groups]: where the group's rows end
  bool spaced;              // a group's rows begin at group * k; else where the last one's end
  const T* weights;         // W_2, W_3, ...: [width of l][hidden]
  const float4* affine;     // (scale, shift) of two channels, layer behind layer
  int groups, k, layers;
  int hidden;    // width of the first of several layers
  int middle;    // of the one before the last: `hidden` but in tapers, 0 for one
  int width;     // of the last
  float slope;   // of the activation below 0: 0 for ReLU, 1 for none
  bool is_relu;  // -Inf gives 0 then, not NaN

  __host__ __device__ int first_width() const { return layers > 1 ? hidden : width; }
  // Channels of all layers but the last. NOTE: at most three layers taper.
  __host__ __device__ int before_last() const {
    return layers > 1 ? (layers - 2) * hidden + middle : 0;
  }
};

}  // namespace fusedops
