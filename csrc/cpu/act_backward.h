// dz = dy * act'(saved) and dbias = sum of dz over rows, on contiguous (M, N) matrices.
#pragma once

#include <optional>

#include "common/linear_check.h"

namespace fusedops::cpu {

// dz and dbias are skipped where null. dbias is (N,) in dy's dtype or fp32; its sums are formed in
// fp64 from unrounded dz, in an order that does not depend on the number of threads.
void act_backward(const Tensor& dy, const std::optional<Tensor>& saved, const LinearShape& shape,
                  const Tensor* dz, const Tensor* dbias);

}  // namespace fusedops::cpu
