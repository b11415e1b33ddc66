// stencil and its backward on the CPU: plain loops in fp32 (fp64; weight gradients in fp64).
#include <algorithm>
#include <tuple>
#include <vector>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/checks/stencil_check.h"
#include "csrc/common/dispatch.h"
#include "csrc/common/host/aten.h"
#include "csrc/cpu/pointwise.h"

namespace fusedops::cpu {
namespace {

// Calls fn(tap, plane offset of the source) for each tap of the output (z, y, x) that is no zero.
template <typename Fn>
void for_each_tap(const StencilShape& s, int64_t z, int64_t y, int64_t x, Fn fn) {
  int64_t tap = 0;
  for (int a = 0; a < s.kd; ++a) {
    const int64_t iz = source_index(z + a - s.kd / 2, s.d, s.kd / 2, s.padding);
    for (int b = 0; b < s.kh; ++b) {
      const int64_t iy = source_index(y + b - s.kh / 2, s.h, s.kh / 2, s.padding);
      for (int c = 0; c < s.kw; ++c, ++tap) {
        const int64_t ix = source_index(x + c - s.kw / 2, s.w, s.kw / 2, s.padding);
        if (iz >= 0 && iy >= 0 && ix >= 0) fn(tap, (iz * s.h + iy) * s.w + ix);
      }
    }
  }
}

// Calls fn(plane offset, z, y, x) for each element of a plane.
template <typename Fn>
void for_each_place(const StencilShape& s, Fn fn) {
  int64_t i = 0;
  for (int64_t z = 0; z < s.d; ++z) {
    for (int64_t y = 0; y < s.h; ++y) {
      for (int64_t x = 0; x < s.w; ++x) fn(i++, z, y, x);
    }
  }
}

int64_t planes_per_task(const StencilShape& s) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, s.plane_size() * s.taps()));
}

Tensor stencil(const Tensor& x,       // (..., [D,] [H,] W)
               const Tensor& weight,  // ([C,] [kd,] [kh,] kw)
               double scale, int64_t dims, int64_t padding) {
  const StencilShape s = check_stencil("stencil", "x", x, weight, dims, padding);
  const NoGradGuard no_grad;
  const Tensor input = dense(x), taps = dense(weight);
  const Tensor out = new_dense(x, x.sizes());
  dispatch_dtype(check_floating("stencil", "x", x), [&]<DType D>(Tag<D>) {
    using C = Compute<D>;
    torch::stable::parallel_for(0, s.planes, planes_per_task(s), [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const auto* from = data<D>(input) + p * s.plane_size();
        const auto* w = data<D>(taps) + p % s.groups * s.taps();
        auto* to = mutable_data<D>(out) + p * s.plane_size();
        for_each_place(s, [&](int64_t i, int64_t z, int64_t y, int64_t x) {
          C sum = 0;
          for_each_tap(s, z, y, x, [&](int64_t tap, int64_t source) {
            sum += static_cast<C>(w[tap]) * static_cast<C>(from[source]);
          });
          to[i] = static_cast<Storage<D>>(sum * static_cast<C>(scale));
        });
      }
    });
  });
  return out;
}

// dx: every output hands its gradient to its taps; planes are independent.
template <DType D>
void input_gradient(const StencilShape& s, const Storage<D>* dy, const Storage<D>* weight,
                    double scale, Storage<D>* dx) {
  using C = Compute<D>;
  torch::stable::parallel_for(0, s.planes, planes_per_task(s), [&](int64_t begin, int64_t end) {
    std::vector<C> sums(s.plane_size());
    for (int64_t p = begin; p < end; ++p) {
      std::fill(sums.begin(), sums.end(), C(0));
      const auto* from = dy + p * s.plane_size();
      const auto* w = weight + p % s.groups * s.taps();
      for_each_place(s, [&](int64_t i, int64_t z, int64_t y, int64_t x) {
        for_each_tap(s, z, y, x, [&](int64_t tap, int64_t source) {
          sums[source] += static_cast<C>(w[tap]) * static_cast<C>(from[i]);
        });
      });
      for (int64_t i = 0; i < s.plane_size(); ++i) {
        dx[p * s.plane_size() + i] = static_cast<Storage<D>>(sums[i] * static_cast<C>(scale));
      }
    }
  });
}

template <DType D>
void weight_gradient(const StencilShape& s, const Storage<D>* dy, const Storage<D>* x, double scale,
                     Storage<D>* dweight) {
  torch::stable::parallel_for(0, s.groups, 1, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      std::vector<double> sums(s.taps());
      for (int64_t p = g; p < s.planes; p += s.groups) {
        const auto* grad = dy + p * s.plane_size();
        const auto* from = x + p * s.plane_size();
        for_each_place(s, [&](int64_t i, int64_t z, int64_t y, int64_t x) {
          for_each_tap(s, z, y, x, [&](int64_t tap, int64_t source) {
            sums[tap] += static_cast<double>(grad[i]) * static_cast<double>(from[source]);
          });
        });
      }
      for (int64_t k = 0; k < s.taps(); ++k) {
        dweight[g * s.taps() + k] =
            static_cast<Storage<D>>(static_cast<Compute<D>>(sums[k] * scale));
      }
    }
  });
}

std::tuple<Tensor, Tensor> stencil_backward(const Tensor& dy,      // (..., [D,] [H,] W)
                                            const Tensor& x,       // (..., [D,] [H,] W)
                                            const Tensor& weight,  // ([C,] [kd,] [kh,] kw)
                                            double scale, int64_t dims, int64_t padding,
                                            bool need_dx, bool need_dweight) {
  constexpr const char* kOp = "stencil_backward";
  const StencilShape s = check_stencil_backward(kOp, dy, x, weight, dims, padding);
  const NoGradGuard no_grad;
  const Tensor grad = dense(dy), input = dense(x);
  const Tensor taps = dense(weight);
  const auto nothing = [&] { return new_dense(dy, {0}); };
  const Tensor dx = need_dx ? new_dense(dy, dy.sizes()) : nothing();
  const Tensor dweight = need_dweight ? new_dense(dy, weight.sizes()) : nothing();
  dispatch_dtype(check_floating(kOp, "dy", dy), [&]<DType D>(Tag<D>) {
    if (need_dx) input_gradient<D>(s, data<D>(grad), data<D>(taps), scale, mutable_data<D>(dx));
    if (need_dweight) {
      weight_gradient<D>(s, data<D>(grad), data<D>(input), scale, mutable_data<D>(dweight));
    }
  });
  return {dx, dweight};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("stencil", FUSEDOPS_BOX(&stencil));
  m.impl("stencil_backward", FUSEDOPS_BOX(&stencil_backward));
}

}  // namespace fusedops::cpu
