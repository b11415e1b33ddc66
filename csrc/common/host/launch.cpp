#include "csrc/common/host/launch.h"

#include <cuda.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <array>
#include <mutex>

#include "csrc/common/host/code_version.h"
#include "csrc/common/host/driver_entry.h"

// NOTE: this shim lives in libtorch_cuda.so only. Weak, so that the module also loads and runs its
// CPU ops on a torch without CUDA, where nobody can reach the code that calls it.
#pragma weak aoti_torch_get_current_cuda_stream

namespace fusedops {
namespace {

constexpr int kMaxDevices = 64;
constexpr int kOldestCapability = 80;

void check_cuda(const char* what, cudaError_t error) {
  FUSEDOPS_CHECK(error == cudaSuccess, what, ": CUDA error: ", cudaGetErrorString(error));
}

// Makes the device current; a context of that device which is current already stays: a green one
// would lose its share of the SMs to the primary one.
void make_current(const char* op, int device) {
  static const auto get_context = driver_entry<decltype(cuCtxGetCurrent)>("cuCtxGetCurrent");
  static const auto get_device = driver_entry<decltype(cuCtxGetDevice)>("cuCtxGetDevice");
  CUcontext context = nullptr;
  CUdevice current = -1;
  const bool known = get_context && get_device && get_context(&context) == CUDA_SUCCESS &&
                     context != nullptr && get_device(&current) == CUDA_SUCCESS;
  if (!known || current != device) check_cuda(op, cudaSetDevice(device));
}

DeviceFacts query(int device) {
  const auto attribute = [device](cudaDeviceAttr name) {
    int value = 0;
    check_cuda("device_facts", cudaDeviceGetAttribute(&value, name, device));
    return value;
  };
  make_current("device_facts", device);
  return {.capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor) +
                        attribute(cudaDevAttrComputeCapabilityMinor),
          .code_version = generic_code_version(),
          .sm_count = attribute(cudaDevAttrMultiProcessorCount),
          .shared_memory_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
          .l2_bytes = attribute(cudaDevAttrL2CacheSize)};
}

const DeviceFacts& supported_facts(const char* op, int device) {
  const DeviceFacts& facts = device_facts(device);
  FUSEDOPS_CHECK(facts.capability >= kOldestCapability, op, ": cuda:", device,
                 " has compute capability ", facts.capability / 10, ".", facts.capability % 10,
                 "; fusedops needs 8.0 (Ampere) or newer");
  FUSEDOPS_CHECK(facts.code_version > 0, op,
                 ": this build of fusedops has no code for cuda:", device, " (compute capability ",
                 facts.capability / 10, ".", facts.capability % 10,
                 "); rebuild with TORCH_CUDA_ARCH_LIST naming it (python -m fusedops info)");
  return facts;
}

}  // namespace

const DeviceFacts& device_facts(int device) {
  static std::array<std::once_flag, kMaxDevices> once;
  static std::array<DeviceFacts, kMaxDevices> facts;
  FUSEDOPS_CHECK(device >= 0 && device < kMaxDevices, "device_facts: device must be from 0 to ",
                 kMaxDevices - 1, "; got ", device);
  std::call_once(once[device], [device] { facts[device] = query(device); });
  return facts[device];
}

cudaStream_t current_stream(int device) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
  return static_cast<cudaStream_t>(stream);
}

void check_launch(const char* op) {
  const cudaError_t error = cudaGetLastError();
  FUSEDOPS_CHECK(error != cudaErrorNoKernelImageForDevice, op,
                 ": this build of fusedops has no code for this GPU; rebuild with "
                 "TORCH_CUDA_ARCH_LIST naming it (python -m fusedops info shows both)");
  check_cuda(op, error);
}

Tensor workspace(int64_t bytes, const LaunchScope& scope) {
  const int64_t stride = 1;
  AtenTensorHandle out = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, &bytes, &stride, aoti_torch_dtype_uint8(),
                                                  aoti_torch_device_type_cuda(), scope.device(),
                                                  &out));
  return Tensor(out);
}

LaunchScope::LaunchScope(const char* op, const Tensor& tensor)
    : device_(tensor.get_device_index()),
      guard_(device_),
      facts_(supported_facts(op, device_)),
      stream_(current_stream(device_)) {
  // NOTE: the runtime is linked statically, so torch's guard has set the device of torch's copy;
  // ours follows the driver's current context, and this makes it the right one in every thread.
  make_current(op, device_);
  cudaGetLastError();  // what an earlier, failed launch left is not this op's
}

}  // namespace fusedops
