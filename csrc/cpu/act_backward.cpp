#include "cpu/act_backward.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "common/dispatch.h"
#include "cpu/activation.h"
#include "cpu/aten.h"
#include "cpu/host_types.h"
#include "cpu/pointwise.h"

namespace fusedops::cpu {
namespace {

// Rows summed by one task. NOTE: fixed, so that the order of additions is.
constexpr int64_t kRowsPerBlock = 128;

template <DType D, Activation A>
void act_backward_typed(const Storage<D>* dy, const Storage<D>* saved, int64_t m, int64_t n,
                        Storage<D>* dz, double* column_sums) {
  using T = Compute<D>;
  const int64_t blocks = (m + kRowsPerBlock - 1) / kRowsPerBlock;
  std::vector<double> partial(column_sums ? blocks * n : 0);

  // One block of rows per task
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, kRowsPerBlock * n));
  torch::stable::parallel_for(0, blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin * kRowsPerBlock; row < std::min(end * kRowsPerBlock, m); ++row) {
      double* sums = column_sums ? partial.data() + row / kRowsPerBlock * n : nullptr;
      for (int64_t col = 0; col < n; ++col) {
        const int64_t i = row * n + col;
        T value = static_cast<T>(dy[i]);
        if constexpr (A != Activation::kNone) value *= derivative<A>(static_cast<T>(saved[i]));
        if (dz) dz[i] = static_cast<Storage<D>>(value);
        if (sums) sums[col] += value;
      }
    }
  });

  // Blocks in order
  if (!column_sums) return;
  std::fill_n(column_sums, n, 0.0);
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t col = 0; col < n; ++col) column_sums[col] += partial[block * n + col];
  }
}

void store_sums(const std::vector<double>& sums, const Tensor& out) {
  dispatch_dtype(check_floating("act_backward_bias_grad", "dbias", out), [&]<DType D>(Tag<D>) {
    auto* data = static_cast<Storage<D>*>(out.mutable_data_ptr());
    for (size_t i = 0; i < sums.size(); ++i) {
      // NOTE: through float for the 16-bit types: their only conversion.
      data[i] = static_cast<Storage<D>>(static_cast<Compute<D>>(sums[i]));
    }
  });
}

std::tuple<Tensor, Tensor> act_backward_bias_grad(const Tensor& dy,                    // (..., N)
                                                  const std::optional<Tensor>& saved,  // (..., N)
                                                  int64_t activation, bool need_dbias,
                                                  bool dbias_fp32) {
  const LinearShape shape = check_act_backward("act_backward_bias_grad", dy, saved, activation);
  const NoGradGuard no_grad;
  const Tensor dz = torch::stable::empty(dy.sizes(), dy.scalar_type());
  const Tensor dbias = torch::stable::empty({need_dbias ? shape.n : 0},
                                            dbias_fp32 ? ScalarType::Float : dy.scalar_type());
  act_backward(dy, saved, shape, &dz, need_dbias ? &dbias : nullptr);
  return {dz, dbias};
}

}  // namespace

void act_backward(const Tensor& dy, const std::optional<Tensor>& saved, const LinearShape& shape,
                  const Tensor* dz, const Tensor* dbias) {
  const bool needs_saved = saved_for_backward(shape.activation) != Saved::kNothing;
  const Tensor dy_dense = torch::stable::contiguous(dy);
  const Tensor saved_dense = needs_saved ? torch::stable::contiguous(*saved) : dy_dense;
  std::vector<double> sums(dbias ? shape.n : 0);
  dispatch_dtype(shape.dtype, [&]<DType D>(Tag<D>) {
    dispatch_activation(shape.activation, [&]<Activation A>(Tag<A>) {
      act_backward_typed<D, A>(static_cast<const Storage<D>*>(dy_dense.const_data_ptr()),
                               static_cast<const Storage<D>*>(saved_dense.const_data_ptr()),
                               shape.m, shape.n,
                               dz ? static_cast<Storage<D>*>(dz->mutable_data_ptr()) : nullptr,
                               dbias ? sums.data() : nullptr);
    });
  });
  if (dbias) store_sums(sums, *dbias);
}

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("act_backward_bias_grad", TORCH_BOX(&act_backward_bias_grad));
}

}  // namespace fusedops::cpu
