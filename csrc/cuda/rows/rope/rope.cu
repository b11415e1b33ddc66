// rope on CUDA.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/checks/rope_check.h"
#include "csrc/common/dispatch.h"
#include "csrc/common/host/launch.h"
#include "csrc/cuda/rows/rope/rope.cuh"

namespace fusedops::cuda {
namespace {

void copy_strides(const Tensor& x, int64_t heads_dim, int64_t (&strides)[3]) {
  const RopeStrides found = rope_strides(x, heads_dim);
  strides[0] = found.batch;
  strides[1] = found.time;
  strides[2] = found.heads;
}

RopeRows rope_rows(const Tensor& x, const Tensor& out, int64_t heads_dim) {
  RopeRows rows;
  rows.in = x.const_data_ptr();
  rows.out = out.mutable_data_ptr();
  rows.heads = x.size(heads_dim);
  copy_strides(x, heads_dim, rows.in_strides);
  copy_strides(out, heads_dim, rows.out_strides);
  return rows;
}

RopeTable rope_table(const Tensor& table) {
  const auto [batch, time] = table_strides(table);
  return {table.const_data_ptr(), {batch, time}};
}

std::tuple<Tensor, Tensor> rope(const Tensor& q,                 // (B, H, T, D) or (B, T, H, D)
                                const std::optional<Tensor>& k,  // the same, with its own heads
                                const Tensor& cos,               // (T, W) or (B, T, W)
                                const Tensor& sin,               // like cos
                                int64_t heads_dim, int64_t rotary_dim, bool interleaved,
                                bool inverse) {
  constexpr const char* kOp = "rope";
  // Guard
  const LaunchScope scope(kOp, q);

  // Contract and checks
  const RopeShape shape = check_rope(kOp, q, k, cos, sin, heads_dim, rotary_dim, interleaved);
  const Tensor cos_rows = with_contiguous_rows(cos), sin_rows = with_contiguous_rows(sin);

  // Allocate
  const Tensor q_out = rope_result(q, heads_dim);
  const Tensor k_out = k ? rope_result(*k, heads_dim) : new_dense(q, {0});

  // Empty early return
  if (q.numel() == 0 && k_out.numel() == 0) return {q_out, k_out};

  // Config
  const Tensor q_rows = with_contiguous_rows(q);
  const Tensor k_rows = k ? with_contiguous_rows(*k) : k_out;
  RopeProblem problem;
  problem.q = rope_rows(q_rows, q_out, heads_dim);
  if (k) problem.k = rope_rows(k_rows, k_out, heads_dim);
  problem.cos = rope_table(cos_rows);
  problem.sin = rope_table(sin_rows);
  problem.tokens = shape.batch * shape.time;
  problem.time = shape.time;
  problem.d = shape.d;
  problem.rotary = shape.rotary;
  problem.column_step = shape.column_step;
  problem.second_column = shape.second_column;
  problem.fp32_tables = shape.fp32_tables;
  problem.interleaved = interleaved;
  problem.inverse = inverse;

  // Launch
  const DeviceFacts& facts = scope.facts();
  dispatch_dtype(shape.dtype, [&]<DType D>(Tag<D>) {
    launch_rope<DeviceType<D>>(problem, facts.sm_count, scope.stream(), facts.code_version >= 90);
  });

  // Launch check
  check_launch(kOp);
  return {q_out, k_out};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) { m.impl("rope", FUSEDOPS_BOX(&rope)); }

}  // namespace fusedops::cuda
