#include "csrc/bindings/module_reduce.h"

#include <pybind11/stl.h>

#include <vector>

#include "csrc/cuda/reduce/reduce_plan.h"

namespace py = pybind11;
using namespace py::literals;

namespace fusedops {
namespace {

py::dict describe(const ReducePlan& plan) {
  py::list batch;
  for (int i = 0; i < plan.num_batch; ++i) {
    const ReduceBatch& dim = plan.batch[i];
    batch.append(py::make_tuple(dim.size, dim.stride, dim.slot, dim.index));
  }
  return py::dict("kernel"_a = reduce_kernel_name(plan.kernel), "copy"_a = plan.copy,
                  "reduced"_a = plan.reduced, "reduced_stride"_a = plan.reduced_stride,
                  "index_step"_a = plan.index_step, "cols"_a = plan.cols,
                  "col_stride"_a = plan.col_stride, "col_out"_a = plan.col_out,
                  "fold"_a = plan.fold, "batch"_a = batch, "batches"_a = plan.batches,
                  "outputs"_a = plan.outputs, "splits"_a = plan.splits, "chunk"_a = plan.chunk,
                  "parts"_a = plan.parts, "blocks"_a = plan.blocks, "tile_rows"_a = plan.tile_rows,
                  "per_lane"_a = plan.per_lane, "active"_a = plan.active, "span"_a = plan.span,
                  "threads"_a = py::make_tuple(plan.threads_x, plan.threads_y, plan.threads_b));
}

py::dict reduce_plan(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                     const std::vector<bool>& reduced, int element_bytes, int64_t alignment,
                     bool indexed, int sm_count) {
  if (sizes.size() != strides.size() || sizes.size() != reduced.size()) {
    throw py::value_error("reduce_plan: sizes, strides and reduced must have the same length");
  }
  ReduceProblem problem;
  problem.element_bytes = element_bytes;
  problem.alignment = alignment;
  for (size_t i = sizes.size(); i-- > 0;) {
    problem.add_outer(sizes[i], strides[i], reduced[i], indexed);
  }
  return describe(plan_reduce(problem, sm_count));
}

}  // namespace

void bind_reduce(py::module_& m) {
  m.def("reduce_plan", &reduce_plan, "sizes"_a, "strides"_a, "reduced"_a, py::kw_only(),
        "element_bytes"_a = 2, "alignment"_a = 0, "indexed"_a = false, "sm_count"_a = 132,
        "How a reduction of such a tensor runs on CUDA: kernel, threads, splits. strides in "
        "elements, alignment in bytes modulo 16; indexed: as argmax.");
}

}  // namespace fusedops
