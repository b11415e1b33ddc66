// Moments of the columns of a matrix (batch_norm_check.h) from its blocks of rows, for every
// device: what a product without a kernel that forms them beside itself gives.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "csrc/common/checks/batch_norm_check.h"
#include "csrc/common/host/aten.h"

namespace fusedops {

// Those of a matrix of so many rows and columns, not filled in.
inline Tensor new_moments(const Tensor& like, int64_t rows, int64_t columns) {
  return new_dense(like, {2, columns, moment_blocks(rows)}, ScalarType::Double);
}

inline void fill_moments(const Tensor& y,          // (..., N)
                         const Tensor& moments) {  // (2, N, blocks)
  const int64_t columns = moments.size(1), blocks = moments.size(2);
  if (columns == 0) return;
  const std::vector<int64_t> down = {0};
  const std::optional<std::vector<int64_t>> dims = down;
  const int64_t rows = y.numel() / columns;
  Tensor matrix = cpu::as_matrix(y, rows, columns), all = moments;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t begin = block * kMomentRows, count = std::min(kMomentRows, rows - begin);
    const Tensor wide =
        cpu::to_dtype(torch::stable::narrow(matrix, 0, begin, count), ScalarType::Double);
    const Tensor mean =
        cpu::call("aten::mean", "dim", wide, dims, true, std::optional<ScalarType>());
    const Tensor square = torch::stable::sum(
        cpu::call("aten::square", "", torch::stable::subtract(wide, mean)), down, true);
    Tensor to = torch::stable::narrow(all, 2, block, 1);
    Tensor means = torch::stable::narrow(to, 0, 0, 1), squares = torch::stable::narrow(to, 0, 1, 1);
    torch::stable::copy_(means, torch::stable::reshape(mean, {1, columns, 1}));
    torch::stable::copy_(squares, torch::stable::reshape(square, {1, columns, 1}));
  }
}

}  // namespace fusedops
