// Which kernel a pass takes, by its widths.
#pragma once

#include "csrc/common/dispatch.h"
#include "csrc/cuda/points/edges/edge_backward.cuh"
#include "csrc/cuda/points/edges/edge_launch.h"

namespace fusedops {

using EdgeHidden = Choices<32, 64, 128>;

// Columns of the last layer that a block takes.
template <class T>
int edge_slice(const EdgeProblem<T>& p) {
  return std::min(p.width, kEdgeSlice);
}

// Calls fn with the kernel, its bytes of shared memory and its slices.
template <class T, class Fn>
auto with_forward_kernel(const EdgeForward<T>& a, EdgeForwardMode mode, Fn&& fn) {
  const EdgeProblem<T>& p = a.problem;
  const int hidden = p.layers > 1 ? p.hidden : 0;
  return dispatch(Choices<0, 32, 64, 128>{}, hidden, [&]<int kHidden>(Tag<kHidden>) {
    return dispatch(Choices<32, 64, 128>{}, edge_slice(p), [&]<int kLast>(Tag<kLast>) {
      const int bytes = static_cast<int>(sizeof(EdgeStage)) * kEdgeWarps + 4 * kEdgePivots +
                        edge_layer_bytes(p, kLast, kHidden ? kHidden : kLast);
      const int slices = p.width / kLast;
      return with_forward_mode(mode, [&]<bool kPool, bool kWhich, bool kSums>() {
        constexpr int kColumns = kPool && kLast < 64 ? 64 : kLast;  // 32 channels have sums alone
        return fn(Tag<&edge_forward_kernel<T, kHidden, kColumns, kPool, kWhich, kSums>>{}, bytes,
                  slices);
      });
    });
  });
}

template <class T, class Fn>
auto with_backward_kernel(const EdgeBackward<T>& a, EdgePass pass, Fn&& fn) {
  const EdgeProblem<T>& p = a.problem;
  return dispatch(EdgeHidden{}, p.hidden, [&]<int kHidden>(Tag<kHidden>) {
    const auto call = [&]<EdgePass kPass, int kOut>() {
      const int columns = kPass == EdgePass::kData ? p.width : kOut;
      const int bytes =
          EdgeTiles<T, kHidden, kOut, kPass>::kBytes + edge_layer_bytes(p, columns, kHidden);
      const int slices = kPass == EdgePass::kWeights ? p.width / kOut : 1;
      return fn(Tag<&edge_backward_kernel<T, kHidden, kOut, kPass>>{}, bytes, slices);
    };
    if (pass == EdgePass::kData) return call.template operator()<EdgePass::kData, 64>();
    return dispatch(Choices<32, 64, 128>{}, edge_slice(p), [&]<int kOut>(Tag<kOut>) {
      return pass == EdgePass::kWeights ? call.template operator()<EdgePass::kWeights, kOut>()
                                        : call.template operator()<EdgePass::kBoth, kOut>();
    });
  });
}

// work: what there is for a warp, groups or tiles.
template <auto kKernel>
int edge_blocks(int bytes, int slices, int64_t work, const EdgeDevice& device) {
  if (bytes > device.shared_memory) return 0;
  return edge_grid<kKernel>(bytes, device.sm_count, work, slices, kEdgeWarps);
}

template <class T>
int edge_forward_blocks(const EdgeForward<T>& a, EdgeForwardMode mode, const EdgeDevice& device) {
  const bool by_group = mode != EdgeForwardMode::kSums;
  const int64_t work = by_group ? int64_t{a.problem.groups} : most_tiles(a.problem);
  return with_forward_kernel(a, mode, [&]<auto kKernel>(Tag<kKernel>, int bytes, int slices) {
    return edge_blocks<kKernel>(bytes, slices, work, device);
  });
}

template <class T>
int edge_backward_blocks(const EdgeBackward<T>& a, EdgePass pass, const EdgeDevice& device) {
  return with_backward_kernel(a, pass, [&]<auto kKernel>(Tag<kKernel>, int bytes, int slices) {
    return edge_blocks<kKernel>(bytes, slices, most_tiles(a.problem), device);
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

#define FUSEDOPS_EDGE_LAUNCHES(T)                                                              \
  template int edge_forward_blocks(const EdgeForward<T>&, EdgeForwardMode, const EdgeDevice&); \
  template int edge_backward_blocks(const EdgeBackward<T>&, EdgePass, const EdgeDevice&);      \
  template void launch_edge_forward(const EdgeForward<T>&, EdgeForwardMode, int,               \
                                    const EdgeDevice&);                                        \
  template void launch_edge_backward(const EdgeBackward<T>&, EdgePass, int, const EdgeDevice&);

}  // namespace fusedops
