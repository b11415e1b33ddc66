// What the passes of an edge MLP read and write.
#pragma once

#include "csrc/cuda/points/edges/edge_problem.h"

namespace fusedops {

template <class T>
struct EdgeForward {
  EdgeProblem<T> problem;
  int channels;    // of the last layer, without padding
  T* out;          // [groups][channels]: act(scale y + shift) there, 0 for an empty group; or null
  float* best;     // [groups][channels]: max v, v = sign(scale) y; or null
  int16_t* which;  // [groups][channels]: the first neighbour that has it, -1 in an empty group
  float* sums;     // [grid.x][2 * width + 1]: means of v, squared distances, count; or null
};

template <class T>
struct EdgeBackward {
  EdgeProblem<T> problem;  // layers: l
  const int* winners;      // [groups][width] in the last layer, null below: a maximum's
                           // gradient (T, the lower half) and its neighbour
  const T* above;          // [groups][k][width], below the last layer
  const float4* dense;     // (A, B) of two channels of layer l; null without statistics
  const float* center;     // [hidden]: the centres of layer l - 1's sums, or null for 0
  T* below;                // [groups][k][hidden]: written where an edge counts; may be `above`
  float* below_sums;       // [grid.x][2][hidden]: of dz and of dz (y - center)
  float* weight_sums;      // [grid.x][width][hidden], or null
};

// What a pass does: both gradients, or one of them where a layer is too wide for both.
enum class EdgePass { kBoth, kData, kWeights };

}  // namespace fusedops
