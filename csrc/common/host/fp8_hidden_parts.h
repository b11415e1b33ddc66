// _fp8_hidden_grads of passes that quantise: for the CPU, and for what csrc/cuda/fp8/fp8_hidden.cuh
// does not take.
#pragma once

#include <tuple>

#include "csrc/common/checks/fp8_check.h"
#include "csrc/common/host/aten.h"

namespace fusedops {

using Fp8Quantized = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using Fp8HiddenGrads = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// fp8_quantize of a device.
using Fp8QuantizeFn = Fp8Quantized (*)(const Tensor& x, const std::optional<Tensor>& saved,
                                       const std::optional<Tensor>& factor, int64_t activation,
                                       bool gradient, int64_t format, int64_t rows, int64_t columns,
                                       bool power_of_two, bool need_sums, bool sums_fp32);

// What the op was asked for.
struct Fp8HiddenOptions {
  int64_t activation, format, rows, columns, hidden;  // scalings as codes of fp8_quantize
  bool power_of_two, need_sums, sums_fp32;
};

namespace cpu {

// Two tensors behind each other along a dimension: the first `keep` of one, then the other up to
// `size`, with `padding` behind it.
inline Tensor joined(Tensor first, Tensor second, int64_t dim, int64_t keep, int64_t size,
                     double padding = 0) {
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < first.dim(); ++i) sizes.push_back(i == dim ? size : first.size(i));
  Tensor whole = new_dense(first, sizes);
  if (keep == 0 || first.numel() == 0) return whole;
  Tensor place = torch::stable::narrow(whole, dim, 0, keep);
  torch::stable::copy_(place, torch::stable::narrow(first, dim, 0, keep));
  const int64_t rest = std::min(size - keep, second.size(dim));
  if (rest < size - keep) {
    place = torch::stable::narrow(whole, dim, keep + rest, size - keep - rest);
    torch::stable::fill_(place, padding);
  }
  place = torch::stable::narrow(whole, dim, keep, rest);
  torch::stable::copy_(place, torch::stable::narrow(second, dim, 0, rest));
  return whole;
}

// Quantises the gradients of gate and up of a gated MLP beside each other.
inline Fp8Quantized both_grads(Fp8QuantizeFn quantize, const Tensor& dh, const Tensor& gate,
                               const Tensor& up, const Fp8HiddenOptions& o) {
  Tensor saved = gate;
  if (saved_for_backward(Activation{o.activation}) == Saved::kOutput) {
    const std::optional<Tensor> none;
    saved = call("fusedops::scale_bias_act", "", gate, none, none, o.activation);
  }
  const auto [q, scale, q_t, scale_t, sums] =
      quantize(dh, saved, up, o.activation, true, o.format, o.rows, o.columns, o.power_of_two,
               o.need_sums, o.sums_fp32);
  const auto [q2, scale2, q_t2, scale_t2, sums2] =
      quantize(gate, std::nullopt, dh, o.activation, false, o.format, o.rows, o.columns,
               o.power_of_two, o.need_sums, o.sums_fp32);
  const int64_t k = dh.size(1), blocks = scale.size(0);
  const int64_t lines = o.columns == 0 ? 0 : k;
  const float zeros = kFp8SmallestMaximum / largest_value(static_cast<Fp8Format>(o.format));
  return {joined(q, q2, 1, q.size(1), 2 * q.size(1)), joined(scale, scale2, 0, blocks, 2 * blocks),
          joined(q_t, q_t2, 0, q_t.size(0), 2 * q_t.size(0)),
          joined(scale_t, scale_t2, 1, lines, round_up(2 * lines, kFp8ScaleRows),
                 o.power_of_two ? next_power_of_two(zeros) : zeros),
          joined(sums, sums2, 0, sums.size(0), 2 * sums.size(0))};
}

inline Fp8HiddenGrads compose_hidden_grads(Fp8QuantizeFn quantize, const Tensor& dh,
                                           const Tensor& saved, const std::optional<Tensor>& factor,
                                           const Fp8HiddenOptions& o) {
  const Saved kind = saved_for_backward(Activation{o.activation});
  const int64_t late = factor || kind == Saved::kPreact ? o.activation : 0;
  const auto [none, none_too, h_t, h_scale, no_sums] = quantize(
      saved, std::nullopt, factor, late, false, 0, 0, o.hidden, o.power_of_two, false, false);
  std::optional<Tensor> of_act;
  if (kind != Saved::kNothing) of_act = saved;
  const auto [q, scale, q_t, scale_t, sums] =
      factor ? both_grads(quantize, dh, saved, *factor, o)
             : quantize(dh, of_act, std::nullopt, o.activation, true, o.format, o.rows, o.columns,
                        o.power_of_two, o.need_sums, o.sums_fp32);
  return {q, scale, q_t, scale_t, h_t, h_scale, sums};
}

}  // namespace cpu
}  // namespace fusedops
