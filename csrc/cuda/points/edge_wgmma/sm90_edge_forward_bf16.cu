// The WGMMA kernels of the edge MLP's forward for __nv_bfloat16.
#include "csrc/cuda/points/edge_wgmma/edge_wgmma_forward.cuh"
#include "csrc/cuda/points/edges/edge_wgmma.h"

namespace fusedops {
namespace {

const bool registered = [] {
  edge_wgmma_forward<__nv_bfloat16> = {&edge_wgmma_blocks<__nv_bfloat16>,
                                       &launch_edge_wgmma<__nv_bfloat16>};
  return true;
}();

}  // namespace
}  // namespace fusedops
