// The WGMMA kernels of the edge MLP's forward for __half.
#include "csrc/cuda/points/edge_wgmma/edge_wgmma_forward.cuh"
#include "csrc/cuda/points/edges/edge_wgmma.h"

namespace fusedops {
namespace {

const bool registered = [] {
  edge_wgmma_forward<__half> = {&edge_wgmma_blocks<__half>, &launch_edge_wgmma<__half>};
  return true;
}();

}  // namespace
}  // namespace fusedops
