// Which kernel a pass takes, by its widths.
#pragma once

#include "csrc/common/dispatch.h"
#include "csrc/cuda/points/edges/edge_backward.cuh"
#include "csrc/cuda/points/edges/edge_launch.h"

namespace fusedops {

using EdgeWidths = Choices<64, 128>;

inline int edge_bucket(int width) { return width <= 64 ? 64 : 128; }

// The widest of the first `layers` layers.
template <class T>
int widest_layer(const EdgeProblem<T>& p, int layers) {
  int widest = 0;
  for (int l = 0; l < layers; ++l) widest = std::max(widest, p.width[l]);
  return widest;
}

// Calls fn with the kernel, its bytes of shared memory and its slices.
template <class T, class Fn>
auto with_forward_kernel(const EdgeForward<T>& a, EdgeForwardMode mode, Fn&& fn) {
  const EdgeProblem<T>& p = a.problem;
  const int last = p.layers - 1, width = p.width[last];
  const int hidden = last == 0 ? 0 : edge_bucket(widest_layer(p, last));
  return dispatch(Choices<0, 64, 128>{}, hidden, [&]<int kHidden>(Tag<kHidden>) {
    return dispatch(EdgeWidths{}, edge_bucket(width), [&]<int kLast>(Tag<kLast>) {
      const int bytes = static_cast<int>(sizeof(EdgeStage)) * kEdgeWarps +
                        edge_layer_bytes(p, p.layers, std::min(kLast, width)) +
                        edge_gathered_bytes(p, last == 0 ? std::min(kLast, width) : p.width[0]);
      const int slices = static_cast<int>(ceil_div(width, kLast));
      switch (mode) {
        case EdgeForwardMode::kInfer:
          return fn(Tag<&edge_forward_kernel<T, kHidden, kLast, true, false, false>>{}, bytes,
                    slices);
        case EdgeForwardMode::kPool:
          return fn(Tag<&edge_forward_kernel<T, kHidden, kLast, true, true, false>>{}, bytes,
                    slices);
        case EdgeForwardMode::kPoolAndSums:
          return fn(Tag<&edge_forward_kernel<T, kHidden, kLast, true, true, true>>{}, bytes,
                    slices);
        default:
          return fn(Tag<&edge_forward_kernel<T, kHidden, kLast, false, false, true>>{}, bytes,
                    slices);
      }
    });
  });
}

template <class T, class Fn>
auto with_backward_kernel(const EdgeBackward<T>& a, EdgePass pass, Fn&& fn) {
  const EdgeProblem<T>& p = a.problem;
  const int last = p.layers - 1, width = p.width[last];
  const int hidden = edge_bucket(widest_layer(p, last));
  return dispatch(EdgeWidths{}, hidden, [&]<int kHidden>(Tag<kHidden>) {
    const auto call = [&]<EdgePass kPass, int kOut>() {
      const int rows = kPass == EdgePass::kWeights ? std::min(kOut, width) : width;
      const int bytes =
          EdgeTiles<kHidden, kOut, kPass>::kBytes +
                        edge_layer_bytes(p, p.layers, rows) + edge_gathered_bytes(p, p.width[0]);
      const int slices = kPass == EdgePass::kWeights ? static_cast<int>(ceil_div(width, kOut)) : 1;
      return fn(Tag<&edge_backward_kernel<T, kHidden, kOut, kPass>>{}, bytes, slices);
    };
    if (pass == EdgePass::kData) return call.template operator()<EdgePass::kData, 64>();
    if (pass == EdgePass::kWeights) return call.template operator()<EdgePass::kWeights, 128>();
    return dispatch(EdgeWidths{}, edge_bucket(width), [&]<int kOut>(Tag<kOut>) {
      return call.template operator()<EdgePass::kBoth, kOut>();
    });
  });
}

template <auto kKernel>
int edge_blocks(int bytes, int slices, int64_t groups, const EdgeDevice& device) {
  if (bytes > device.shared_memory) return 0;
  return edge_grid<kKernel>(bytes, device.sm_count, groups, slices, kEdgeWarps);
}

template <class T>
int edge_forward_blocks(const EdgeForward<T>& a, EdgeForwardMode mode, const EdgeDevice& device) {
  return with_forward_kernel(a, mode, [&]<auto kKernel>(Tag<kKernel>, int bytes, int slices) {
    return edge_blocks<kKernel>(bytes, slices, a.problem.groups, device);
  });
}

template <class T>
int edge_backward_blocks(const EdgeBackward<T>& a, EdgePass pass, const EdgeDevice& device) {
  return with_backward_kernel(a, pass, [&]<auto kKernel>(Tag<kKernel>, int bytes, int slices) {
    return edge_blocks<kKernel>(bytes, slices, a.problem.groups, device);
  });
}

template <class T>
void launch_edge_forward(const EdgeForward<T>& a, EdgeForwardMode mode, int blocks,
                         const EdgeDevice& device) {
  with_forward_kernel(a, mode, [&]<auto kKernel>(Tag<kKernel>, int bytes, int slices) {
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(slices));
    kKernel<<<grid, kEdgeThreads, bytes, device.stream>>>(a);
  });
}

template <class T>
void launch_edge_backward(const EdgeBackward<T>& a, EdgePass pass, int blocks,
                          const EdgeDevice& device) {
  with_backward_kernel(a, pass, [&]<auto kKernel>(Tag<kKernel>, int bytes, int slices) {
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(slices));
    kKernel<<<grid, kEdgeThreads, bytes, device.stream>>>(a);
  });
}

#define FUSEDOPS_EDGE_LAUNCHES(T)                                                           \
  template int edge_forward_blocks(const EdgeForward<T>&, EdgeForwardMode, const EdgeDevice&); \
  template int edge_backward_blocks(const EdgeBackward<T>&, EdgePass, const EdgeDevice&);   \
  template void launch_edge_forward(const EdgeForward<T>&, EdgeForwardMode, int,            \
                                    const EdgeDevice&);                                     \
  template void launch_edge_backward(const EdgeBackward<T>&, EdgePass, int, const EdgeDevice&);

}  // namespace fusedops
