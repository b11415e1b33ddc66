// dz = dy * act'(saved) and the bias gradient sum_rows(dz) in one pass over memory.
// The bias gradient is deterministic (column_sums.cuh): fp64 sums in fp64, every other dtype in
// fp32, from dz before it is rounded.
#pragma once

#include "csrc/common/device/activation_gradient.cuh"
#include "csrc/common/device/column_sums.cuh"

namespace fusedops {

struct ActBackwardShape {
  int64_t rows, cols;
  int64_t dy_stride, saved_stride;  // elements between rows; dz is contiguous
};

// The rows that one thread has in flight, and what becomes of them.
template <class T, int kVec, bool kWriteDz, Activation kActivation>
struct ActBackwardRows {
  using C = Compute<T>;
  using V = Vec<T, kVec>;
  static constexpr bool kReadSaved = saved_for_backward(kActivation) != Saved::kNothing;
  V dy[kColumnUnroll], saved[kColumnUnroll];

  __device__ __forceinline__ void load(int u, const T* dy_row, const T* saved_row) {
    dy[u] = *reinterpret_cast<const V*>(dy_row);
    if constexpr (kReadSaved) saved[u] = *reinterpret_cast<const V*>(saved_row);
  }

  __device__ __forceinline__ void finish(int u, T* dz_row, C (&sum)[kVec],
                                         Activation activation) const {
    V out;
    resolve_rare<kActivation>(activation, [&]<Activation kNow>() {
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        C z = to_compute(dy[u].value[i]);
        if constexpr (kReadSaved) {
          z = activation_gradient_as<kNow, kAccuracyOf<T>>(z, to_compute(saved[u].value[i]));
        }
        sum[i] += z;
        out.value[i] = from_compute<T>(z);
      }
    });
    if constexpr (kWriteDz) *reinterpret_cast<V*>(dz_row) = out;
  }
};

// kWriteDz = false: only the column sums (activation none). partial: (row_blocks, cols) or null
// when no bias gradient.
template <class T, int kVec, bool kWriteDz, Activation kActivation>
__global__ void __launch_bounds__(kColumnThreads)
    act_backward_kernel(const T* dy, const T* saved, T* dz, Compute<T>* partial,
                        ActBackwardShape shape, int64_t rows_per_block, int threads_x,
                        Activation activation) {
  using C = Compute<T>;
  __shared__ C shared[kColumnThreads * kVec];
  wait_for_predecessor();
  const int tx = threadIdx.x % threads_x;
  const int ty = threadIdx.x / threads_x;
  const int threads_y = kColumnThreads / threads_x;
  const int64_t col = (int64_t{blockIdx.x} * threads_x + tx) * kVec;
  const int64_t row_begin = int64_t{blockIdx.y} * rows_per_block;
  const int64_t row_end =
      row_begin + rows_per_block < shape.rows ? row_begin + rows_per_block : shape.rows;

  C sum[kVec] = {};
  if (col < shape.cols) {
    const int64_t step = int64_t{threads_y} * kColumnUnroll;
    ActBackwardRows<T, kVec, kWriteDz, kActivation> rows;
    int64_t row = row_begin + ty;
    for (; row + step - threads_y < row_end; row += step) {
#pragma unroll
      for (int u = 0; u < kColumnUnroll; ++u) {
        const int64_t r = row + int64_t{u} * threads_y;
        rows.load(u, dy + r * shape.dy_stride + col, saved + r * shape.saved_stride + col);
      }
#pragma unroll
      for (int u = 0; u < kColumnUnroll; ++u) {
        rows.finish(u, dz + (row + int64_t{u} * threads_y) * shape.cols + col, sum, activation);
      }
    }
    for (; row < row_end; row += threads_y) {
      rows.load(0, dy + row * shape.dy_stride + col, saved + row * shape.saved_stride + col);
      rows.finish(0, dz + row * shape.cols + col, sum, activation);
    }
  }
  if (partial == nullptr) return;

  block_column_sums(sum, shared, partial + blockIdx.y * shape.cols, shape.cols, threads_x);
}

}  // namespace fusedops
