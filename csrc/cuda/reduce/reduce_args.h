// What every reduction kernel is given: plain structs, shared by the host and the device.
#pragma once

#include "csrc/cuda/reduce/reduce_plan.h"

namespace fusedops {

// Run-time options. keep and flip act on the bits of elements, x -> (x & keep) ^ flip: 8 bytes of
// elements at a time, so that a mask repeats for narrower ones.
struct ReduceOptions {
  uint64_t keep = ~uint64_t{0};  // without the sign bits: absolute values
  uint64_t flip = 0;     // of the sign bits (all bits of integers): the largest is the smallest
  double scale = 1;      // of the result
  bool root = false;     // square root of the result
  bool nonzero = false;  // prod: zeros count as ones
  int64_t total = 0;     // count: narrow results ask for count >= total
  bool wide = false;     // results in the compute type
};

struct ReduceArgs {
  const void* x = nullptr;
  void* out = nullptr;      // [outputs]
  void* second = nullptr;   // [outputs], of the reductions that make two results
  void* partial = nullptr;  // [parts, outputs] accumulators, when parts > 1
  ReducePlan plan;
  ReduceOptions options;
};

}  // namespace fusedops
