// y = act(x * scale + bias) and its backward: functors for the elementwise engine and for the pass
// with column sums.
#pragma once

#include "csrc/common/device/activation_gradient.cuh"
#include "csrc/cuda/elementwise/column_pass.cuh"
#include "csrc/cuda/elementwise/elementwise.cuh"

namespace fusedops {

// Inputs x, scale, bias. NOTE: an absent scale reads as 1 and an absent bias as -0, which keeps
// every x, zeros of both signs too.
template <class T, Activation kActivation>
struct ScaleBiasActAs {
  static constexpr int kInputs = 3;
  Activation activation;  // read where kActivation is kAnyRare

  template <int kN>
  __device__ __forceinline__ Vec<T, kN> operator()(const Vec<T, kN> (&in)[kInputs], ChunkAt) const {
    Compute<T> y[kN];
    resolve_rare<kActivation>(activation, [&]<Activation kNow>() {
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        const Compute<T> z =
            to_compute(in[0].value[i]) * to_compute(in[1].value[i]) + to_compute(in[2].value[i]);
        y[i] = activate_as<kNow, kAccuracyOf<T>>(z);
      }
    });
    return rounded<T>(y);
  }
};

// The same with the activation chosen at run time.
template <class T>
struct ScaleBiasAct {
  static constexpr int kInputs = 3;
  static constexpr unsigned kPerColumn = 0b110;
  static constexpr bool kLight = true;
  Activation activation;

  template <int kN>
  __device__ __forceinline__ Vec<T, kN> operator()(const Vec<T, kN> (&in)[kInputs],
                                                   ChunkAt at) const {
    Vec<T, kN> y;
    resolve([&](const auto& op) { y = op(in, at); });
    return y;
  }
  // One switch for all chunks of a thread.
  template <class Use>
  __device__ __forceinline__ void resolve(Use&& use) const {
    with_activation(activation, [&]<Activation kActivation>() {
      use(ScaleBiasActAs<T, kActivation>{activation});
    });
  }
};

// Inputs dy, x; result dx = dz * scale; sums dscale = dz * x and dbias = dz, where
// dz = dy * act'(x * scale + bias).
template <class T>
struct ScaleBiasActBackward {
  static constexpr int kInputs = 2, kSums = 2;
  using C = Compute<T>;
  // NOTE: the coarse tanh of bf16 outputs is too coarse under 1 - y^2.
  static constexpr Accuracy kAccuracy = sizeof(T) > 2 ? Accuracy::kFloat32 : Accuracy::kFloat16;
  const T* scale;  // (cols,) or null
  const T* bias;   // (cols,) or null
  Activation activation;

  template <int kVec>
  struct Columns {
    C scale[kVec], bias[kVec];
  };

  template <int kVec>
  __device__ __forceinline__ Columns<kVec> load(int64_t col, int64_t period) const {
    Columns<kVec> columns;
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      int64_t at = col + i;
      if (at >= period) at = static_cast<uint32_t>(at) % static_cast<uint32_t>(period);
      columns.scale[i] = scale ? to_compute(scale[at]) : C(1);
      columns.bias[i] = bias ? to_compute(bias[at]) : C(0);
    }
    return columns;
  }

  template <int kVec>
  __device__ __forceinline__ Vec<T, kVec> apply(const Columns<kVec>& columns,
                                                const Vec<T, kVec> (&in)[kInputs], int64_t, int64_t,
                                                C (&sums)[kSums][kVec]) const {
    Vec<T, kVec> dx;
    with_activation(activation, [&]<Activation kActivation>() {
      C dz[kVec];
      resolve_rare<kActivation>(activation,
                                [&]<Activation kNow>() { gradients<kNow>(columns, in, dz); });
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        sums[0][i] += dz[i] * to_compute(in[1].value[i]);
        sums[1][i] += dz[i];
        dx.value[i] = from_compute<T>(dz[i] * columns.scale[i]);
      }
    });
    return dx;
  }

 private:
  template <Activation kActivation, int kVec>
  __device__ __forceinline__ static void gradients(const Columns<kVec>& columns,
                                                   const Vec<T, kVec> (&in)[kInputs],
                                                   C (&dz)[kVec]) {
    constexpr Saved kSaved = saved_for_backward(kActivation);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      C saved = to_compute(in[1].value[i]) * columns.scale[i] + columns.bias[i];
      if constexpr (kSaved == Saved::kOutput) saved = activate_as<kActivation, kAccuracy>(saved);
      dz[i] = activation_gradient_as<kActivation, kAccuracy>(to_compute(in[0].value[i]), saved);
    }
  }
};

}  // namespace fusedops
