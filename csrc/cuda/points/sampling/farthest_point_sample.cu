// Furthest point sampling on CUDA.
#include <torch/csrc/stable/library.h>

#include "csrc/common/checks/fps_check.h"
#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/host/launch.h"
#include "csrc/cuda/points/sampling/fps_plan.cuh"

namespace fusedops::cuda {
namespace {

using fps::GridRecord;
using fps::Plan;
using fps::Problem;

// Uninitialised bytes on the device of `like`.
Tensor workspace(const Tensor& like, size_t bytes) {
  return new_dense(like, {static_cast<int64_t>(bytes)}, ScalarType::Byte);
}

template <class T>
void sample_stream(const Problem& problem, const Plan& plan, GridRecord* records,
                   const Tensor& points, cudaStream_t stream) {
  const int64_t values = fps::workspace_values(problem, plan);
  const Tensor laid_out = workspace(points, sizeof(T) * static_cast<size_t>(values));
  fps::launch_stream(problem, plan, records, static_cast<T*>(laid_out.mutable_data_ptr()), stream);
}

Tensor farthest_point_sample(const Tensor& points,                      // (B, N, D) or (P, D)
                             const std::optional<Tensor>& lengths,      // (B,)
                             const std::optional<Tensor>& offsets,      // (B + 1,)
                             const std::optional<Tensor>& start,        // (B,)
                             const std::optional<Tensor>& out_offsets,  // (B + 1,)
                             int64_t n, int64_t max_length) {
  // Guard
  const LaunchScope scope("farthest_point_sample", points);

  // Contract, checks
  fps::Arguments arguments =
      fps::check_arguments(points, lengths, offsets, start, out_offsets, n, max_length);
  Problem& problem = arguments.problem;

  // Allocate
  const int64_t count = problem.clouds.count;
  const Tensor out = out_offsets ? new_dense(points, {n}, ScalarType::Long)
                                 : new_dense(points, {count, n}, ScalarType::Long);
  problem.out = static_cast<int64_t*>(out.mutable_data_ptr());

  // Empty early return
  if (out.numel() == 0) return out;
  if (out_offsets || count == 0) {  // -1 where no cloud's part reaches
    cudaMemsetAsync(problem.out, 0xff, sizeof(int64_t) * out.numel(), scope.stream());
  }
  if (count == 0) return out;

  // The first sample is the start, whatever the points are.
  if (n == 1 && !out_offsets) {
    fps::launch_first(problem, scope.stream());
    check_launch("farthest_point_sample");
    return out;
  }

  // Config
  const Plan plan = fps::make_plan(problem, scope.device(), scope.facts().sm_count,
                                   scope.facts().code_version >= 90);

  // Allocate
  const size_t record_bytes = sizeof(GridRecord) * fps::record_count(plan);
  const Tensor record_memory = workspace(points, record_bytes);
  auto* records = static_cast<GridRecord*>(record_memory.mutable_data_ptr());
  if (record_bytes > 0) cudaMemsetAsync(records, 0, record_bytes, scope.stream());

  // Launch
  if (plan.points > 0) {
    fps::launch_resident(problem, plan, records, scope.stream());
  } else if (problem.dtype == DType::kFloat64) {
    sample_stream<double>(problem, plan, records, points, scope.stream());
  } else {
    sample_stream<float>(problem, plan, records, points, scope.stream());
  }

  // Launch check
  check_launch("farthest_point_sample");
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("farthest_point_sample", FUSEDOPS_BOX(&farthest_point_sample));
}

}  // namespace fusedops::cuda
