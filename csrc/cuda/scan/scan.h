// Host face of the scan kernels: raw pointers, sizes and a stream.
#pragma once

#include <cuda_runtime_api.h>

#include "csrc/common/checks/scan_check.h"

namespace fusedops {

struct Scan {
  Element element;
  ScanKind kind;
  ScanShape shape;
  const void* x;
  void* y;         // (outer, n, inner) contiguous
  int64_t* index;  // the same, kMax and kMin only
  bool exclusive = false, reverse = false;
  int sm_count;
  bool clusters;              // the code that runs knows clusters and overlapping launches
  void* workspace = nullptr;  // of scan_needs().workspace bytes
};

// What a scan takes, and its launch, which leaves its errors to cudaGetLastError.
struct ScanNeeds {
  int64_t workspace;  // bytes
  int64_t blocks;     // of the grid, where they grow with the tensor; else 0
};
ScanNeeds scan_needs(const Scan& scan);
void launch_scan(const Scan& scan, cudaStream_t stream);

// One file per kind (scan_sum.cu, ...): asks for what it needs or launches.
struct ScanCall {
  const Scan& scan;
  bool size_only;
  cudaStream_t stream = nullptr;
  ScanNeeds needs{};
};
void scan_sum(ScanCall& call);
void scan_prod(ScanCall& call);
void scan_max(ScanCall& call);
void scan_min(ScanCall& call);

}  // namespace fusedops
