// batch_norm_train_ and batch_norm_train_backward on CUDA: by clusters what fits on the chip, else
// pass by pass.
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/device/shared_memory.cuh"
#include "csrc/common/host/batch_norm_parts.h"
#include "csrc/cuda/batch_norm/batch_norm_cluster.cuh"
#include "csrc/cuda/batch_norm/batch_norm_host.h"

namespace fusedops::cuda {
namespace {

constexpr int kMostHeld = 16;    // rows of a thread; beyond, passes are as fast
constexpr int64_t kLatency = 6;  // of reading, of sums and of launching, in rows of a thread

// How many clusters of so many blocks a device holds that have a multiprocessor each.
int64_t clusters_at_once(int blocks, const LaunchScope& scope) {
  static std::mutex mutex;
  static std::map<std::pair<int, int>, int64_t> known;
  const std::lock_guard lock(mutex);
  const std::pair key{scope.device(), blocks};
  if (const auto found = known.find(key); found != known.end()) return found->second;
  constexpr auto kKernel = &batch_norm_cluster_backward_kernel<__half, false>;
  allow_any_shared_memory<kKernel>();
  const int clusters = resident_clusters(reinterpret_cast<const void*>(kKernel), blocks,
                                         kClusterThreads, scope.facts().shared_memory_per_block);
  check_launch("clusters_at_once");
  return known[key] = clusters;
}

// All clusters at once, in the least time; none where they do not fit. most: blocks that a
// multiprocessor may have.
std::optional<ClusterWalk> plan_clusters(const BatchNormShape& shape, int inputs, int64_t most,
                                         std::initializer_list<const void*> data,
                                         const LaunchScope& scope) {
  const DeviceFacts& facts = scope.facts();
  if (!is_half(shape.dtype) || facts.code_version < 90 || shape.rows == 0 || shape.channels == 0 ||
      access_width(shape.dtype, shape.channels, data) != kClusterVec) {
    return {};
  }
  std::optional<ClusterWalk> best;
  int64_t least = kLatency + kMostHeld + 1;
  for (int blocks = kMostClusterBlocks; blocks >= kLeastClusterBlocks; blocks /= 2) {
    const int64_t resident = clusters_at_once(blocks, scope);
    for (int x = 2; x <= kMostClusterX && resident > 0; x *= 2) {
      const ClusterWalk walk = cluster_walk(shape.rows, shape.channels, blocks, x);
      const int64_t layers = ceil_div(walk.clusters, resident);
      const int64_t bytes = layers * (walk.bytes(inputs) + kClusterReserved);
      const int64_t time = kLatency + walk.held * layers;
      if (layers > most || bytes > facts.shared_memory_per_block + kClusterReserved) continue;
      if (time < least) best = walk, least = time;
    }
  }
  return best;
}

template <auto kKernel, class... Args>
void launch(const LaunchScope& scope, const ClusterWalk& walk, int inputs, const Args&... args) {
  if (allow_any_shared_memory<kKernel>() != cudaSuccess) return;
  const dim3 grid(static_cast<unsigned>(walk.clusters * walk.blocks));
  launch_cluster_kernel(kKernel, grid, dim3(kClusterThreads), static_cast<unsigned>(walk.blocks),
                        walk.bytes(inputs), scope.stream(), true, args..., walk);
}

// Calls body.operator()<T, kAdded>().
template <class Body>
void with_half_and_added(const PassProblem& p, DType dtype, Body&& body) {
  with_half(dtype, [&]<class T>() {
    with_added(p, [&]<bool kAdded>() { body.template operator()<T, kAdded>(); });
  });
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_train_(
    const Tensor& x_,                           // (..., C)
    const std::optional<Tensor>& moments,       // (2, C, blocks)
    const std::optional<Tensor>& weight,        // (C,)
    const std::optional<Tensor>& bias,          // (C,)
    const std::optional<Tensor>& residual_,     // (..., C)
    const std::optional<Tensor>& shift_,        // (C,)
    const std::optional<Tensor>& running_mean,  // (C,), written
    const std::optional<Tensor>& running_var,   // (C,), written
    double momentum, double eps, int64_t activation) {
  constexpr const char* kOp = "batch_norm_train_";
  // Guard
  const LaunchScope scope(kOp, x_);

  // Checks
  const std::optional<Tensor> none;
  const NormVectors vectors{none, none, weight, bias};
  check_batch_norm_statistics(kOp, x_, moments, shift_, running_mean, running_var);
  const BatchNormShape shape = check_batch_norm_apply(kOp, x_, vectors, residual_, activation);

  // Config
  const Tensor x = dense(x_);
  const std::optional<Tensor> residual = dense(residual_), shift = dense(shift_);
  const DenseNorm norm(vectors);
  PassProblem problem{shape.rows, shape.channels};
  problem.x = x.const_data_ptr();
  problem.added = pointer(residual);
  problem.norm = norm.arguments(eps);
  problem.activation = static_cast<Activation>(activation);
  const int inputs = problem.added == nullptr ? 1 : 2;
  std::optional<ClusterWalk> walk;
  if (!moments) {
    walk = plan_clusters(shape, inputs, kForwardClusterBlocks, {problem.x, problem.added}, scope);
  }
  if (!walk) {
    return batch_norm_train<batch_norm_statistics_, batch_norm_apply>(
        x, moments, weight, bias, residual, shift, running_mean, running_var, momentum, eps,
        activation);
  }

  // Allocate
  const Tensor y = new_dense(x, x.sizes());
  const Tensor mean = new_dense(x, {shape.channels}, wide_dtype(x));
  const Tensor var = new_dense(x, {shape.channels}, wide_dtype(x));
  problem.out = y.mutable_data_ptr();

  // Launch
  const StatisticsResult result =
      statistics_result(mean, var, shift, running_mean, running_var, momentum);
  with_half_and_added(problem, shape.dtype, [&]<class T, bool kAdded>() {
    launch<&batch_norm_cluster_kernel<T, kAdded>>(scope, *walk, inputs, problem, result);
  });

  // Launch check
  check_launch(kOp);
  return {y, mean, var};
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_train_backward(
    const Tensor& dy,                     // (..., C)
    const Tensor& x,                      // (..., C)
    const Tensor& mean_,                  // (C,)
    const Tensor& var_,                   // (C,)
    const std::optional<Tensor>& weight,  // (C,)
    const std::optional<Tensor>& bias,    // (C,)
    const std::optional<Tensor>& saved,   // (..., C)
    double eps, int64_t activation, bool need_dz) {
  constexpr const char* kOp = "batch_norm_train_backward";
  // Guard
  const LaunchScope scope(kOp, dy);

  // Checks
  const std::optional<Tensor> mean = mean_, var = var_;
  const NormVectors vectors{mean, var, weight, bias};
  const BatchNormShape shape = check_batch_norm_backward(kOp, dy, x, vectors, saved, activation);

  // Config
  const GradientOperands operands(dy, x, vectors, saved);
  PassProblem problem = operands.problem(shape, eps, static_cast<Activation>(activation));
  const int inputs = problem.added == nullptr ? 2 : 3;
  // NOTE: beside a residual dz takes the place of dy, so it has to be one that is stored.
  std::optional<ClusterWalk> walk;
  if ((problem.added != nullptr) == need_dz) {
    walk = plan_clusters(shape, inputs, 1, {problem.dy, problem.x, problem.added}, scope);
  }
  if (!walk) {
    return fusedops::batch_norm_train_backward<batch_norm_sums, batch_norm_backward>(
        operands.dy, operands.x, mean_, var_, weight, bias, operands.saved, eps, activation,
        need_dz);
  }

  // Allocate
  const Tensor dx = new_dense(dy, dy.sizes());
  const Tensor dz = new_dense(dy, need_dz ? shape_of(dy) : std::vector<int64_t>{0});
  const Tensor sums = new_dense(dy, {2, shape.channels}, wide_dtype(dy));
  problem.out = dx.mutable_data_ptr();
  if (need_dz) problem.dz = dz.mutable_data_ptr();

  // Launch
  with_half_and_added(problem, shape.dtype, [&]<class T, bool kAdded>() {
    launch<&batch_norm_cluster_backward_kernel<T, kAdded>>(
        scope, *walk, inputs, problem, static_cast<float*>(sums.mutable_data_ptr()));
  });

  // Launch check
  check_launch(kOp);
  return {dx, dz, sums};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("batch_norm_train_", FUSEDOPS_BOX(&batch_norm_train_));
  m.impl("batch_norm_train_backward", FUSEDOPS_BOX(&batch_norm_train_backward));
}

}  // namespace fusedops::cuda
