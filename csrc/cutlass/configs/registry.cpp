#include "csrc/cutlass/configs/registry.h"

namespace fusedops {
namespace {

constexpr int kNumMathModes = 3;
constexpr int kNumMajors = 2;
constexpr int kTableSize = kNumFamilies * kMaxConfigs * kNumDTypes * kNumMathModes * kNumMajors *
                           kNumMajors * kNumEpilogues;

// NOTE: zero-initialised before any dynamic initialiser runs, so registration order does not
// matter.
GemmRunFn g_kernels[kTableSize];
int g_num_kernels;

int index_of(const KernelKey& key) {
  int index = static_cast<int>(key.family);
  index = index * kMaxConfigs + key.config;
  index = index * kNumDTypes + static_cast<int>(key.dtype);
  index = index * kNumMathModes + static_cast<int>(key.math);
  index = index * kNumMajors + static_cast<int>(key.a);
  index = index * kNumMajors + static_cast<int>(key.b);
  return index * kNumEpilogues + static_cast<int>(key.epilogue);
}

}  // namespace

bool register_kernel(const KernelKey& key, GemmRunFn run) {
  g_kernels[index_of(key)] = run;
  ++g_num_kernels;
  return true;
}

GemmRunFn find_kernel(const KernelKey& key) { return g_kernels[index_of(key)]; }

int num_registered_kernels() { return g_num_kernels; }

}  // namespace fusedops
