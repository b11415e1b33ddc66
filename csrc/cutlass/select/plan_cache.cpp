#include "csrc/cutlass/select/plan_cache.h"

#include <array>

#include "csrc/cutlass/configs/sm80_configs.h"
#include "csrc/cutlass/select/families.h"
#include "csrc/cutlass/select/operands.h"
#include "csrc/cutlass/select/tuned_plans.h"

namespace fusedops {
namespace {

// All that select_gemm reads. Addresses and leading dimensions matter through alignment only.
struct Key {
  int64_t m = -1, n = 0, k = 0;
  uint64_t traits = 0;
  int capability = 0, sm_count = 0;
  bool operator==(const Key&) const = default;
};

Key key_of(const GemmProblem& p, const DeviceModel& device) {
  uint64_t traits = static_cast<uint64_t>(p.dtype);
  const auto append = [&traits](uint64_t value) { traits = traits * 16 + value; };
  append(static_cast<uint64_t>(p.math));
  append(static_cast<uint64_t>(p.epilogue));
  append(static_cast<uint64_t>(p.a.major));
  append(static_cast<uint64_t>(p.b.major));
  append(p.accumulate);
  append(static_cast<uint64_t>(p.activation));
  append(tma_refusal(p) == nullptr ? 2 : sm90_refusal(p) == nullptr);
  append(p.ldd != p.n);
  append(p.aux != nullptr);
  append(sm80_readable(p, 16) ? 2 : sm80_readable(p, 4));
  append(begins_aligned(p, p.a) * 2 + begins_aligned(p, p.b));
  return {p.m, p.n, p.k, traits, device.capability, device.sm_count};
}

size_t slot_of(const Key& key, size_t slots) {
  uint64_t hash = key.traits;
  for (int64_t value : {key.m, key.n, key.k}) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 29;
  }
  return hash % slots;
}

}  // namespace

GemmPlan select_gemm_cached(const GemmProblem& problem, const DeviceModel& device) {
  struct Entry {
    Key key;
    GemmPlan plan;
  };
  static thread_local std::array<Entry, 256> cache;
  static thread_local uint64_t generation = 0;
  if (const uint64_t current = tuned_generation(); generation != current) {
    cache.fill({});
    generation = current;
  }
  const Key key = key_of(problem, device);
  Entry& entry = cache[slot_of(key, cache.size())];
  if (!(entry.key == key)) entry = {key, choose_gemm(problem, device)};
  return entry.plan;
}

}  // namespace fusedops
