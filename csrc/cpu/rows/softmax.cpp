// softmax, log_softmax and their gradient on the CPU.
#include "csrc/common/checks/op_boundary.h"
#include "csrc/cpu/rows.h"

namespace fusedops::cpu {
namespace {

// fn(offset of the first element) for every row along the dim.
template <typename Fn>
void for_columns(const SoftmaxShape& shape, Fn fn) {
  for_rows(shape.outer * shape.inner, shape.n,
           [&](int64_t row) { fn(row / shape.inner * shape.n * shape.inner + row % shape.inner); });
}

template <typename C, typename T, typename O>
void softmax_rows(const T* x, O* y, const SoftmaxShape& shape, bool log) {
  for_columns(shape, [&](int64_t start) {
    const Normaliser<C> row = normaliser<C>(x + start, shape.n, shape.inner);
    const C scale = static_cast<C>(log ? std::log(row.sum) : 1 / row.sum);
    for (int64_t i = 0; i < shape.n; ++i) {
      const C d = static_cast<C>(x[start + i * shape.inner]) - row.top;
      y[start + i * shape.inner] = static_cast<O>(log ? d - scale : std::exp(d) * scale);
    }
  });
}

Tensor softmax(const Tensor& x,  // any shape
               int64_t dim, bool log, bool fp32_out) {
  // Checks
  const SoftmaxShape shape = check_softmax("softmax", x, dim, fp32_out);

  // Allocate
  const NoGradGuard no_grad;
  const Tensor input = dense(x);
  const Tensor y = torch::stable::empty(x.sizes(), fp32_out ? ScalarType::Float : x.scalar_type());

  // Launch
  dispatch_dtype(shape.dtype, [&]<DType D>(Tag<D>) {
    if (fp32_out) {
      softmax_rows<Compute<D>>(data<D>(input), mutable_data<DType::kFloat32>(y), shape, log);
    } else {
      softmax_rows<Compute<D>>(data<D>(input), mutable_data<D>(y), shape, log);
    }
  });
  return y;
}

template <typename C, typename T, typename S>
void softmax_backward_rows(const S* dy, const S* y, T* dx, const SoftmaxShape& shape, bool log) {
  for_columns(shape, [&](int64_t start) {
    double sum = 0;
    for (int64_t i = 0; i < shape.n; ++i) {
      const int64_t at = start + i * shape.inner;
      sum += log ? static_cast<C>(dy[at]) : static_cast<C>(dy[at]) * static_cast<C>(y[at]);
    }
    const C total = static_cast<C>(sum);
    for (int64_t i = 0; i < shape.n; ++i) {
      const int64_t at = start + i * shape.inner;
      const C d = static_cast<C>(dy[at]), out = static_cast<C>(y[at]);
      dx[at] = static_cast<T>(log ? d - std::exp(out) * total : out * (d - total));
    }
  });
}

Tensor softmax_backward(const Tensor& dy,  // any shape
                        const Tensor& y,   // like dy
                        int64_t dim, bool log, int64_t dx_dtype) {
  // Checks
  const SoftmaxShape shape = check_softmax_backward("softmax_backward", dy, y, dim);
  const DType dtype = check_grad_dtype("softmax_backward", dx_dtype, shape.dtype);

  // Allocate
  const NoGradGuard no_grad;
  const Tensor dy_dense = dense(dy);
  const Tensor y_dense = dense(y);
  const Tensor dx = torch::stable::empty(y.sizes(), scalar_type_of(dtype));

  // Launch
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    if (dx_dtype != 0) {
      softmax_backward_rows<float>(data<DType::kFloat32>(dy_dense), data<DType::kFloat32>(y_dense),
                                   mutable_data<D>(dx), shape, log);
    } else {
      softmax_backward_rows<Compute<D>>(data<D>(dy_dense), data<D>(y_dense), mutable_data<D>(dx),
                                        shape, log);
    }
  });
  return dx;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("softmax", FUSEDOPS_BOX(&softmax));
  m.impl("softmax_backward", FUSEDOPS_BOX(&softmax_backward));
}

}  // namespace fusedops::cpu
