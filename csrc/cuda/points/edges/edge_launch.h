// Host face of the edge MLP's kernels: one source a dtype, as they take long to compile.
#pragma once

#include <cuda_runtime_api.h>

#include "csrc/cuda/points/edges/edge_arguments.h"

namespace fusedops {

// What an edge MLP needs to know of its device.
struct EdgeDevice {
  int sm_count, shared_memory;
  cudaStream_t stream;
};

// What a forward pass writes.
enum class EdgeForwardMode { kInfer, kPool, kPoolAndSums, kSums };

// Calls fn<kPool, kWhich, kSums> of a mode: whether it takes maxima, their places, and sums.
template <class Fn>
auto with_forward_mode(EdgeForwardMode mode, Fn&& fn) {
  switch (mode) {
    case EdgeForwardMode::kInfer: return fn.template operator()<true, false, false>();
    case EdgeForwardMode::kPool: return fn.template operator()<true, true, false>();
    case EdgeForwardMode::kPoolAndSums: return fn.template operator()<true, true, true>();
    default: return fn.template operator()<false, false, true>();
  }
}

// Blocks of a pass along x, of which each writes its own sums; 0 where its layers do not fit into
// shared memory, -1 on an error of the runtime.
template <class T>
int edge_forward_blocks(const EdgeForward<T>& a, EdgeForwardMode mode, const EdgeDevice& device);
template <class T>
int edge_backward_blocks(const EdgeBackward<T>& a, EdgePass pass, const EdgeDevice& device);

template <class T>
void launch_edge_forward(const EdgeForward<T>& a, EdgeForwardMode mode, int blocks,
                         const EdgeDevice& device);
template <class T>
void launch_edge_backward(const EdgeBackward<T>& a, EdgePass pass, int blocks,
                          const EdgeDevice& device);

}  // namespace fusedops
