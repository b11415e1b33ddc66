// What a launcher is told about where it launches. Plain, for host code of every build.
#pragma once

namespace fusedops {

// Where a launch happens.
struct LaunchContext {
  int device = 0;
  int sm_count = 0;
  bool overlap = false;    // programmatic dependent launch (sm_90 and later)
  void* stream = nullptr;  // cudaStream_t
};

}  // namespace fusedops
