// add, fma, square, relu and their out variants on the CPU. Integers wrap around.
#include <cmath>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/cpu/element_types.h"
#include "csrc/cpu/elementwise/elementwise.h"

namespace fusedops::cpu {
namespace {

// What a value computes in: unsigned for integers, whose sums and products then wrap around.
template <typename T>
using Wide = std::conditional_t<
    std::is_same_v<T, double>, double,
    std::conditional_t<std::is_same_v<T, int64_t>, uint64_t,
                       std::conditional_t<std::is_integral_v<T>, uint32_t, float>>>;

struct AddFn {
  template <typename T, typename V>
  static T apply(const V& v) {
    return static_cast<T>(Wide<T>(v[0]) + Wide<T>(v[1]));
  }
};
struct FmaFn {  // a, x, b
  template <typename T, typename V>
  static T apply(const V& v) {
    using W = Wide<T>;
    if constexpr (std::is_same_v<T, W> && std::is_floating_point_v<W>) {
      return std::fma(v[0], v[1], v[2]);
    } else {  // products of halves are exact in float
      return static_cast<T>(W(v[0]) * W(v[1]) + W(v[2]));
    }
  }
};
struct SquareFn {
  template <typename T, typename V>
  static T apply(const V& v) {
    return static_cast<T>(Wide<T>(v[0]) * Wide<T>(v[0]));
  }
};
struct SquareBackwardFn {  // dy, x
  template <typename T, typename V>
  static T apply(const V& v) {
    return static_cast<T>(2 * Wide<T>(v[1]) * Wide<T>(v[0]));
  }
};
struct ReluFn {  // keeps NaN
  template <typename T, typename V>
  static T apply(const V& v) {
    return v[0] < T(0) ? T(0) : v[0];
  }
};

template <typename Fn, int kInputs>
void launch(const char* op, const Tensor& out, const NamedTensor (&inputs)[kInputs]) {
  const IterationSpace space = iteration_space(op, out, inputs);
  dispatch(NumberElements{}, *find_element(out.scalar_type()), [&]<Element E>(Tag<E>) {
    using T = HostElement<E>;
    for_each_element(space, pointers<T, kInputs>(inputs, {}),
                     static_cast<T*>(out.mutable_data_ptr()),
                     [](const auto& v, int64_t) { return Fn::template apply<T>(v); });
  });
}

template <typename Fn, int kInputs>
Tensor run(const char* op, const NamedTensor (&inputs)[kInputs]) {
  const Tensor out = new_result(check_broadcast(op, inputs), inputs);
  launch<Fn>(op, out, inputs);
  return out;
}

template <typename Fn, int kInputs>
void run_out(const char* op, const NamedTensor (&inputs)[kInputs], const Tensor& out) {
  check_out(op, out, check_broadcast(op, inputs), inputs);
  launch<Fn>(op, out, inputs);
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

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
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

}  // namespace fusedops::cpu
