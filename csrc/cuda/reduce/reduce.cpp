// Reductions on CUDA: reduce, var_mean, extremum_count, bias_grad.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <array>
#include <tuple>
#include <vector>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/checks/reduce_check.h"
#include "csrc/common/host/launch.h"
#include "csrc/cuda/reduce/reduce_launch.h"

namespace fusedops::cuda {
namespace {

constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;  // of a grid

// The sign bit of every element in 8 bytes.
uint64_t sign_bits(Element element) {
  const int bits = 8 * element_bytes(element);
  uint64_t mask = 0;
  for (int end = bits; end <= 64; end += bits) mask |= uint64_t{1} << (end - 1);
  return mask;
}

struct Recipe {
  ReduceOp op;
  Element element;  // as the kernel reads it
  ReduceOptions options;
};

Recipe make_recipe(const ReduceShape& shape, bool wide) {
  Recipe recipe{
      ReduceOp::kSum, shape.element == Element::kBool ? Element::kUInt8 : shape.element, {}};
  ReduceOptions& options = recipe.options;
  options.wide = wide;
  const Reduction r = shape.reduction;
  switch (r) {
    case Reduction::kMean: options.scale = 1 / static_cast<double>(shape.count); break;
    case Reduction::kProd:
    case Reduction::kProdNonzero:
      recipe.op = ReduceOp::kProd;
      options.nonzero = r == Reduction::kProdNonzero;
      break;
    case Reduction::kNorm2:
      recipe.op = ReduceOp::kSumSquares;
      options.root = true;
      break;
    case Reduction::kAmax:
    case Reduction::kAmin:
    case Reduction::kNormInf:
    case Reduction::kNormMinusInf: recipe.op = ReduceOp::kExtremum; break;
    case Reduction::kLogsumexp: recipe.op = ReduceOp::kLogsumexp; break;
    case Reduction::kArgmax:
    case Reduction::kArgmin: recipe.op = ReduceOp::kArg; break;
    case Reduction::kAny:
    case Reduction::kAll:
    case Reduction::kCountNonzero: recipe.op = ReduceOp::kCount; break;
    default: break;
  }
  if (r == Reduction::kNorm1 || r == Reduction::kNormInf || r == Reduction::kNormMinusInf) {
    options.keep = ~sign_bits(shape.element);
  }
  if (r == Reduction::kAmin || r == Reduction::kArgmin || r == Reduction::kNormMinusInf) {
    options.flip = is_floating(shape.element) ? sign_bits(shape.element) : ~uint64_t{0};
  }
  if (recipe.op == ReduceOp::kCount) {
    constexpr Element kBySize[] = {Element::kUInt8, Element::kUInt8, Element::kInt16,
                                   Element::kInt32, Element::kInt32};
    const int bytes = element_bytes(shape.element);
    recipe.element = bytes == 8 ? Element::kInt64 : kBySize[bytes];
    if (is_floating(shape.element)) options.keep = ~sign_bits(shape.element);  // -0 is zero
    options.wide = r == Reduction::kCountNonzero;
    options.total = r == Reduction::kAll ? shape.count : 1;
  }
  return recipe;
}

// The dimensions of x with their strides in the result.
ReduceProblem make_problem(const Tensor& x, const ReduceShape& shape) {
  ReduceProblem problem;
  problem.element_bytes = element_bytes(shape.element);
  problem.alignment = reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16;
  const auto sizes = x.sizes(), strides = x.strides();
  for (size_t i = sizes.size(); i-- > 0;) {
    problem.add_outer(sizes[i], strides[i], shape.reduced[i], is_arg(shape.reduction));
  }
  return problem;
}

// A copy with the reduced dimensions last: (outputs, count).
Tensor as_rows(const Tensor& x, const ReduceShape& shape) {
  std::vector<int64_t> order;
  for (const bool reduced : {false, true}) {
    for (int64_t i = 0; i < x.dim(); ++i) {
      if (shape.reduced[i] == reduced) order.push_back(i);
    }
  }
  std::array<StableIValue, 2> stack{torch::stable::detail::from(x),
                                    torch::stable::detail::from(order)};
  TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::permute", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::reshape(torch::stable::detail::to<Tensor>(stack[0]),
                                {shape.outputs, shape.count});
}

void run(const char* op, const Tensor& x, const ReduceShape& shape, const Recipe& recipe,
         const Tensor& out, const Tensor* second) {
  // Guard
  const LaunchScope scope(op, x);

  // Config
  const int sm_count = scope.facts().sm_count;
  Tensor input = x;
  ReduceArgs args;
  args.plan = plan_reduce(make_problem(input, shape), sm_count);
  if (args.plan.copy) {
    input = as_rows(x, shape);
    ReduceShape rows = shape;
    rows.reduced = {false, true};
    args.plan = plan_reduce(make_problem(input, rows), sm_count);
  }
  FUSEDOPS_CHECK(args.plan.blocks <= kMostBlocks, op,
                 ": x must be a tensor that one launch can cover; got shape ", shape_string(x));

  // Allocate
  Tensor partial;
  if (args.plan.parts > 1) {
    const int64_t bytes =
        args.plan.parts * args.plan.outputs * reduce_acc_bytes(recipe.op, recipe.element);
    partial = new_dense(x, {bytes}, ScalarType::Byte);
    args.partial = partial.mutable_data_ptr();
  }

  // Launch
  args.x = input.const_data_ptr();
  args.out = out.mutable_data_ptr();
  args.second = second ? second->mutable_data_ptr() : nullptr;
  args.options = recipe.options;
  const char* refused = launch_reduce(recipe.op, recipe.element, args, scope.context());

  // Launch check
  FUSEDOPS_CHECK(refused == nullptr, op, ": CUDA error: ", refused);
  check_launch(op);
}

Tensor reduce(const Tensor& x,  // any shape
              int64_t reduction, int64_t dims, bool keepdim, bool wide) {
  // Checks
  const Reduction code = check_reduction("reduce", reduction);
  const char* op = kReductionNames[reduction];
  const ReduceShape shape = check_reduce(op, x, code, dims, keepdim, wide);

  // Allocate
  const Tensor out = new_dense(x, shape.sizes, shape.dtype);

  // Empty early return
  if (shape.outputs == 0) return out;
  if (shape.count == 0) return torch::stable::fill_(out, empty_value(code));

  run(op, x, shape, make_recipe(shape, wide), out, nullptr);
  return out;
}

std::tuple<Tensor, Tensor> var_mean(const Tensor& x,  // any shape
                                    int64_t dims, double correction, bool root, bool keepdim,
                                    bool wide) {
  // Checks
  const char* op = root ? "std" : "var";
  const ReduceShape shape = check_reduce(op, x, Reduction::kMean, dims, keepdim, wide);

  // Allocate
  const Tensor variance = new_dense(x, shape.sizes, shape.dtype);
  const Tensor mean = new_dense(x, shape.sizes, shape.dtype);

  // Empty early return
  if (shape.outputs == 0) return {variance, mean};
  if (shape.count == 0) {
    const double nan = empty_value(Reduction::kMean);
    return {torch::stable::fill_(variance, nan), torch::stable::fill_(mean, nan)};
  }

  Recipe recipe{ReduceOp::kMoments, shape.element, {}};
  recipe.options.scale = variance_scale(shape.count, correction);
  recipe.options.root = root;
  recipe.options.wide = wide;
  run(op, x, shape, recipe, variance, &mean);
  return {variance, mean};
}

std::tuple<Tensor, Tensor> extremum_count(const Tensor& x,  // any shape
                                          int64_t reduction, int64_t dims, bool keepdim) {
  // Checks
  const Reduction code = check_extremum(x, reduction);
  const ReduceShape shape = check_reduce(kReductionNames[reduction], x, code, dims, keepdim, false);

  // Allocate
  const Tensor out = new_dense(x, shape.sizes, shape.dtype);
  const Tensor count = new_dense(x, shape.sizes, wide_dtype(x));

  // Empty early return
  if (shape.outputs == 0) return {out, count};

  Recipe recipe = make_recipe(shape, false);
  recipe.op = ReduceOp::kExtremumCount;
  run(kReductionNames[reduction], x, shape, recipe, out, &count);
  return {out, count};
}

Tensor bias_grad(const Tensor& dy,  // (..., N)
                 bool wide) {
  // Checks
  check_floating("bias_grad", "dy", dy);
  check_min_dim("bias_grad", "dy", dy, 1);
  const int64_t leading = (int64_t{1} << (dy.dim() - 1)) - 1;
  const ReduceShape shape = check_reduce("bias_grad", dy, Reduction::kSum, leading, false, wide);

  // Allocate
  Tensor out = new_dense(dy, shape.sizes, shape.dtype);

  // Empty early return
  if (shape.outputs == 0) return out;
  if (shape.count == 0) return torch::stable::zero_(out);

  run("bias_grad", dy, shape, make_recipe(shape, wide), out, nullptr);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("reduce", FUSEDOPS_BOX(&reduce));
  m.impl("var_mean", FUSEDOPS_BOX(&var_mean));
  m.impl("extremum_count", FUSEDOPS_BOX(&extremum_count));
  m.impl("bias_grad", FUSEDOPS_BOX(&bias_grad));
}

}  // namespace fusedops::cuda
