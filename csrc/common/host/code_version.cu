#include <cuda_runtime_api.h>

#include "csrc/common/checks/tensor_check.h"
#include "csrc/common/host/code_version.h"

namespace fusedops {
namespace {

// Does nothing: it is asked for its attributes, which all kernels of generic files share.
__global__ void code_version_kernel() {}

}  // namespace

int generic_code_version() {
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, code_version_kernel);
  cudaGetLastError();
  // There is code, which the GPU has no memory for now: nothing to be remembered.
  FUSEDOPS_CHECK(error != cudaErrorMemoryAllocation,
                 "device_facts: CUDA error: ", cudaGetErrorString(error));
  return error == cudaSuccess ? attributes.ptxVersion : 0;
}

}  // namespace fusedops
