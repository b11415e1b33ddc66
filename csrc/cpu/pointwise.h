// Elementwise passes over contiguous tensors, split over torch's threads.
#pragma once

#include <torch/csrc/stable/ops.h>

#include "csrc/cpu/host_types.h"

namespace fusedops::cpu {

inline constexpr int64_t kGrain = 32768;  // elements that are worth a thread, as in ATen

template <DType D>
const Storage<D>* data(const torch::stable::Tensor& tensor) {
  return static_cast<const Storage<D>*>(tensor.const_data_ptr());
}
template <DType D>
Storage<D>* mutable_data(const torch::stable::Tensor& tensor) {
  return static_cast<Storage<D>*>(tensor.mutable_data_ptr());
}

// out[i] = fn(in[i]), computed in Compute.
template <typename Compute, typename T, typename Fn>
void map(const T* in, T* out, int64_t count, Fn fn) {
  torch::stable::parallel_for(0, count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      out[i] = static_cast<T>(fn(static_cast<Compute>(in[i])));
    }
  });
}

// out[i] = fn(a[i], b[i])
template <typename Compute, typename T, typename Fn>
void map(const T* a, const T* b, T* out, int64_t count, Fn fn) {
  torch::stable::parallel_for(0, count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      out[i] = static_cast<T>(fn(static_cast<Compute>(a[i]), static_cast<Compute>(b[i])));
    }
  });
}

}  // namespace fusedops::cpu
