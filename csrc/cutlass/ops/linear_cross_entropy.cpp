// linear_cross_entropy on CUDA: chunks of rows go through a product, the loss, which puts their
// gradient in the place of their logits, and the products of the gradients.
//
// Chunks are of rows: a chunk of columns would know its gradient only after all columns of all rows
// were seen, which costs another product. The price is that the weight gradient is a sum over
// chunks, added up where it lies (run_wgrad).
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "csrc/common/checks/linear_cross_entropy_check.h"
#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/host/aten.h"
#include "csrc/cutlass/ops/linear_parts.h"
#include "csrc/cutlass/passes/loss_rows.h"

namespace fusedops {
namespace {

constexpr const char* kOp = "linear_cross_entropy";

void check_launched(const char* failure) {
  FUSEDOPS_CHECK(failure == nullptr, kOp, ": the launch failed: ", failure);
}

// A copy of `rows` rows, with zeros behind those of the tensor.
Tensor padded(const Tensor& tensor, int64_t rows) {
  auto sizes = std::vector<int64_t>(tensor.sizes().begin(), tensor.sizes().end());
  const int64_t given = sizes[0];
  sizes[0] = rows;
  Tensor out = torch::stable::new_zeros(tensor, sizes);
  Tensor first = torch::stable::narrow(out, 0, 0, given);
  torch::stable::copy_(first, tensor);
  return out;
}

// What is wanted, with as many classes as make whole 16-byte chunks: no kernel then has to copy
// logits to read them.
struct Gradients {
  Tensor dx;       // (M, K)
  Tensor dweight;  // (pitch, K) in weight_sum_type()
  Tensor dbias;    // (V,) in the compute dtype
  bool need_dx, need_dweight, need_dbias;
  bool any() const { return need_dx || need_dweight || need_dbias; }
};

class Chunks {
 public:
  Chunks(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
         const LinearCrossEntropyShape& shape, int64_t chunk_size, bool allow_tf32,
         const LaunchScope& scope)
      : scope_(scope), shape_(shape), x_(dense(x)), bias_(bias) {
    const int64_t bytes = dtype_bytes(shape.dtype);
    pitch_ = round_up(shape.n, 16 / bytes);
    const bool whole = pitch_ == shape.n;
    weight_ = whole ? dense(weight) : padded(weight, pitch_);
    if (bias && !whole) bias_ = padded(*bias, pitch_);
    most_ = std::min(rows_of_chunk(shape.m, pitch_ * bytes, chunk_size), shape.m);
    logits_ = new_dense(x, {most_, pitch_});
    call_ = {.op = kOp, .a = {}, .b = {}, .dtype = shape.dtype, .allow_tf32 = allow_tf32};
  }

  int64_t pitch() const { return pitch_; }
  int64_t most() const { return most_; }  // rows of a chunk

  // `rows` says how losses are formed; its logits, rows and addresses are those of all rows.
  void run(const LossRowsProblem& rows, const Gradients& gradients) {
    const int64_t compute = shape_.dtype == DType::kFloat64 ? 8 : 4;
    for (int64_t first = 0; first < shape_.m; first += most_) {
      const int64_t count = std::min(most_, shape_.m - first);
      form_logits(first, count);
      LossRowsProblem part = rows;
      part.logits = logits_.mutable_data_ptr();
      part.rows = count;
      part.n = part.classes = shape_.n;
      part.pitch = pitch_;
      part.target += first;
      part.sums = static_cast<char*>(rows.sums) + first * loss_sum_bytes();
      if (rows.losses) part.losses = static_cast<char*>(rows.losses) + first * compute;
      if (rows.factor_per_row) {
        part.factor = static_cast<const char*>(rows.factor) + first * compute;
      }
      check_launched(loss_rows(part, scope_.context()));
      if (gradients.any()) add_gradients(gradients, first, count);
    }
  }

 private:
  MatrixView rows_of_x(int64_t first, int64_t count) const {
    const auto* data = static_cast<const char*>(x_.const_data_ptr());
    return {data + first * shape_.k * dtype_bytes(shape_.dtype), count, shape_.k, shape_.k, 1};
  }

  void form_logits(int64_t first, int64_t count) {
    GemmCall call = call_;
    call.a = rows_of_x(first, count);
    call.b = matrix_view(weight_).transposed();
    run_linear(call, bias_, torch::stable::narrow(logits_, 0, 0, count), nullptr, scope_);
  }

  void add_gradients(const Gradients& g, int64_t first, int64_t count) {
    GemmCall call = call_;
    const MatrixView dz{logits_.const_data_ptr(), count, pitch_, pitch_, 1};
    if (g.need_dx) {
      call.a = dz;
      call.b = matrix_view(weight_);
      Tensor dx = g.dx;
      run_gemm(call, torch::stable::narrow(dx, 0, first, count), nullptr, scope_);
    }
    if (g.need_dweight) {
      call.accumulate = first > 0;
      run_wgrad(call, dz, rows_of_x(first, count), g.dweight, scope_);
    }
    if (g.need_dbias) {
      // Whole rows, so that they are read in 16-byte accesses.
      const bool in_place = first == 0 && pitch_ == shape_.n;
      Tensor part = in_place ? g.dbias : new_dense(g.dbias, {pitch_});
      const LinearShape shape{count, pitch_, 0, shape_.dtype, Activation::kNone};
      run_act_backward(kOp, dz, std::nullopt, shape, nullptr, &part, scope_);
      if (in_place) return;
      const Tensor classes = torch::stable::narrow(part, 0, 0, shape_.n);
      Tensor dbias = g.dbias;
      torch::stable::copy_(dbias, first > 0 ? sum(dbias, classes) : classes);
    }
  }

  const LaunchScope& scope_;
  LinearCrossEntropyShape shape_;
  Tensor x_, weight_, logits_;
  std::optional<Tensor> bias_;
  int64_t pitch_ = 0, most_ = 0;
  GemmCall call_{};
};

// What is not needed has shape (0,).
Gradients allocate(const Tensor& x, const LinearCrossEntropyShape& shape, int64_t pitch,
                   ScalarType sums, bool need_dx, bool need_dweight, bool need_dbias) {
  const ScalarType compute = compute_type(shape.dtype);
  Gradients g{need_dx ? new_dense(x, {shape.m, shape.k}) : new_dense(x, {0}),
              need_dweight ? new_dense(x, {pitch, shape.k}, sums) : new_dense(x, {0}, sums),
              new_dense(x, {need_dbias ? shape.n : 0}, compute),
              need_dx,
              need_dweight,
              need_dbias};
  if (shape.m == 0) {
    torch::stable::zero_(g.dweight);
    torch::stable::zero_(g.dbias);
  }
  return g;
}

// A copy of the first `rows` rows in memory of their own.
Tensor finished(const Tensor& dweight, int64_t rows, ScalarType dtype) {
  if (dweight.size(0) == rows) return torch::stable::to(dweight, dtype);
  Tensor all = dweight;
  const Tensor first = torch::stable::narrow(all, 0, 0, rows);
  return dweight.scalar_type() == dtype ? torch::stable::clone(first)
                                        : torch::stable::to(first, dtype);
}

// What rows need beside their logits, and leave.
struct Losses {
  Losses(const Tensor& x, const Tensor& target, const std::optional<Tensor>& dloss,
         const LinearCrossEntropyShape& shape, const LaunchScope& scope)
      : targets(dense(target)), sums(workspace(shape.m * loss_sum_bytes(), scope)) {
    const ScalarType compute = compute_type(shape.dtype);
    total = shape.per_row() ? new_dense(x, {shape.m}, compute) : new_dense(x, {}, compute);
    factor = new_dense(x, {1}, compute);
    scale = new_dense(x, {1}, compute);
    if (dloss) given = dense(torch::stable::to(*dloss, compute));
  }

  Tensor targets;               // (M,)
  Tensor sums;                  // a LossSum for every row
  Tensor total;                 // the loss in the compute dtype: (M,) or ()
  Tensor factor, scale;         // (1,)
  std::optional<Tensor> given;  // dloss in the compute dtype
};

// Forms what gradients are multiplied by; without the addresses of a chunk.
LossRowsProblem rows_problem(const Losses& l, const LinearCrossEntropyShape& shape,
                             const LossOptions& options, bool gradient, const LaunchScope& scope) {
  const void* given = l.given ? l.given->const_data_ptr() : nullptr;
  LossRowsProblem rows{};
  rows.dtype = shape.dtype;
  rows.target = static_cast<const int64_t*>(l.targets.const_data_ptr());
  rows.sums = l.sums.mutable_data_ptr();
  rows.losses = shape.per_row() ? l.total.mutable_data_ptr() : nullptr;
  rows.factor_per_row = gradient && given && shape.per_row();
  if (gradient) rows.factor = rows.factor_per_row ? given : l.factor.const_data_ptr();
  rows.options = options;
  const LossFactors factors{rows.target,
                            shape.m,
                            options.ignore_index,
                            shape.mean(),
                            divides_later(shape, l.given.has_value()),
                            shape.per_row() ? nullptr : given,
                            l.factor.mutable_data_ptr(),
                            l.scale.mutable_data_ptr()};
  check_launched(loss_factors(shape.dtype, factors, scope.context()));
  return rows;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> linear_cross_entropy(
    const Tensor& x,                     // (M, K)
    const Tensor& weight,                // (V, K)
    const std::optional<Tensor>& bias,   // (V,)
    const Tensor& target,                // (M,)
    const std::optional<Tensor>& dloss,  // (M,) or ()
    int64_t ignore_index, double label_smoothing, double softcap, double z_loss, int64_t reduction,
    bool fp32_out, int64_t chunk_size, bool need_dx, bool need_dweight, bool need_dbias,
    bool dweight_fp32, bool allow_tf32) {
  // Checks
  const LossOptions options{ignore_index, label_smoothing, softcap, z_loss};
  const LinearCrossEntropyShape shape = check_linear_cross_entropy(
      kOp, x, weight, bias, target, dloss, options, reduction, fp32_out, chunk_size);

  // Guard
  const LaunchScope scope(kOp, x);
  const cpu::NoGradGuard no_grad;

  // Allocate
  const ScalarType parameter = dweight_fp32 ? ScalarType::Float : x.scalar_type();
  Chunks chunks(x, weight, bias, shape, chunk_size, allow_tf32, scope);
  const ScalarType sums_type = weight_sum_type(parameter, shape.m, chunks.most());
  const Gradients g =
      allocate(x, shape, chunks.pitch(), sums_type, need_dx, need_dweight, need_dbias);
  const Losses losses(x, target, dloss, shape, scope);

  // Launch
  chunks.run(rows_problem(losses, shape, options, g.any(), scope), g);
  if (!shape.per_row()) {
    check_launched(sum_losses(shape.dtype, losses.sums.const_data_ptr(), shape.m, shape.mean(),
                              losses.total.mutable_data_ptr(), scope.context()));
  }

  // Launch check
  check_launch(kOp);
  const ScalarType dtype = fp32_out ? ScalarType::Float : x.scalar_type();
  return {torch::stable::to(losses.total, dtype), losses.scale, g.dx,
          finished(g.dweight, need_dweight ? shape.n : 0, parameter),
          torch::stable::to(g.dbias, parameter)};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("linear_cross_entropy", FUSEDOPS_BOX(&linear_cross_entropy));
}

}  // namespace fusedops
