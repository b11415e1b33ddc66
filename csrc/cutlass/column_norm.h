// A batch norm over the columns of a product, as kernels take it: its vectors as they are.
#pragma once

namespace fusedops {

// (N,), of the call's dtype or, wide, of float; null: absent.
struct NormVector {
  const void* data = nullptr;
  bool wide = false;
};

// (sum + conv_bias - mean) * scale / sqrt(var + eps) + bias
struct ColumnNorm {
  NormVector conv_bias, mean, var, scale, bias;
  float eps = 0;
};

}  // namespace fusedops
