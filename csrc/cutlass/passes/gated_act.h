// Host face of gated_act.cuh: raw pointers, sizes and a stream.
#pragma once

#include "csrc/cutlass/problem.h"

namespace fusedops {

// h = act(gate) * up, or act(gate) without up. Rows of gate and up may be strided.
struct GatedAct {
  DType dtype;
  Activation activation;
  int64_t rows, cols;
  const void* gate;  // (rows, cols)
  int64_t gate_stride;
  const void* up = nullptr;  // (rows, cols), or null
  int64_t up_stride = 0;
  void* h = nullptr;  // (rows, cols) contiguous
};

// Launches; returns null or the reason of the failure.
const char* gated_act(const GatedAct& problem, const LaunchContext& context);

// dgate = dh * up * act'(gate), dup = dh * act(gate), h = act(gate) * up, dbias = the sums of dgate
// and dup over rows. An output may be an input of the same strides.
struct GatedActBackward {
  DType dtype;
  Activation activation;
  int64_t rows, cols;
  const void* dh;    // (rows, cols) contiguous
  const void* gate;  // (rows, cols)
  int64_t gate_stride;
  const void* up;  // (rows, cols)
  int64_t up_stride;
  void* dgate;  // (rows, cols)
  int64_t dgate_stride;
  void* dup;  // (rows, cols)
  int64_t dup_stride;
  void* h = nullptr;        // (rows, cols) contiguous, or null
  void* dbias = nullptr;    // (2, cols), or null
  bool dbias_fp32 = false;  // dbias in fp32 instead of dtype
  void* partial = nullptr;  // workspace of gated_act_workspace() bytes, when dbias is wanted
};

int64_t gated_act_workspace(const GatedActBackward& problem, int sm_count);
const char* gated_act_backward(const GatedActBackward& problem, const LaunchContext& context);

}  // namespace fusedops
