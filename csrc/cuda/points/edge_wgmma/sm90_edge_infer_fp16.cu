// The WGMMA kernels of the edge MLP's inference for __half.
#include "csrc/cuda/points/edge_wgmma/edge_wgmma_infer.cuh"
#include "csrc/cuda/points/edges/edge_wgmma.h"

namespace fusedops {
namespace {

const bool registered = [] {
  edge_wgmma_infer<__half> = {&edge_infer_blocks<__half>, &launch_edge_infer<__half>};
  return true;
}();

}  // namespace
}  // namespace fusedops
