// A vector of a norm as kernels of convolutions take it.
#pragma once

namespace fusedops {

// (N,), of the call's dtype or, wide, of float; null: absent.
struct NormVector {
  const void* data = nullptr;
  bool wide = false;
};

}  // namespace fusedops
