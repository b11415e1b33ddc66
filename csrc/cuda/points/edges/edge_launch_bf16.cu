// The kernels of the edge MLP for __nv_bfloat16.
#include "csrc/cuda/points/edges/edge_launch.cuh"

namespace fusedops {

FUSEDOPS_EDGE_LAUNCHES(__nv_bfloat16)

}  // namespace fusedops
