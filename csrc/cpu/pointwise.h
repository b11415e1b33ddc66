// Elementwise passes over contiguous tensors, split over torch's threads.
#pragma once

#include <torch/csrc/stable/ops.h>

namespace fusedops::cpu {

inline constexpr int64_t kGrain =
    16384;  // elements a thread takes at least; at::internal's is 32768

// out[i] = fn(in[i]), computed in Compute; out may be in.
template <typename Compute, typename T, typename Fn>
void map(const T* in, T* out, int64_t count, Fn fn) {
  torch::stable::parallel_for(0, count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      out[i] = static_cast<T>(fn(static_cast<Compute>(in[i])));
    }
  });
}

}  // namespace fusedops::cpu
