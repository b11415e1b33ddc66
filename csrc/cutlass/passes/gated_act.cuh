// The elementwise half of a gated MLP, one pass over memory each way: h = act(gate) * up, and from
// dh the gradients of gate and up with their column sums (the bias gradients, deterministic as in
// column_sums.cuh). Without `up` the forward is a plain activation.
#pragma once

#include "csrc/common/device/column_sums.cuh"
#include "csrc/common/device/value_and_slope.cuh"

namespace fusedops {

struct GatedActShape {
  int64_t rows, cols;
  int64_t gate_stride, up_stride;  // elements between rows; everything else is contiguous
};

// The part of the matrix that one thread walks: rows begin, begin + step, ... below end.
struct ThreadRows {
  int64_t col, begin, end, step;
};

template <int kVec>
__device__ __forceinline__ ThreadRows thread_rows(int64_t rows, int64_t rows_per_block,
                                                  int threads_x) {
  const int64_t first = int64_t{blockIdx.y} * rows_per_block;
  const int64_t last = first + rows_per_block;
  return {(int64_t{blockIdx.x} * threads_x + threadIdx.x % threads_x) * kVec,
          first + threadIdx.x / threads_x, last < rows ? last : rows, kColumnThreads / threads_x};
}

// Calls body(row, count) with count rows (row, row + step, ...) at a time: kUnroll, then single.
template <int kUnroll, class Body>
__device__ __forceinline__ void for_rows(const ThreadRows& rows, Body&& body) {
  int64_t row = rows.begin;
  for (; row + (kUnroll - 1) * rows.step < rows.end; row += kUnroll * rows.step) {
    body.template operator()<kUnroll>(row);
  }
  for (; row < rows.end; row += rows.step) body.template operator()<1>(row);
}

template <class T, int kVec, bool kGated>
__global__ void __launch_bounds__(kColumnThreads)
    gated_act_kernel(const T* gate, const T* up, T* h, GatedActShape shape, Activation activation,
                     int64_t rows_per_block, int threads_x) {
  using V = Vec<T, kVec>;
  wait_for_predecessor();
  const ThreadRows rows = thread_rows<kVec>(shape.rows, rows_per_block, threads_x);
  if (rows.col >= shape.cols) return;
  with_activation(activation, [&]<Activation kActivation>() {
    for_rows<kActivation == kAnyRare ? 1 : 4>(rows, [&]<int kRows>(int64_t row) {
      V g[kRows], u[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int64_t at = row + r * rows.step;
        g[r] = *reinterpret_cast<const V*>(gate + at * shape.gate_stride + rows.col);
        if constexpr (kGated) {
          u[r] = *reinterpret_cast<const V*>(up + at * shape.up_stride + rows.col);
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        V out;
        resolve_rare<kActivation>(activation, [&]<Activation kNow>() {
#pragma unroll
          for (int i = 0; i < kVec; ++i) {
            Compute<T> value = activate_as<kNow, kAccuracyOf<T>>(to_compute(g[r].value[i]));
            if constexpr (kGated) value *= to_compute(u[r].value[i]);
            out.value[i] = from_compute<T>(value);
          }
        });
        *reinterpret_cast<V*>(h + (row + r * rows.step) * shape.cols + rows.col) = out;
      }
    });
  });
}

// dh and h (or null: not wanted) are contiguous; dgate and dup have the strides of out_shape. An
// output may be an input of the same strides.
// partial: (row_blocks, 2 * cols), sums of dgate then of dup, or null when no bias gradient.
template <class T, int kVec>
__global__ void __launch_bounds__(kColumnThreads)
    gated_act_backward_kernel(const T* dh, const T* gate, const T* up, T* dgate, T* dup, T* h,
                              Compute<T>* partial, GatedActShape shape, GatedActShape out_shape,
                              Activation activation, int64_t rows_per_block, int threads_x) {
  using C = Compute<T>;
  using V = Vec<T, kVec>;
  __shared__ C shared[kColumnThreads * kVec];
  wait_for_predecessor();
  const ThreadRows rows = thread_rows<kVec>(shape.rows, rows_per_block, threads_x);
  C sum_gate[kVec] = {}, sum_up[kVec] = {};
  if (rows.col < shape.cols) {
    with_activation(activation, [&]<Activation kActivation>() {
      for_rows<kActivation == kAnyRare ? 1 : 2>(rows, [&]<int kRows>(int64_t row) {
        V grad[kRows], g[kRows], u[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const int64_t at = row + r * rows.step;
          grad[r] = *reinterpret_cast<const V*>(dh + at * shape.cols + rows.col);
          g[r] = *reinterpret_cast<const V*>(gate + at * shape.gate_stride + rows.col);
          u[r] = *reinterpret_cast<const V*>(up + at * shape.up_stride + rows.col);
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          V out_gate, out_up, out_h;
          resolve_rare<kActivation>(activation, [&]<Activation kNow>() {
#pragma unroll
            for (int i = 0; i < kVec; ++i) {
              const C dy = to_compute(grad[r].value[i]), up_value = to_compute(u[r].value[i]);
              const auto act = value_and_slope<kNow, kAccuracyOf<T>>(to_compute(g[r].value[i]));
              const C d_gate = times_slope<kNow>(dy * up_value, act.slope);
              const C d_up = dy * act.value;
              sum_gate[i] += d_gate;
              sum_up[i] += d_up;
              out_gate.value[i] = from_compute<T>(d_gate);
              out_up.value[i] = from_compute<T>(d_up);
              out_h.value[i] = from_compute<T>(act.value * up_value);
            }
          });
          const int64_t at = row + r * rows.step;
          *reinterpret_cast<V*>(dgate + at * out_shape.gate_stride + rows.col) = out_gate;
          *reinterpret_cast<V*>(dup + at * out_shape.up_stride + rows.col) = out_up;
          if (h != nullptr) *reinterpret_cast<V*>(h + at * shape.cols + rows.col) = out_h;
        }
      });
    });
  }
  if (partial == nullptr) return;
  C* sums = partial + blockIdx.y * 2 * shape.cols;
  block_column_sums(sum_gate, shared, sums, shape.cols, threads_x);
  __syncthreads();
  block_column_sums(sum_up, shared, sums + shape.cols, shape.cols, threads_x);
}

}  // namespace fusedops
