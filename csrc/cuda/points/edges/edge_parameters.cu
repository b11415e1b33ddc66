// The parameters of an edge MLP as its passes read them: padded, in one piece, norms as scale and
// shift; one launch for all layers.
#include <torch/csrc/stable/library.h>

#include <array>
#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/device/vec.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/common/host/launch.h"
#include "csrc/common/int_math.h"
#include "csrc/cuda/points/edges/edge_check.h"
#include "csrc/cuda/points/edges/edge_problem.h"
#include "csrc/cuda/points/edges/edge_tensors.h"

namespace fusedops::cuda {
namespace {

constexpr int kLayers = 4, kThreads = 256;

template <class T>
struct Matrix {
  const T* data;
  int rows, columns;
  int64_t row_stride, column_stride;

  // 0 outside.
  __device__ __forceinline__ T at(int row, int column) const {
    const bool inside = row < rows && column >= 0 && column < columns;
    return inside ? data[row * row_stride + column * column_stride] : from_compute<T>(0.f);
  }
};

struct Vector {
  const float* data;
  int count;

  __device__ __forceinline__ float at(int i, float otherwise) const {
    return i < count ? data[i] : otherwise;
  }
};

struct NormVectors {
  Vector gamma, beta, bias, mean, var;
  float eps;
};

template <class T>
struct Parameters {
  Matrix<T> offset, features;  // columns of W_1
  Matrix<T> weights[kLayers];  // the first one is not used
  NormVectors norms[kLayers];
  int widths[kLayers];
  int first_count, weight_count, channels;
  T* first_weight;  // [planes][widths[0]][kEdgePlane]
  T* flat;          // W_2, W_3, ...
  float2* affine;
};

template <class T>
__device__ T first_value(const Parameters<T>& p, int i) {
  const int row = i / kEdgePlane % p.widths[0], column = i % kEdgePlane;
  if (i >= p.widths[0] * kEdgePlane) return p.features.at(row, column);
  return column < 6 ? p.offset.at(row, column % 3) : p.features.at(row, column + 2);
}

// A thread has one value of one of the results.
template <class T>
__global__ void edge_parameters_kernel(const __grid_constant__ Parameters<T> p) {
  int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < p.first_count) {
    p.first_weight[i] = first_value(p, i);
    return;
  }
  i -= p.first_count;
  if (i < p.weight_count) {
    T* to = p.flat + i;
    for (int l = 1; l < kLayers; ++l) {
      const int size = p.widths[l] * p.widths[l - 1];
      if (i < size) {
        *to = p.weights[l].at(i / p.widths[l - 1], i % p.widths[l - 1]);
        return;
      }
      i -= size;
    }
    return;
  }
  i -= p.weight_count;
  if (i >= p.channels) return;
  float2* to = p.affine + i;
  for (int l = 0; l < kLayers; ++l) {
    if (i < p.widths[l]) {
      const bool hidden = l + 1 < kLayers && p.widths[l + 1] > 0;
      const int channels = l > 0 ? p.weights[l].rows : max(p.offset.rows, p.features.rows);
      if (hidden && channels > 0 && i >= channels) {
        *to = {kPaddingScale, 0.f};
        return;
      }
      const NormVectors& n = p.norms[l];
      // NOTE: + 0 makes 0 of the -0 that stands for padding.
      const float scale = n.gamma.at(i, 1.f) * __frsqrt_rn(n.var.at(i, 1.f) + n.eps) + 0.f;
      *to = {scale, fmaf(n.bias.at(i, 0.f) - n.mean.at(i, 0.f), scale, n.beta.at(i, 0.f))};
      return;
    }
    i -= p.widths[l];
  }
}

// Checks a vector in fp32 that is `width` long at most.
Vector vector_of(const char* op, const char* name, const OptionalTensor& tensor, const Tensor& like,
                 int64_t width) {
  if (!tensor) return {};
  FUSEDOPS_CHECK(tensor->dim() == 1 && tensor->size(0) <= width, op, ": ", name,
                 " must have shape (C,) with C up to ", width, "; got ", shape_string(*tensor));
  FUSEDOPS_CHECK(tensor->scalar_type() == ScalarType::Float && same_device(*tensor, like), op, ": ",
                 name, " must be float32 on ", device_string(like), "; got ",
                 dtype_name(tensor->scalar_type()), " on ", device_string(*tensor));
  FUSEDOPS_CHECK(tensor->is_contiguous(), op, ": ", name, " must be contiguous");
  return {static_cast<const float*>(tensor->const_data_ptr()), static_cast<int>(tensor->size(0))};
}

template <class T>
Matrix<T> matrix_of(const char* op, const char* name, const OptionalTensor& tensor,
                    const Tensor& like, int64_t width, int64_t columns) {
  if (!tensor) return {};
  FUSEDOPS_CHECK(tensor->dim() == 2 && tensor->size(0) <= width && tensor->size(1) <= columns, op,
                 ": ", name, " must have shape (O, I) with O up to ", width, " and I up to ",
                 columns, "; got ", shape_string(*tensor));
  FUSEDOPS_CHECK(tensor->scalar_type() == like.scalar_type() && same_device(*tensor, like), op,
                 ": ", name, " must be ", dtype_name(like.scalar_type()), " on ",
                 device_string(like), "; got ", dtype_name(tensor->scalar_type()), " on ",
                 device_string(*tensor));
  const auto strides = tensor->strides();
  return {static_cast<const T*>(tensor->const_data_ptr()), static_cast<int>(tensor->size(0)),
          static_cast<int>(tensor->size(1)), strides[0], strides[1]};
}

using Optional = OptionalTensor;

// What the op is given: W_x, W_f, W_2 to W_4; gamma, beta, bias, mean and variance of every layer.
struct Given {
  const Optional* matrices[kLayers + 1];
  const Optional* vectors[5][kLayers];
  std::array<int64_t, kLayers> widths;
  std::array<double, kLayers> eps;
  const Tensor& like;
  int64_t values = 0, channels = 0;  // of W_2 and on, of all layers

  int64_t planes() const { return *matrices[1] ? 2 : *matrices[0] ? 1 : 0; }

  void count_widths(const char* op) {
    for (int l = 0; l < kLayers; ++l) {
      FUSEDOPS_CHECK(widths[l] >= (l == 0) && widths[l] <= 1024, op,
                     ": widths must be from 1 to 1024, and 0 behind the last; got ", widths[l]);
      channels += widths[l];
      if (l > 0) values += widths[l] * widths[l - 1];
    }
  }
};

template <class T>
Parameters<T> parameters_of(const char* op, const Given& given) {
  constexpr const char* kMatrices[] = {"offset_weight", "feature_weight", "w2", "w3", "w4"};
  const auto matrix = [&](int i, int64_t rows, int64_t columns) {
    return matrix_of<T>(op, kMatrices[i], *given.matrices[i], given.like, rows, columns);
  };
  const auto& widths = given.widths;
  Parameters<T> p{};
  p.offset = matrix(0, widths[0], 3);
  p.features = matrix(1, widths[0], kEdgeMostFeatures);
  for (int l = 0; l < kLayers; ++l) {
    const auto vector = [&](const char* name, int kind) {
      return vector_of(op, name, *given.vectors[kind][l], given.like, widths[l]);
    };
    if (l > 0) p.weights[l] = matrix(l + 1, widths[l], widths[l - 1]);
    p.norms[l] = {vector("gamma", 0), vector("beta", 1), vector("bias", 2),
                  vector("mean", 3),  vector("var", 4),  static_cast<float>(given.eps[l])};
    p.widths[l] = static_cast<int>(widths[l]);
  }
  p.first_count = static_cast<int>(given.planes() * widths[0] * kEdgePlane);
  p.weight_count = static_cast<int>(given.values);
  p.channels = static_cast<int>(given.channels);
  return p;
}

std::tuple<Tensor, Tensor, Tensor> edge_parameters(
    const Optional& offset_weight, const Optional& feature_weight, const Optional& w2,
    const Optional& w3, const Optional& w4, const Optional& gamma1, const Optional& gamma2,
    const Optional& gamma3, const Optional& gamma4, const Optional& beta1, const Optional& beta2,
    const Optional& beta3, const Optional& beta4, const Optional& bias1, const Optional& bias2,
    const Optional& bias3, const Optional& bias4, const Optional& mean1, const Optional& mean2,
    const Optional& mean3, const Optional& mean4, const Optional& var1, const Optional& var2,
    const Optional& var3, const Optional& var4, int64_t c1, int64_t c2, int64_t c3, int64_t c4,
    double eps1, double eps2, double eps3, double eps4, const Tensor& like) {
  constexpr const char* kOp = "edge_parameters";
  // Guard
  const LaunchScope scope(kOp, like);

  // Checks
  Given given{{&offset_weight, &feature_weight, &w2, &w3, &w4},
              {{&gamma1, &gamma2, &gamma3, &gamma4},
               {&beta1, &beta2, &beta3, &beta4},
               {&bias1, &bias2, &bias3, &bias4},
               {&mean1, &mean2, &mean3, &mean4},
               {&var1, &var2, &var3, &var4}},
              {c1, c2, c3, c4},
              {eps1, eps2, eps3, eps4},
              like};
  given.count_widths(kOp);

  // Allocate
  const int64_t planes = given.planes();
  const ScalarType half = like.scalar_type();
  const Tensor first = new_dense(like, {planes, planes ? c1 : 0, kEdgePlane}, half);
  const Tensor flat = new_dense(like, {given.values}, half);
  const Tensor affine = new_dense(like, {given.channels, 2}, ScalarType::Float);

  // Config, launch
  dispatch_like(kOp, "like", like, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    Parameters<T> p = parameters_of<T>(kOp, given);
    p.first_weight = write<T>(first);
    p.flat = write<T>(flat);
    p.affine = write<float2>(affine);
    const int64_t count = p.first_count + given.values + given.channels;
    const auto blocks = static_cast<unsigned>(ceil_div(count, int64_t{kThreads}));
    edge_parameters_kernel<<<blocks, kThreads, 0, scope.stream()>>>(p);
  });

  // Launch check
  check_launch(kOp);
  return {first, flat, affine};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("edge_parameters", FUSEDOPS_BOX(&edge_parameters));
}

}  // namespace fusedops::cuda
