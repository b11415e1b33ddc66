// add, fma, square, relu and their out variants on CUDA.
#include <concepts>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/device/element_types.cuh"
#include "csrc/cuda/elementwise/arithmetic.cuh"
#include "csrc/cuda/elementwise/elementwise_host.h"

namespace fusedops::cuda {
namespace {

// Sums and products of integers have the same bits, signed or not; relu has not.
template <class T>
struct Wrapping {
  using type = T;
};
template <std::signed_integral T>
struct Wrapping<T> {
  using type = std::make_unsigned_t<T>;
};

template <class Fn, Element E, class T = ElementType<E>>
using Operand = std::conditional_t<std::is_same_v<Fn, ReluFn>, T, typename Wrapping<T>::type>;

template <class Fn, int kInputs>
void launch(const char* op, const LaunchScope& scope, const Tensor& out,
            const NamedTensor (&inputs)[kInputs]) {
  // Empty early return
  if (out.numel() == 0) return;

  // Config
  const auto problem = problem_of<kInputs>(op, out, inputs, {});

  // Launch
  const bool overlap = scope.facts().code_version >= 90;
  dispatch(NumberElements{}, *find_element(out.scalar_type()), [&]<Element E>(Tag<E>) {
    using T = Operand<Fn, E>;
    launch_elementwise<T>(problem, Pointwise<T, kInputs, Fn>{}, scope.stream(), overlap);
  });

  // Launch check
  check_launch(op);
}

template <class Fn, int kInputs>
Tensor run(const char* op, const NamedTensor (&inputs)[kInputs]) {
  // Guard
  const LaunchScope scope(op, *inputs[0].tensor);

  // Checks
  const std::vector<int64_t> shape = check_broadcast(op, inputs);

  // Allocate
  const Tensor out = new_result(shape, inputs);
  launch<Fn>(op, scope, out, inputs);
  return out;
}

template <class Fn, int kInputs>
void run_out(const char* op, const NamedTensor (&inputs)[kInputs], const Tensor& out) {
  // Guard
  const LaunchScope scope(op, *inputs[0].tensor);

  // Checks
  check_out(op, out, check_broadcast(op, inputs), inputs);
  launch<Fn>(op, scope, out, inputs);
}

Tensor add(const Tensor& x, const Tensor& y) { return run<AddFn>("add", {{"x", &x}, {"y", &y}}); }
void add_out(const Tensor& x, const Tensor& y, const Tensor& out) {
  run_out<AddFn>("add", {{"x", &x}, {"y", &y}}, out);
}

Tensor fma(const Tensor& a, const Tensor& x, const Tensor& b) {
  return run<FmaFn>("fma", {{"a", &a}, {"x", &x}, {"b", &b}});
}
void fma_out(const Tensor& a, const Tensor& x, const Tensor& b, const Tensor& out) {
  run_out<FmaFn>("fma", {{"a", &a}, {"x", &x}, {"b", &b}}, out);
}

Tensor square(const Tensor& x) { return run<SquareFn>("square", {{"x", &x}}); }
void square_out(const Tensor& x, const Tensor& out) {
  run_out<SquareFn>("square", {{"x", &x}}, out);
}

Tensor square_backward(const Tensor& dy, const Tensor& x) {
  check_square_backward(dy, x);
  return run<SquareBackwardFn>("square_backward", {{"dy", &dy}, {"x", &x}});
}

Tensor relu(const Tensor& x) { return run<ReluFn>("relu", {{"x", &x}}); }
void relu_out(const Tensor& x, const Tensor& out) { run_out<ReluFn>("relu", {{"x", &x}}, out); }

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("add", FUSEDOPS_BOX(&add));
  m.impl("add_out", FUSEDOPS_BOX(&add_out));
  m.impl("fma", FUSEDOPS_BOX(&fma));
  m.impl("fma_out", FUSEDOPS_BOX(&fma_out));
  m.impl("square", FUSEDOPS_BOX(&square));
  m.impl("square_out", FUSEDOPS_BOX(&square_out));
  m.impl("square_backward", FUSEDOPS_BOX(&square_backward));
  m.impl("relu", FUSEDOPS_BOX(&relu));
  m.impl("relu_out", FUSEDOPS_BOX(&relu_out));
}

}  // namespace fusedops::cuda
