#include "csrc/common/host/image_conv.h"

#include "csrc/common/int_math.h"

namespace fusedops::image_conv {
namespace {

RunFn g_kernels;  // NOTE: zero-initialised before any dynamic initialiser runs.

bool takes(const Call& c, const DeviceFacts& facts) {
  const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  const bool hopper = facts.capability / 10 == 9 && facts.code_version >= 90;
  const bool is_half = c.dtype == DType::kFloat16 || c.dtype == DType::kBFloat16;
  constexpr int64_t kMost = int64_t{1} << 24;
  const auto tiles = [](int64_t extent) { return ceil_div(extent, int64_t{8}); };
  return kTakesImages && hopper && is_half && c.channels % kColumns == 0 &&
         c.channels <= kMostChannels && c.outputs % 8 == 0 && c.h < kMost && c.w < kMost &&
         c.outputs <= kColumns * facts.sm_count && c.images < kMost &&
         c.images * tiles(c.h) * tiles(c.w) < int64_t{1} << 30 && aligned(c.x) &&
         aligned(c.weight) && aligned(c.y);
}

}  // namespace

bool register_kernels(RunFn run) {
  g_kernels = run;
  return true;
}

bool run_image_conv(const char* op, const Call& call, const LaunchScope& scope) {
  if (g_kernels == nullptr || !takes(call, scope.facts())) return false;
  const char* const failure = g_kernels(call, scope.context());
  FUSEDOPS_CHECK(failure == nullptr, op, ": the launch failed: ", failure);
  return true;
}

}  // namespace fusedops::image_conv
