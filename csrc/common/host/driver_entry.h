// Functions of the CUDA driver, which this library does not link.
#pragma once

#include <cuda_runtime_api.h>

namespace fusedops {

// As the driver of CUDA 12.0 had it; null where this one has none.
template <class Function>
Function* driver_entry(const char* name) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found;
  cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found);
  return reinterpret_cast<Function*>(entry);
}

}  // namespace fusedops
