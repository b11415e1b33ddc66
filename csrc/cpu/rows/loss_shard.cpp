// loss_shard_parts and loss_shard_gradient_ on the CPU.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "csrc/common/checks/loss_shard_check.h"
#include "csrc/common/checks/op_boundary.h"
#include "csrc/cpu/rows.h"

namespace fusedops::cpu {
namespace {

template <typename C>
C capped(C x, C softcap) {
  return softcap == 0 ? x : softcap * std::tanh(x / softcap);
}

Tensor loss_shard_parts(const Tensor& logits,  // (M, pitch)
                        const Tensor& target,  // (M,)
                        int64_t first, int64_t width, int64_t classes, int64_t ignore_index,
                        double softcap, bool smooth) {
  // Checks
  const LossShardShape shape = check_loss_shard("loss_shard_parts", logits, target, first, width,
                                                classes, LossOptions{ignore_index, 0, softcap, 0});
  const NoGradGuard no_grad;
  const Tensor targets = dense(target), rows = dense(logits);
  check_targets(targets, classes, ignore_index);

  // Allocate
  const Tensor parts = torch::stable::empty({shape.rows, 4}, compute_type(shape.dtype));
  const auto* const of_row = static_cast<const int64_t*>(targets.const_data_ptr());

  // Launch
  dispatch_dtype(shape.dtype, [&]<DType D>(Tag<D>) {
    using C = Compute<D>;
    for_rows(shape.rows, width, [&](int64_t row) {
      C* const part = static_cast<C*>(parts.mutable_data_ptr()) + row * 4;
      if (of_row[row] == ignore_index) {
        std::fill_n(part, 4, C{0});
        part[1] = 1;
        return;
      }
      const Storage<D>* const x = data<D>(rows) + row * shape.pitch;
      std::vector<C> y(x, x + width);
      for (C& value : y) value = capped(value, static_cast<C>(softcap));
      const auto [top, sum] = normaliser<C>(y.data(), width, 1);
      double values = 0;
      if (smooth) {
        for (C value : y) values += value;
      }
      const int64_t column = of_row[row] - first;
      part[0] = width > 0 ? top : -std::numeric_limits<C>::infinity();
      part[1] = static_cast<C>(sum);
      part[2] = static_cast<C>(values);
      part[3] = column >= 0 && column < width ? y[column] : C{0};
    });
  });
  return parts;
}

void loss_shard_gradient_(const Tensor& logits,  // (M, pitch)
                          const Tensor& target,  // (M,)
                          const Tensor& lse,     // (M,)
                          const Tensor& factor,  // (M,) or (1,)
                          int64_t first, int64_t width, int64_t classes, int64_t ignore_index,
                          double label_smoothing, double softcap, double z_loss) {
  // Checks
  constexpr const char* kOp = "loss_shard_gradient_";
  const LossShardShape shape =
      check_loss_shard(kOp, logits, target, first, width, classes,
                       LossOptions{ignore_index, label_smoothing, softcap, z_loss});
  const bool per_row = check_loss_shard_gradient(kOp, shape, logits, lse, factor);
  const NoGradGuard no_grad;
  const Tensor targets = dense(target), sums = dense(lse), factors = dense(factor);
  check_targets(targets, classes, ignore_index);

  // Launch
  dispatch_dtype(shape.dtype, [&]<DType D>(Tag<D>) {
    using C = Compute<D>;
    const C cap = static_cast<C>(softcap);
    const C other = static_cast<C>(-label_smoothing / static_cast<double>(classes));
    for_rows(shape.rows, width, [&](int64_t row) {
      Storage<D>* const x = mutable_data<D>(logits) + row * shape.pitch;
      const int64_t chosen = static_cast<const int64_t*>(targets.const_data_ptr())[row];
      const C sum = static_cast<const C*>(sums.const_data_ptr())[row];
      const C scale = static_cast<const C*>(factors.const_data_ptr())[per_row ? row : 0];
      const C weight = static_cast<C>(1 + 2 * z_loss * sum);
      std::fill(x + width, x + shape.pitch, Storage<D>(0));
      for (int64_t i = 0; i < width; ++i) {
        const C y = capped(static_cast<C>(x[i]), cap);
        C g = std::exp(y - sum) * weight + other;
        if (i + first == chosen) g -= static_cast<C>(1 - label_smoothing);
        if (softcap != 0) g *= 1 - (y / cap) * (y / cap);
        x[i] = static_cast<Storage<D>>(chosen == ignore_index ? C{0} : g * scale);
      }
    });
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("loss_shard_parts", FUSEDOPS_BOX(&loss_shard_parts));
  m.impl("loss_shard_gradient_", FUSEDOPS_BOX(&loss_shard_gradient_));
}

}  // namespace fusedops::cpu
