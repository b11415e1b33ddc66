// The passes of an MLP over edges on CUDA.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/common/host/launch.h"
#include "csrc/cuda/points/edges/edge_check.h"
#include "csrc/cuda/points/edges/edge_launch.h"
#include "csrc/cuda/points/edges/edge_norm.cuh"
#include "csrc/cuda/points/edges/edge_tensors.h"
#include "csrc/cuda/points/edges/edge_wgmma.h"

namespace fusedops::cuda {
namespace {

template <class V>
V* write_if(bool wanted, const Tensor& tensor) {
  return wanted ? write<V>(tensor) : nullptr;
}

template <class T>
EdgeProblem<T> problem_of(const EdgeArguments& a) {
  return {.rows = read<float>(a.rows),
          .group_rows = read<float>(a.group_rows),
          .first_weight = read<T>(a.first_weight),
          .operands = read<T>(a.operands),
          .planes = static_cast<int>(a.operands ? a.operands->size(0) : 0),
          .edges = a.edges,
          .list = static_cast<const int4*>(a.list.const_data_ptr()),
          .ends = static_cast<const int*>(a.ends.const_data_ptr()),
          .spaced = false,
          .weights = static_cast<const T*>(a.weights.const_data_ptr()),
          .affine = static_cast<const float4*>(a.affine.const_data_ptr()),
          .groups = static_cast<int>(a.clouds * a.groups),
          .k = static_cast<int>(a.edges / (a.clouds * a.groups)),
          .layers = a.layers,
          .hidden = static_cast<int>(a.layers > 1 ? a.widths[0] : 0),
          .middle = static_cast<int>(a.layers > 1 ? a.width_in() : 0),
          .width = static_cast<int>(a.width()),
          .slope = static_cast<float>(a.slope),
          .is_relu = a.slope == 0};
}

EdgeDevice device_of(const LaunchScope& scope) {
  return {scope.facts().sm_count, scope.facts().shared_memory_per_block, scope.stream()};
}

void check_blocks(const char* op, int blocks) {
  FUSEDOPS_CHECK(blocks != 0, op, ": the layers must fit into the shared memory of a block");
  FUSEDOPS_CHECK(blocks > 0, op, ": the kernel cannot be configured on this device");
}

// Contiguous (C, 2): a pair of values a channel.
const float2* pairs(const Tensor& tensor) {
  return static_cast<const float2*>(tensor.const_data_ptr());
}

unsigned norm_blocks(int64_t count) {
  return static_cast<unsigned>(ceil_div(count, kEdgeNormThreads));
}

EdgeForwardMode forward_mode(bool infer, bool pool, bool sums) {
  if (infer) return EdgeForwardMode::kInfer;
  if (pool) return sums ? EdgeForwardMode::kPoolAndSums : EdgeForwardMode::kPool;
  return EdgeForwardMode::kSums;
}

// What forward is asked for.
struct ForwardRequest {
  int64_t channels;
  bool infer, pool, sums;
  double eps;
};

// Empty where they are not asked for.
struct ForwardResults {
  Tensor out, best, which, affine, stats;
};

void check_request(const char* op, const ForwardRequest& r, int64_t width) {
  FUSEDOPS_CHECK(r.channels > 0 && r.channels <= width, op, ": channels must be from 1 to ", width,
                 "; got ", r.channels);
  FUSEDOPS_CHECK(width >= 64 || !(r.infer || r.pool), op,
                 ": the last width must be at least 64 where it is pooled; got ", width);
  FUSEDOPS_CHECK(r.infer ? !r.pool && !r.sums : r.pool || r.sums, op,
                 ": infer alone, pool or sums must be asked for");
}

Tensor empty_if(bool wanted, const Tensor& like, const std::vector<int64_t>& shape,
                ScalarType type) {
  return new_dense(like, wanted ? shape : std::vector<int64_t>{0}, type);
}

ForwardResults allocate_forward(const EdgeArguments& a, const ForwardRequest& r) {
  const std::vector<int64_t> pooled{a.clouds, a.groups, r.channels};
  const ScalarType fp32 = ScalarType::Float;
  return {.out = empty_if(r.infer, a.list, pooled, a.weights.scalar_type()),
          .best = empty_if(r.pool, a.list, pooled, fp32),
          .which = empty_if(r.pool, a.list, pooled, ScalarType::Short),
          .affine = empty_if(r.sums, a.list, {a.affine.size(0), 2}, fp32),
          .stats = empty_if(r.sums, a.list, {kEdgeStats, a.width()}, fp32)};
}

// WGMMA reads a layer from shared memory once for 64 rows, where mma.sync reads it once for 16.
bool takes_wgmma(const DeviceFacts& facts) { return facts.capability == 90; }

// Blocks of a forward pass and the kernels that they are of.
template <class T>
struct ForwardPlan {
  int blocks;
  EdgeForwardKernels<T> kernels;
};

template <class T>
ForwardPlan<T> plan_forward(const EdgeForward<T>& args, EdgeForwardMode mode,
                            const EdgeDevice& device, const DeviceFacts& facts) {
  const auto blocks_of = [&](const EdgeForwardKernels<T>& kernels) {
    return kernels.blocks && takes_wgmma(facts) ? kernels.blocks(args, mode, device) : 0;
  };
  const int inferring = blocks_of(edge_wgmma_infer<T>);
  if (inferring != 0) return {inferring, edge_wgmma_infer<T>};
  const int blocks = blocks_of(edge_wgmma_forward<T>);
  if (blocks != 0) return {blocks, edge_wgmma_forward<T>};
  if (args.problem.middle != args.problem.hidden) return {0, {}};  // WGMMA's alone
  return {edge_forward_blocks(args, mode, device), {&edge_forward_blocks, &launch_edge_forward}};
}

template <class T>
void run_forward(const char* op, const LaunchScope& scope, const EdgeArguments& a,
                 const ForwardRequest& r, const ForwardResults& to) {
  EdgeForward<T> args{.problem = problem_of<T>(a),
                      .channels = static_cast<int>(r.channels),
                      .out = write_if<T>(r.infer, to.out),
                      .best = write_if<float>(r.pool, to.best),
                      .which = write_if<int16_t>(r.pool, to.which),
                      .sums = nullptr};
  args.problem.spaced = r.infer;
  const EdgeForwardMode mode = forward_mode(r.infer, r.pool, r.sums);
  const EdgeDevice device = device_of(scope);
  const ForwardPlan<T> plan = plan_forward(args, mode, device, scope.facts());
  const int blocks = plan.blocks;
  check_blocks(op, blocks);
  const int64_t width = a.width();
  const Tensor partial = empty_if(r.sums, a.list, {blocks, 2 * width + 1}, ScalarType::Float);
  args.sums = write_if<float>(r.sums, partial);
  plan.kernels.launch(args, mode, blocks, device);
  if (!r.sums) return;
  const EdgeStatistics statistics{.partial = write<float>(partial),
                                  .blocks = blocks,
                                  .width = static_cast<int>(width),
                                  .given = pairs(a.affine),
                                  .first = static_cast<int>(a.first_channel()),
                                  .channels = static_cast<int>(a.affine.size(0)),
                                  .eps = static_cast<float>(r.eps),
                                  .affine = write<float2>(to.affine),
                                  .stats = write<float>(to.stats)};
  edge_statistics_kernel<<<join_blocks(width), join_block(), 0, scope.stream()>>>(statistics);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> edge_mlp_forward(
    const OptionalTensor& rows, const OptionalTensor& group_rows,
    const OptionalTensor& first_weight, const OptionalTensor& operands, const Tensor& list,
    const Tensor& ends, const Tensor& weights, const Tensor& affine, int64_t clouds, int64_t c1,
    int64_t c2, int64_t c3, int64_t c4, double slope, int64_t channels, bool infer, bool pool,
    bool sums, double eps) {
  constexpr const char* kOp = "edge_mlp_forward";
  // Guard
  const LaunchScope scope(kOp, list);

  // Contract, checks
  const EdgeArguments a = check_edges(kOp, rows, group_rows, first_weight, operands, list, ends,
                                      weights, affine, clouds, {c1, c2, c3, c4}, slope, infer);
  const ForwardRequest request{channels, infer, pool, sums, eps};
  check_request(kOp, request, a.width());

  // Allocate
  const ForwardResults results = allocate_forward(a, request);

  // Config, launch
  dispatch_half(a.dtype, [&]<DType D>(Tag<D>) {
    run_forward<DeviceType<D>>(kOp, scope, a, request, results);
  });

  // Launch check
  check_launch(kOp);
  return {results.out, results.best, results.which, results.affine, results.stats};
}

// The passes of a layer: both gradients in one, where it is narrow enough.
template <class T>
struct BackwardPlan {
  EdgePass first;
  int first_blocks, weight_blocks;
  void (*launch)(const EdgeBackward<T>&, EdgePass, int blocks, const EdgeDevice&);
};

template <class T>
BackwardPlan<T> plan_backward(const char* op, const EdgeBackward<T>& args, const EdgeDevice& device,
                              const DeviceFacts& facts) {
  const int width = args.problem.width;
  const EdgeBackwardKernels<T> wgmma = edge_wgmma_backward<T>;
  if (wgmma.blocks && takes_wgmma(facts)) {
    const int blocks = wgmma.blocks(args, EdgePass::kBoth, device);
    if (blocks != 0) {
      check_blocks(op, blocks);
      return {EdgePass::kBoth, blocks, blocks, wgmma.launch};
    }
  }
  if (args.problem.middle != args.problem.hidden) check_blocks(op, 0);  // WGMMA's alone
  if (width <= kEdgeSlice) {
    const int blocks = edge_backward_blocks(args, EdgePass::kBoth, device);
    if (blocks != 0) {
      check_blocks(op, blocks);
      return {EdgePass::kBoth, blocks, blocks, &launch_edge_backward};
    }
  }
  const BackwardPlan<T> plan{EdgePass::kData, edge_backward_blocks(args, EdgePass::kData, device),
                             edge_backward_blocks(args, EdgePass::kWeights, device),
                             &launch_edge_backward};
  check_blocks(op, plan.first_blocks);
  check_blocks(op, plan.weight_blocks);
  return plan;
}

struct BackwardResults {
  Tensor below, grads, below_dense, dw;
};

BackwardResults allocate_backward(const EdgeArguments& a, bool has_below_stats, bool in_place) {
  const int64_t width = a.width(), width_in = a.width_in();
  const auto empty = [&](const std::vector<int64_t>& shape, ScalarType type) {
    return empty_if(true, a.list, shape, type);
  };
  return {.below = empty({in_place ? 0 : a.edges, width_in}, a.weights.scalar_type()),
          .grads = empty({width_in, 2}, ScalarType::Float),
          .below_dense = empty({has_below_stats ? width_in : 0, 2}, ScalarType::Float),
          .dw = empty({width, width_in}, ScalarType::Float)};
}

template <class T>
void run_backward(const char* op, const LaunchScope& scope, const EdgeArguments& a,
                  EdgeBackward<T> args, const BackwardResults& to) {
  const int64_t width = a.width(), width_in = a.width_in();
  const EdgeDevice device = device_of(scope);
  const BackwardPlan<T> plan = plan_backward(op, args, device, scope.facts());
  const auto empty = [&](const std::vector<int64_t>& shape) {
    return empty_if(true, a.list, shape, ScalarType::Float);
  };
  const Tensor sums = empty({plan.first_blocks, 2, width_in});
  const Tensor dw_sums = empty({plan.weight_blocks, width, width_in});
  args.below_sums = write<float>(sums);
  args.weight_sums = write<float>(dw_sums);
  // NOTE: weights first: the other pass may write its rows over those from above.
  if (plan.first == EdgePass::kData) {
    launch_edge_backward(args, EdgePass::kWeights, plan.weight_blocks, device);
  }
  plan.launch(args, plan.first, plan.first_blocks, device);
  const EdgeSumsEnd norm{.partial = write<float>(sums),
                         .blocks = plan.first_blocks,
                         .width = static_cast<int>(width_in),
                         .affine = pairs(a.affine) + a.first_channel() - width_in,
                         .stats = args.center,
                         .grads = write<float2>(to.grads),
                         .dense = write<float2>(to.below_dense)};
  const EdgeValuesEnd weight{.partial = write<float>(dw_sums),
                             .blocks = plan.weight_blocks,
                             .count = static_cast<int>(width * width_in),
                             .out = write<float>(to.dw)};
  const unsigned first = join_blocks(width_in), all = first + value_blocks(width * width_in);
  edge_backward_end_kernel<<<all, join_block(), 0, scope.stream()>>>(norm, static_cast<int>(first),
                                                                     weight);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> edge_mlp_backward(
    const OptionalTensor& rows, const OptionalTensor& group_rows,
    const OptionalTensor& first_weight, const OptionalTensor& operands, const Tensor& list,
    const Tensor& ends, const Tensor& weights, const Tensor& affine, int64_t clouds, int64_t c1,
    int64_t c2, int64_t c3, int64_t c4, double slope, const OptionalTensor& winners,
    OptionalTensor above, const OptionalTensor& dense, const OptionalTensor& below_stats) {
  constexpr const char* kOp = "edge_mlp_backward_";
  // Guard
  const LaunchScope scope(kOp, list);

  // Contract, checks
  const EdgeArguments a = check_edges(kOp, rows, group_rows, first_weight, operands, list, ends,
                                      weights, affine, clouds, {c1, c2, c3, c4}, slope);
  FUSEDOPS_CHECK(a.layers > 1, kOp, ": there must be 2 to 4 widths; got 1");
  FUSEDOPS_CHECK(winners.has_value() != above.has_value(), kOp,
                 ": winners or above must be given, and not both");
  const int64_t width = a.width();
  const ScalarType half = weights.scalar_type(), fp32 = ScalarType::Float;
  const auto winners_ = check_edge_tensor(kOp, "winners", winners, list, ScalarType::Int,
                                          {a.clouds, a.groups, width});
  const auto above_ = check_edge_tensor(kOp, "above", above, list, half, {a.edges, width});
  FUSEDOPS_CHECK(!above || above_->const_data_ptr() == above->const_data_ptr(), kOp,
                 ": above must be contiguous and aligned to 16 bytes: where it is as wide as what "
                 "is below, that is written there; got shape ",
                 shape_string(above ? *above : list));
  const bool in_place = above && width == a.width_in();
  const auto dense_ = check_edge_tensor(kOp, "dense", dense, list, fp32, {width, 2});
  const auto stats_ =
      check_edge_tensor(kOp, "below_stats", below_stats, list, fp32, {kEdgeStats, a.width_in()});

  // Allocate
  const BackwardResults results = allocate_backward(a, stats_.has_value(), in_place);

  // Config, launch
  dispatch_half(a.dtype, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    const EdgeBackward<T> args{.problem = problem_of<T>(a),
                               .winners = read<int>(winners_),
                               .above = read<T>(above_),
                               .dense = read<float4>(dense_),
                               .center = read<float>(stats_),  // their first row: the means
                               .below = write<T>(in_place ? *above_ : results.below),
                               .below_sums = nullptr,
                               .weight_sums = nullptr};
    run_backward(kOp, scope, a, args, results);
  });

  // Launch check
  check_launch(kOp);
  return {results.below, results.grads, results.below_dense, results.dw};
}

// What the pooling ops read, contiguous.
struct PoolArguments {
  Tensor best, which, affine;
  int64_t groups, channels;
};

PoolArguments check_pool(const char* op, const Tensor& best, const Tensor& which,
                         const Tensor& affine) {
  check_dim(op, "best", best, 3, "(B, M, C)");
  const std::vector<int64_t> shape{best.size(0), best.size(1), best.size(2)};
  FUSEDOPS_CHECK(affine.dim() == 2 && affine.size(0) >= shape[2] && affine.size(0) % 32 == 0, op,
                 ": affine must have shape (C, 2) with C at least ", shape[2],
                 " and a multiple of 32; got ", shape_string(affine));
  return {*check_edge_tensor(op, "best", best, best, ScalarType::Float, shape),
          *check_edge_tensor(op, "which", which, best, ScalarType::Short, shape),
          *check_edge_tensor(op, "affine", affine, best, ScalarType::Float, {affine.size(0), 2}),
          shape[0] * shape[1], shape[2]};
}

template <class T>
EdgePool<T> pool_of(const PoolArguments& p, double slope) {
  EdgePool<T> a{};
  a.best = static_cast<const float*>(p.best.const_data_ptr());
  a.which = static_cast<const int16_t*>(p.which.const_data_ptr());
  a.affine = pairs(p.affine);
  a.groups = p.groups;
  a.channels = static_cast<int>(p.channels);
  a.width = static_cast<int>(p.affine.size(0));
  a.slope = static_cast<float>(slope);
  return a;
}

Tensor edge_pool_forward(const Tensor& best,    // (B, M, C)
                         const Tensor& which,   // (B, M, C)
                         const Tensor& affine,  // (width, 2)
                         const Tensor& like, double slope) {
  constexpr const char* kOp = "edge_pool_forward";
  // Guard
  const LaunchScope scope(kOp, best);

  // Checks
  const PoolArguments p = check_pool(kOp, best, which, affine);
  FUSEDOPS_CHECK(like.element_size() == 2, kOp, ": like must be float16 or bfloat16; got ",
                 dtype_name(like.scalar_type()));

  // Allocate, launch
  const Tensor out =
      new_dense(best, {best.size(0), best.size(1), best.size(2)}, like.scalar_type());
  if (out.numel() == 0) return out;
  dispatch_half(check_floating(kOp, "like", like), [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    EdgePool<T> a = pool_of<T>(p, slope);
    a.out = write<T>(out);
    dispatch(Choices<1, 4>{}, p.channels % 4 == 0 ? 4 : 1, [&]<int kValues>(Tag<kValues>) {
      constexpr auto kernel = &edge_pool_kernel<T, kValues>;
      const unsigned blocks = norm_blocks(out.numel() / kValues);
      kernel<<<blocks, kEdgeNormThreads, 0, scope.stream()>>>(a);
    });
  });

  // Launch check
  check_launch(kOp);
  return out;
}

std::tuple<Tensor, Tensor, Tensor> edge_pool_backward(const Tensor& dout,    // (B, M, C)
                                                      const Tensor& best,    // (B, M, C)
                                                      const Tensor& which,   // (B, M, C)
                                                      const Tensor& affine,  // (width, 2)
                                                      const OptionalTensor& stats, double slope) {
  constexpr const char* kOp = "edge_pool_backward";
  // Guard
  const LaunchScope scope(kOp, best);

  // Checks
  const PoolArguments p = check_pool(kOp, best, which, affine);
  const int64_t width = affine.size(0);
  const ScalarType fp32 = ScalarType::Float;
  FUSEDOPS_CHECK(dout.element_size() == 2, kOp, ": dout must be float16 or bfloat16; got ",
                 dtype_name(dout.scalar_type()));
  check_same_shape(kOp, "dout", dout, "best", best);
  const auto stats_ = check_edge_tensor(kOp, "stats", stats, best, fp32, {kEdgeStats, width});

  // Allocate
  const Tensor winners = new_dense(best, {best.size(0), best.size(1), width}, ScalarType::Int);
  const Tensor grads = new_dense(best, {width, 2}, fp32);
  const Tensor below = new_dense(best, {stats ? width : 0, 2}, fp32);

  // Config, launch
  constexpr int64_t kRowsOfBlock = 16 * kEdgePoolRows;
  const int64_t blocks = std::min<int64_t>(std::max<int64_t>(ceil_div(p.groups, kRowsOfBlock), 1),
                                           2 * scope.facts().sm_count);
  const Tensor partial = new_dense(best, {blocks, 2, width}, fp32);
  const Tensor contiguous = dense(dout);
  dispatch_half(check_floating(kOp, "dout", dout), [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    EdgePool<T> a = pool_of<T>(p, slope);
    a.dout = static_cast<const T*>(contiguous.const_data_ptr());
    a.stats = read<float>(stats_);
    a.winners = write<int>(winners);
    a.partial = write<float>(partial);
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(width / 32));
    edge_pool_backward_kernel<<<grid, dim3(32, kEdgePoolRows), 0, scope.stream()>>>(a);
  });
  const EdgeSumsEnd norm{.partial = write<float>(partial),
                         .blocks = static_cast<int>(blocks),
                         .width = static_cast<int>(width),
                         .affine = pairs(p.affine),
                         .stats = read<float>(stats_),
                         .grads = write<float2>(grads),
                         .dense = write<float2>(below)};
  edge_sums_kernel<<<join_blocks(width), join_block(), 0, scope.stream()>>>(norm);

  // Launch check
  check_launch(kOp);
  return {winners, grads, below};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("edge_mlp_forward", FUSEDOPS_BOX(&edge_mlp_forward));
  m.impl("edge_mlp_backward_", FUSEDOPS_BOX(&edge_mlp_backward));
  m.impl("edge_pool_forward", FUSEDOPS_BOX(&edge_pool_forward));
  m.impl("edge_pool_backward", FUSEDOPS_BOX(&edge_pool_backward));
}

}  // namespace fusedops::cuda
