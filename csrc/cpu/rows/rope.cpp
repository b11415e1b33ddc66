// rope on the CPU.
#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/checks/rope_check.h"
#include "csrc/cpu/rows.h"

namespace fusedops::cpu {
namespace {

template <typename T, typename C, typename S>
struct Rope {
  RopeShape shape;
  const S* cos;
  const S* sin;
  std::array<int64_t, 2> cos_strides, sin_strides;
  bool interleaved;
  bool inverse;

  void row(const T* in, const S* cos_row, const S* sin_row, T* out) const {
    const int64_t half = shape.rotary / 2;
    for (int64_t i = 0; i < half; ++i) {
      const int64_t a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : half + i;
      const int64_t first = i * shape.column_step, second = first + shape.second_column;
      const C sin_a = static_cast<C>(sin_row[first]), sin_b = static_cast<C>(sin_row[second]);
      const C x = static_cast<C>(in[a]), y = static_cast<C>(in[b]);
      const C from_b = inverse ? -sin_b : sin_a, from_a = inverse ? -sin_a : sin_b;
      out[a] = static_cast<T>(x * static_cast<C>(cos_row[first]) - y * from_b);
      out[b] = static_cast<T>(y * static_cast<C>(cos_row[second]) + x * from_a);
    }
    std::copy(in + shape.rotary, in + shape.d, out + shape.rotary);
  }

  void rotate(const Tensor& x, const Tensor& result, int64_t heads) const {
    const RopeStrides from = rope_strides(x, shape.heads_dim);
    const RopeStrides to = rope_strides(result, shape.heads_dim);
    const T* in = static_cast<const T*>(x.const_data_ptr());
    T* out = static_cast<T*>(result.mutable_data_ptr());
    for_rows(shape.batch * shape.time, heads * shape.d, [&](int64_t token) {
      const int64_t b = token / shape.time, t = token % shape.time;
      for (int64_t h = 0; h < heads; ++h) {
        row(in + b * from.batch + t * from.time + h * from.heads,
            cos + b * cos_strides[0] + t * cos_strides[1],
            sin + b * sin_strides[0] + t * sin_strides[1],
            out + b * to.batch + t * to.time + h * to.heads);
      }
    });
  }
};

std::tuple<Tensor, Tensor> rope(const Tensor& q,                 // (B, H, T, D) or (B, T, H, D)
                                const std::optional<Tensor>& k,  // the same, with its own heads
                                const Tensor& cos,               // (T, W) or (B, T, W)
                                const Tensor& sin,               // like cos
                                int64_t heads_dim, int64_t rotary_dim, bool interleaved,
                                bool inverse) {
  // Checks
  const RopeShape shape = check_rope("rope", q, k, cos, sin, heads_dim, rotary_dim, interleaved);

  // Allocate
  const NoGradGuard no_grad;
  const Tensor q_out = rope_result(q, heads_dim);
  const Tensor k_out = k ? rope_result(*k, heads_dim) : torch::stable::empty({0}, q.scalar_type());

  // Launch
  const Tensor cos_rows = with_contiguous_rows(cos), sin_rows = with_contiguous_rows(sin);
  dispatch_dtype(shape.dtype, [&]<DType D>(Tag<D>) {
    const auto run = [&](const auto* cos_data, const auto* sin_data) {
      using S = std::remove_cvref_t<decltype(*cos_data)>;
      using C = Compute<D>;
      const Rope<Storage<D>, C, S> op{
          shape,       cos_data, sin_data, table_strides(cos_rows), table_strides(sin_rows),
          interleaved, inverse};
      if (q.numel() > 0) op.rotate(with_contiguous_rows(q), q_out, shape.q_heads);
      if (k && k->numel() > 0) op.rotate(with_contiguous_rows(*k), k_out, shape.k_heads);
    };
    if (shape.fp32_tables) {
      run(data<DType::kFloat32>(cos_rows), data<DType::kFloat32>(sin_rows));
    } else {
      run(data<D>(cos_rows), data<D>(sin_rows));
    }
  });
  return {q_out, k_out};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) { m.impl("rope", FUSEDOPS_BOX(&rope)); }

}  // namespace fusedops::cpu
