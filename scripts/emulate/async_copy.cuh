// csrc/common/device/async_copy.cuh for a CPU: copies are made when they are waited for. Places of
// shared memory are distances from a variable of the library.
#pragma once

#include "emulated.h"

namespace fusedops {

inline char shared_origin;

inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const char*>(pointer) - &shared_origin);
}
inline void copy_async(uint32_t to, const void* from) {
  emulated::copy_later(&shared_origin + static_cast<int32_t>(to), from);
}
template <int kBytes>
void copy_async_cached(uint32_t to, const void* from) {
  static_assert(kBytes == 16);
  copy_async(to, from);
}
inline void commit_copies() { emulated::commit_copies(); }
template <int kPending = 0>
void wait_for_copies() {
  emulated::wait_for_copies(kPending);
}
inline void wait_for_all_copies() { emulated::wait_for_copies(); }

}  // namespace fusedops
