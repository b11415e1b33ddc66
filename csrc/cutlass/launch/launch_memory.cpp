#include "csrc/cutlass/launch/launch_memory.h"

#include <atomic>
#include <random>

#include "csrc/cutlass/launch/gemm_launch.h"

namespace fusedops {
namespace {

// NOTE: flags and marks begin as whatever memory held, so that no launch has to clear them first.
// Random bits keep what other processes left there apart, a count what this one did; kernels reset
// all that they have set.
uint64_t next_mark() {
  static std::atomic<uint64_t> next{[] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }()};
  return next.fetch_add(0x9e3779b97f4a7c15ull, std::memory_order_relaxed);
}

}  // namespace

Tensor make_exchange_space(int64_t tile_elements, const LaunchScope& scope, ExchangeSpace& space) {
  const int64_t sum_bytes = tile_elements * scope.facts().sm_count * int64_t{sizeof(float)};
  const int64_t flag_bytes = 2 * scope.facts().sm_count * int64_t{sizeof(uint64_t)};
  const Tensor memory = workspace(sum_bytes + flag_bytes, scope);
  auto* data = static_cast<char*>(memory.mutable_data_ptr());
  space = {reinterpret_cast<float*>(data), reinterpret_cast<uint64_t*>(data + sum_bytes),
           next_mark()};
  return memory;
}

Tensor make_tile_counter(const LaunchScope& scope, ExchangeSpace& space) {
  const Tensor memory = workspace(2 * int64_t{sizeof(uint64_t)}, scope);
  space = {nullptr, static_cast<uint64_t*>(memory.mutable_data_ptr()), next_mark()};
  return memory;
}

}  // namespace fusedops
