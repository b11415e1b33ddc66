// The kernels of the edge MLP for __half.
#include "csrc/cuda/points/edges/edge_launch.cuh"

namespace fusedops {

FUSEDOPS_EDGE_LAUNCHES(__half)

}  // namespace fusedops
