// Grouping and interpolation on the CPU.
#include <algorithm>
#include <tuple>
#include <vector>

#include "csrc/common/checks/group_check.h"
#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/dispatch.h"
#include "csrc/common/host/aten.h"
#include "csrc/cpu/pointwise.h"

namespace fusedops::cpu {
namespace {

const int64_t* indices(const Tensor& tensor) {
  return static_cast<const int64_t*>(tensor.const_data_ptr());
}

// Reads value i of a tensor of any floating dtype in C.
template <class C>
struct Reader {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;

  C operator[](int64_t i) const {
    switch (dtype) {
      case DType::kFloat16: return static_cast<C>(static_cast<const c10::Half*>(data)[i]);
      case DType::kBFloat16: return static_cast<C>(static_cast<const c10::BFloat16*>(data)[i]);
      case DType::kFloat32: return static_cast<C>(static_cast<const float*>(data)[i]);
      default: return static_cast<C>(static_cast<const double*>(data)[i]);
    }
  }
};

template <DType D>
void group_rows(const GroupArguments& a, Tensor& out) {
  using T = Storage<D>;
  using C = Compute<D>;
  const T* features = a.features ? data<D>(*a.features) : nullptr;
  const Reader<C> points{a.points ? a.points->const_data_ptr() : nullptr, a.point_dtype};
  const Reader<C> centers{a.centers ? a.centers->const_data_ptr() : nullptr, a.point_dtype};
  const int64_t width = a.dim + a.channels, entries = a.groups * a.neighbours;
  const int64_t* idx = indices(a.idx);
  T* result = mutable_data<D>(out);
  const int64_t grain = std::max<int64_t>(kGrain / std::max<int64_t>(width, 1), 1);
  torch::stable::parallel_for(0, a.clouds * entries, grain, [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) {
      T* row = result + e * width;
      if (idx[e] < 0 || idx[e] >= a.rows) {
        std::fill(row, row + width, T(0));
        continue;
      }
      const int64_t source = e / entries * a.rows + idx[e];
      for (int64_t d = 0; d < a.dim; ++d) {
        const C x = points[source * a.dim + d];
        row[d] = static_cast<T>(a.centers ? x - centers[e / a.neighbours * a.dim + d] : x);
      }
      if (a.channels > 0) std::copy_n(features + source * a.channels, a.channels, row + a.dim);
    }
  });
}

Tensor group(const std::optional<Tensor>& features,   // (B, N, C)
             const Tensor& idx,                       // (B, M, K)
             const std::optional<Tensor>& points,     // (B, N, D)
             const std::optional<Tensor>& centers) {  // (B, M, D)
  // Checks
  const NoGradGuard no_grad;
  const GroupArguments a = check_group(features, idx, points, centers);

  // Allocate
  Tensor out = torch::stable::empty({a.clouds, a.groups, a.neighbours, a.dim + a.channels},
                                    scalar_type_of(a.dtype));

  // Launch
  if (out.numel() > 0) dispatch_dtype(a.dtype, [&]<DType D>(Tag<D>) { group_rows<D>(a, out); });
  return out;
}

// As csrc/cuda/points/grouping/scatter_rows.h: sums by destination, in the order of the entries.
struct Scatter {
  const Tensor& rows;  // contiguous
  int64_t pitch, first, count, per_row;
  const Tensor& idx;  // contiguous
  const void* weights;
  DType weight_dtype;
  int64_t n;
};

// Threads share clouds and blocks of channels: nobody adds to another's sums.
template <DType D, class Out>
void scatter_rows(const Scatter& s, Out* out) {
  using C = Compute<D>;
  constexpr int64_t kChannels = 64;
  const int64_t clouds = s.idx.size(0);
  const int64_t blocks = (s.count + kChannels - 1) / kChannels;
  const int64_t entries = clouds > 0 ? s.idx.numel() / clouds : 0;
  const int64_t* idx = indices(s.idx);
  const Storage<D>* rows = data<D>(s.rows);
  const Reader<C> weights{s.weights, s.weight_dtype};
  torch::stable::parallel_for(0, clouds * blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t b = task / blocks, from = task % blocks * kChannels;
      const int64_t width = std::min(kChannels, s.count - from);
      std::vector<C> sum(s.n * width);
      for (int64_t e = b * entries; e < (b + 1) * entries; ++e) {
        if (idx[e] < 0 || idx[e] >= s.n) continue;
        const Storage<D>* row = rows + e / s.per_row * s.pitch + s.first + from;
        const C weight = s.weights ? weights[e] : C(1);
        for (int64_t c = 0; c < width; ++c) {
          sum[idx[e] * width + c] += weight * static_cast<C>(row[c]);
        }
      }
      for (int64_t i = 0; i < s.n; ++i) {
        for (int64_t c = 0; c < width; ++c) {
          out[(b * s.n + i) * s.count + from + c] = static_cast<Out>(sum[i * width + c]);
        }
      }
    }
  });
}

Tensor group_backward(const Tensor& dout,  // (B, M, K, C)
                      const Tensor& idx,   // (B, M, K)
                      int64_t n, int64_t first, int64_t count, bool fp32) {
  // Checks
  const NoGradGuard no_grad;
  const DType dtype = check_group_backward(dout, idx, n, first, count);

  // Allocate
  const bool wide = fp32 && dtype != DType::kFloat64;
  Tensor out =
      torch::stable::empty({idx.size(0), n, count}, wide ? ScalarType::Float : dout.scalar_type());

  // Launch
  const Tensor rows = dense(dout), places = dense(idx);
  const Scatter scatter{rows, dout.size(3), first, count, 1, places, nullptr, dtype, n};
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    if (wide) {
      scatter_rows<D>(scatter, static_cast<float*>(out.mutable_data_ptr()));
    } else {
      scatter_rows<D>(scatter, mutable_data<D>(out));
    }
  });
  return out;
}

template <DType D>
void interpolate_rows(const InterpolateArguments& a, Tensor& out) {
  using C = Compute<D>;
  const Storage<D>* features = data<D>(a.features);
  const Reader<C> weights{a.weights.const_data_ptr(), a.weight_dtype};
  const int64_t* idx = indices(a.idx);
  Storage<D>* result = mutable_data<D>(out);
  const int64_t work = std::max<int64_t>(a.channels * a.neighbours, 1);
  torch::stable::parallel_for(
      0, a.clouds * a.queries, std::max<int64_t>(kGrain / work, 1),
      [&](int64_t begin, int64_t end) {
        std::vector<C> sum(a.channels);
        for (int64_t m = begin; m < end; ++m) {
          std::fill(sum.begin(), sum.end(), C(0));
          for (int64_t e = m * a.neighbours; e < (m + 1) * a.neighbours; ++e) {
            if (idx[e] < 0 || idx[e] >= a.rows) continue;
            const C weight = weights[e];
            const auto* row = features + (m / a.queries * a.rows + idx[e]) * a.channels;
            for (int64_t c = 0; c < a.channels; ++c) sum[c] += weight * static_cast<C>(row[c]);
          }
          for (int64_t c = 0; c < a.channels; ++c) {
            result[m * a.channels + c] = static_cast<Storage<D>>(sum[c]);
          }
        }
      });
}

Tensor interpolate(const Tensor& features,   // (B, N, C)
                   const Tensor& idx,        // (B, M, K)
                   const Tensor& weights) {  // (B, M, K)
  // Checks
  const NoGradGuard no_grad;
  const InterpolateArguments a = check_interpolate("interpolate", features, idx, weights);

  // Allocate
  Tensor out = torch::stable::empty({a.clouds, a.queries, a.channels}, scalar_type_of(a.dtype));

  // Launch
  dispatch_dtype(a.dtype, [&]<DType D>(Tag<D>) { interpolate_rows<D>(a, out); });
  return out;
}

template <DType D, class Weight>
void dweights_rows(const InterpolateArguments& a, const Tensor& dout, Weight* dweights) {
  using C = Compute<D>;
  const Storage<D>*features = data<D>(a.features), *gradient = data<D>(dout);
  const int64_t* idx = indices(a.idx);
  const int64_t grain = std::max<int64_t>(kGrain / std::max<int64_t>(a.channels, 1), 1);
  torch::stable::parallel_for(0, a.idx.numel(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) {
      C sum = 0;
      if (idx[e] >= 0 && idx[e] < a.rows) {
        const int64_t m = e / a.neighbours;
        const auto* row = features + (m / a.queries * a.rows + idx[e]) * a.channels;
        const auto* dy = gradient + m * a.channels;
        for (int64_t c = 0; c < a.channels; ++c) {
          sum += static_cast<C>(row[c]) * static_cast<C>(dy[c]);
        }
      }
      dweights[e] = static_cast<Weight>(sum);
    }
  });
}

std::tuple<Tensor, Tensor> interpolate_backward(const Tensor& dout,      // (B, M, C)
                                                const Tensor& features,  // (B, N, C)
                                                const Tensor& idx,       // (B, M, K)
                                                const Tensor& weights,   // (B, M, K)
                                                bool need_dfeatures, bool need_dweights) {
  // Checks
  const NoGradGuard no_grad;
  const InterpolateArguments a = check_interpolate_backward(dout, features, idx, weights);
  const Tensor rows = dense(dout);

  // Allocate
  const auto shaped = [](bool needed, int64_t i, int64_t j, int64_t k, ScalarType type) {
    return needed ? torch::stable::empty({i, j, k}, type) : torch::stable::empty({0}, type);
  };
  Tensor dfeatures = shaped(need_dfeatures, a.clouds, a.rows, a.channels, features.scalar_type());
  Tensor dweights = shaped(need_dweights, a.clouds, a.queries, a.neighbours, weights.scalar_type());

  // Launch
  dispatch_dtype(a.dtype, [&]<DType D>(Tag<D>) {
    if (need_dfeatures) {
      const Scatter scatter{rows,
                            a.channels,
                            0,
                            a.channels,
                            std::max<int64_t>(a.neighbours, 1),
                            a.idx,
                            a.weights.const_data_ptr(),
                            a.weight_dtype,
                            a.rows};
      scatter_rows<D>(scatter, mutable_data<D>(dfeatures));
    }
    if (need_dweights && a.weight_dtype == D) {
      dweights_rows<D>(a, rows, mutable_data<D>(dweights));
    } else if (need_dweights) {
      dweights_rows<D>(a, rows, static_cast<float*>(dweights.mutable_data_ptr()));
    }
  });
  return {dfeatures, dweights};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CPU, m) {
  m.impl("group", FUSEDOPS_BOX(&group));
  m.impl("group_backward", FUSEDOPS_BOX(&group_backward));
  m.impl("interpolate", FUSEDOPS_BOX(&interpolate));
  m.impl("interpolate_backward", FUSEDOPS_BOX(&interpolate_backward));
}

}  // namespace fusedops::cpu
