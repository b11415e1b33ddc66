// The WGMMA kernels of the edge MLP's inference for __nv_bfloat16.
#include "csrc/cuda/points/edge_wgmma/edge_wgmma_infer.cuh"
#include "csrc/cuda/points/edges/edge_wgmma.h"

namespace fusedops {
namespace {

const bool registered = [] {
  edge_wgmma_infer<__nv_bfloat16> = {&edge_infer_blocks<__nv_bfloat16>,
                                     &launch_edge_infer<__nv_bfloat16>};
  return true;
}();

}  // namespace
}  // namespace fusedops
