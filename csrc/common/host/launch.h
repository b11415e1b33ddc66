// Where a launch happens: device guard, current stream, device facts, launch check. For host code
// of CUDA builds.
#pragma once

#include <cuda_runtime_api.h>
#include <torch/csrc/stable/accelerator.h>

#include "csrc/common/checks/tensor_check.h"
#include "csrc/common/launch_context.h"

namespace fusedops {

struct DeviceFacts {
  int capability;    // 10 * major + minor
  int code_version;  // what its code was written for (PTX of 8.0: 80); 0: no code for it
  int sm_count;
  int shared_memory_per_block;  // bytes, with the opt-in
  int l2_bytes;
};

// Asked from the driver once per device.
const DeviceFacts& device_facts(int device);

cudaStream_t current_stream(int device);

// Throws what the last launch or configuration call left behind, named after the op.
void check_launch(const char* op);

// Makes the tensor's device current for the scope and says where to launch. An error for a GPU
// older than 8.0.
class LaunchScope {
 public:
  LaunchScope(const char* op, const Tensor& tensor);

  int device() const { return device_; }
  cudaStream_t stream() const { return stream_; }
  const DeviceFacts& facts() const { return facts_; }
  LaunchContext context() const {
    LaunchContext context;
    context.device = device_;
    context.sm_count = facts_.sm_count;
    context.overlap = facts_.code_version >= 90;
    context.stream = stream_;
    return context;
  }

 private:
  int device_;
  torch::stable::accelerator::DeviceGuard guard_;
  const DeviceFacts& facts_;
  cudaStream_t stream_;
};

// Memory on the scope's device, not initialised.
Tensor workspace(int64_t bytes, const LaunchScope& scope);

}  // namespace fusedops
