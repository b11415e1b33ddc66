// The kernels of the edge MLP that multiply by WGMMA. Builds without code for sm_90a have none.
#pragma once

#include "csrc/cuda/points/edges/edge_launch.h"

namespace fusedops {

// Like edge_forward_blocks and launch_edge_forward; blocks() gives 0 also where there is no kernel.
template <class T>
struct EdgeForwardKernels {
  int (*blocks)(const EdgeForward<T>&, EdgeForwardMode, const EdgeDevice&);
  void (*launch)(const EdgeForward<T>&, EdgeForwardMode, int blocks, const EdgeDevice&);
};

// Likewise backward.
template <class T>
struct EdgeBackwardKernels {
  int (*blocks)(const EdgeBackward<T>&, EdgePass, const EdgeDevice&);
  void (*launch)(const EdgeBackward<T>&, EdgePass, int blocks, const EdgeDevice&);
};

// What csrc/cuda/points/edge_wgmma registers.
template <class T>
inline EdgeForwardKernels<T> edge_wgmma_forward{};
template <class T>
inline EdgeForwardKernels<T> edge_wgmma_infer{};  // of kEdgeShapes
template <class T>
inline EdgeBackwardKernels<T> edge_wgmma_backward{};

}  // namespace fusedops
