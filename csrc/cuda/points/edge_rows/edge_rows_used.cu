// edge_rows_used on CUDA.
#include <torch/csrc/stable/library.h>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/host/launch.h"
#include "csrc/cuda/points/edge_rows/edge_rows_check.h"
#include "csrc/cuda/points/edge_rows/row_walk.cuh"
#include "csrc/cuda/points/edges/edge_tensors.h"

namespace fusedops::cuda {
namespace {

struct UsedRows {
  const uint4 *x, *dout;  // (rows, x_pieces), (rows, dout_pieces) of 16 bytes
  uint4* out;             // like x
  int64_t rows;
  int x_pieces, dout_pieces;
};

// Whether a half of a word is not a zero of either sign.
__device__ __forceinline__ bool is_used(uint32_t word) { return (word & 0x7fff7fffu) != 0; }

// A warp has a row.
__global__ void __launch_bounds__(kRowThreads)
    edge_rows_used_kernel(const __grid_constant__ UsedRows p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = (int64_t{blockIdx.x} * kRowThreads + threadIdx.x) / 32;
  if (row >= p.rows) return;
  bool own = false;
  for (int i = lane; i < p.dout_pieces; i += 32) {
    const uint4 piece = p.dout[row * p.dout_pieces + i];
    own = own || is_used(piece.x) || is_used(piece.y) || is_used(piece.z) || is_used(piece.w);
  }
  const bool used = __ballot_sync(~0u, own) != 0;
  for (int i = lane; i < p.x_pieces; i += 32) {
    const int64_t at = row * p.x_pieces + i;
    p.out[at] = used ? p.x[at] : uint4{};
  }
}

Tensor edge_rows_used(const Tensor& x_,       // (R, F)
                      const Tensor& dout_) {  // (R, C)
  constexpr const char* kOp = "edge_rows_used";
  // Guard
  const LaunchScope scope(kOp, x_);

  // Checks
  const RowShape shape = check_edge_rows(kOp, "x", x_),
                 of_dout = check_edge_rows(kOp, "dout", dout_);
  const Tensor x =
      *check_edge_tensor(kOp, "x", x_, x_, x_.scalar_type(), {shape.rows, shape.channels});
  const Tensor dout =
      *check_edge_tensor(kOp, "dout", dout_, x_, x_.scalar_type(), {shape.rows, of_dout.channels});

  // Allocate
  const Tensor out = new_dense(x, {shape.rows, shape.channels});

  // Launch
  const UsedRows p{.x = static_cast<const uint4*>(x.const_data_ptr()),
                   .dout = static_cast<const uint4*>(dout.const_data_ptr()),
                   .out = write<uint4>(out),
                   .rows = shape.rows,
                   .x_pieces = static_cast<int>(shape.channels / kRowVec),
                   .dout_pieces = static_cast<int>(of_dout.channels / kRowVec)};
  const auto blocks = static_cast<unsigned>(ceil_div(shape.rows, int64_t{kRowThreads / 32}));
  edge_rows_used_kernel<<<blocks, kRowThreads, 0, scope.stream()>>>(p);

  // Launch check
  check_launch(kOp);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("edge_rows_used", FUSEDOPS_BOX(&edge_rows_used));
}

}  // namespace fusedops::cuda
