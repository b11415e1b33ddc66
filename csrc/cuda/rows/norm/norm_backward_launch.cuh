// From checked operands to the kernels of norm_backward*.cuh, for one of the two norms.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <numeric>
#include <type_traits>

#include "csrc/common/device/device_types.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cuda/rows/norm/norm_backward.h"
#include "csrc/cuda/rows/norm/norm_backward_cluster.cuh"
#include "csrc/cuda/rows/norm/norm_backward_long.cuh"
#include "csrc/cuda/rows/norm/norm_backward_split.cuh"
#include "csrc/cuda/rows/team/row_plan.h"

namespace fusedops::cuda {

// Elements below which one launch that reads its input twice is sooner than two launches.
inline constexpr int64_t kSplitElements = 1 << 17;
inline constexpr int64_t kSmallRows = 224;  // a block of columns walks them all
inline constexpr int64_t kSplitPartials = 64, kSplitRows = 512;  // at most; of a partial row
// Rows that 32 bits count, some steps ahead.
inline constexpr int64_t kMostRows = (int64_t{1} << 32) - (1 << 24);

inline NormSums norm_sums(const NormGradients& t, bool half) {
  const auto out = [](Tensor* tensor) {
    return tensor == nullptr ? nullptr : tensor->mutable_data_ptr();
  };
  const Tensor* like = t.dweight != nullptr ? t.dweight : t.dbias;
  const bool wide = half && like != nullptr && like->scalar_type() == ScalarType::Float;
  return {out(t.dweight), out(t.dbias), wide};
}

template <class T>
void sum_partials(const NormSums& out, const Tensor& partial, int partials, int64_t n,
                  int64_t pitch, const LaunchScope& scope) {
  using C = Compute<T>;
  const dim3 threads =
      partials <= 64 ? dim3(32, kPartialThreads / 32) : dim3(8, kPartialThreads / 8);
  launch_plain(norm_partial_sum_kernel<T>,
               dim3(ceil_div(n, int64_t{threads.x} * kChunkOf<C>), out.dbias == nullptr ? 1 : 2),
               threads, scope, static_cast<const C*>(partial.const_data_ptr()), out, partials, n,
               pitch);
}

// Partial rows, or none where nobody asked for them.
template <bool kRms, class T, class W, class S>
Tensor make_partial(NormBackward<T, W, S>& p, const NormSums& out, const Tensor& like, int64_t n) {
  using C = Compute<T>;
  const bool sums = out.dweight != nullptr || out.dbias != nullptr;
  p.partial_pitch = round_up(n, int64_t{kChunkOf<C>});
  const Tensor partial =
      new_dense(like, {sums ? (kRms ? 1 : 2) * p.partials * p.partial_pitch : 0});
  p.partial = sums ? static_cast<C*>(partial.mutable_data_ptr()) : nullptr;
  return partial;
}

// Blocks of a row of few long ones.
inline int split_cluster(const NormShape& shape, int vec, const LaunchScope& scope) {
  const bool few = shape.rows * kRowCluster <= scope.facts().sm_count;
  if (!few || scope.facts().code_version < 90) return 1;
  return static_cast<int>(
      std::clamp<int64_t>(ceil_div(shape.n, int64_t{kSplitThreads} * vec), 1, kRowCluster));
}

// Rows and columns apart.
template <bool kRms, class T, class W, class S>
void launch_split(const NormGradients& t, NormBackward<T, W, S>& p, const NormShape& shape,
                  const LaunchScope& scope) {
  const NormSums out = norm_sums(t, sizeof(T) == 2);
  const bool sums = out.dweight != nullptr || out.dbias != nullptr;
  p.partials = static_cast<int>(
      std::clamp<int64_t>(ceil_div(shape.rows, kSplitRows), 1, sums ? kSplitPartials : 1));
  const Tensor partial = make_partial<kRms>(p, out, t.rstd, p.partials > 1 ? shape.n : 0);
  SplitLayout layout{shape.rows, shape.n, 0, split_cluster(shape, kChunkOf<T>, scope)};
  if (p.dx != nullptr) {
    layout.row_blocks = blocks_of_long_rows(shape.rows, scope) * layout.cluster;
  }
  dispatch_bool(layout.cluster > 1, [&]<bool kClusters>(Tag<kClusters>) {
    constexpr int64_t kColumns = kSplitThreads / kSplitAtOnce<kClusters>;
    const int64_t column_blocks = sums ? ceil_div(shape.n, kColumns) * p.partials : 0;
    const int64_t blocks = round_up(layout.row_blocks + column_blocks, int64_t{layout.cluster});
    launch_cluster_kernel(norm_backward_split_kernel<kClusters, kRms, T, W, S>, dim3(blocks),
                          dim3(kSplitThreads), layout.cluster, 0, scope.stream(),
                          scope.context().overlap, p, out, layout);
  });
  if (p.partials > 1) sum_partials<T>(out, partial, p.partials, shape.n, p.partial_pitch, scope);
}

// Rows that no team holds are for launch_long; a few are shared by clusters, in one launch.
inline bool is_long(const NormShape& shape, const LaunchScope& scope) {
  constexpr int64_t kFeatures = 4096;  // fewer are no long row, whoever cannot hold them
  return shape.n >= kFeatures && shape.rows * kRowCluster > scope.facts().sm_count;
}

// dx of rows that no team holds, with the column sums beside it.
template <bool kRms, bool kRagged, class T, class W, class S>
void launch_long(const NormGradients& t, NormBackward<T, W, S>& p, const NormShape& shape,
                 const LaunchScope& scope) {
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<T>;
  // Config
  LongLayout layout{shape.rows, shape.n, 1, 0, kLongRows};
  const int64_t at_once = int64_t{kLongSumThreads} * kVec * kStreamUnroll;
  layout.parts = static_cast<int>(std::clamp<int64_t>(ceil_div(shape.n, at_once), 1, kLongParts));
  layout.strips = ceil_div(shape.n, int64_t{kLongThreads} * kVec);
  const int64_t fill = int64_t{scope.facts().sm_count} * 4;
  while (layout.rows_of_part > kLeastRows &&
         layout.strips * ceil_div(shape.rows, int64_t{layout.rows_of_part}) < fill) {
    layout.rows_of_part /= 2;
  }
  p.partials = static_cast<int>(ceil_div(shape.rows, int64_t{layout.rows_of_part}));

  // Allocate
  const NormSums out = norm_sums(t, sizeof(T) == 2);
  const Tensor partial = make_partial<kRms>(p, out, t.rstd, p.partials > 1 ? shape.n : 0);
  const Tensor row_sums = new_dense(t.rstd, {shape.rows * layout.parts * 2});
  C* const sums = static_cast<C*>(row_sums.mutable_data_ptr());

  // Launch
  launch_plain(norm_backward_long_sum_kernel<kRms, T, W, S>, dim3(shape.rows * layout.parts),
               dim3(kLongSumThreads), scope, p, layout, sums);
  launch_plain(norm_backward_long_kernel<kRms, kRagged, T, W, S>, dim3(layout.strips * p.partials),
               dim3(kLongThreads), scope, p, out, layout, sums);
  if (p.partials > 1 && p.partial != nullptr) {
    sum_partials<T>(out, partial, p.partials, shape.n, p.partial_pitch, scope);
  }
}

// Whole rows on a plan, then the sums of what its teams have summed.
template <bool kRms, class Kernel, class T, class W, class S, class... Args>
void launch_plan(Kernel kernel, const RowPlan& plan, const NormGradients& t,
                 NormBackward<T, W, S>& p, const LaunchScope& scope, Args... args) {
  // Allocate
  p.partials = static_cast<int>(plan.blocks / std::max(plan.layout.cluster, 1));
  const NormSums out = norm_sums(t, sizeof(T) == 2);
  const Tensor partial = make_partial<kRms>(p, out, t.rstd, plan.layout.n);

  // Launch
  launch_rows(kernel, plan, scope, p, plan.layout, args...);
  if (p.partial != nullptr) {
    sum_partials<T>(out, partial, p.partials, plan.layout.n, p.partial_pitch, scope);
  }
}

// Threads of an SM whose teams are of few warps. An SM's share of the 4.2 TB/s of H200 is 32 KB a
// us, so that 48 KB of rows on the way cover a latency of 1.5 us; more cost bandwidth. many: the
// longer rows among those take as many threads as there are. NOTE: the bwd rows of
// perf/results/h200/norm.csv are with this number; `bench norm --compare` says what others give.
inline int few_warp_threads(int64_t n, int vec, int words, bool many) {
  constexpr int kAsked = 48000, kHeld = BlockStep::kChunks;
  const int64_t chunks = ceil_div(n, int64_t{vec});
  if (chunks > 64 * kHeld) return many ? kRowThreads : kRowThreads * 3 / 4;
  const int64_t row_bytes = n / vec * words * 16;
  const int64_t teams = ceil_div(int64_t{kAsked}, (kRowStages - 1) * row_bytes);
  const int64_t of_team = round_up(ceil_div(chunks, int64_t{kHeld}), int64_t{32});
  return static_cast<int>(std::min<int64_t>(round_up(teams * of_team, int64_t{128}), kRowThreads));
}

// A warp or a block for a row; false where that cannot be.
template <bool kRms, bool kRagged, class Step, class T, class W, class S>
bool launch_rows_of(const NormGradients& t, NormBackward<T, W, S>& p, const NormShape& shape,
                    const LaunchScope& scope) {
  constexpr int kVec = kChunkOf<T>;
  const bool few_warps =
      shape.n > 32 * kVec && shape.n <= 256 * kVec && shape.rows >= 4 * scope.facts().sm_count;
  const int words = norm_backward_words<T, S>(p.dresidual != nullptr);
  const RowProblem problem{
      .rows = shape.rows,
      .n = shape.n,
      .vec = kVec,
      .words = words,
      .max_chunks = Step::kChunks,
      .compute_bytes = sizeof(Compute<T>),
      .rows_per_team = 0,
      .bulk = kRagged || few_warps,
      .sm_threads =
          few_warps ? few_warp_threads(shape.n, kVec, words, !kRms && !kRagged) : kRowThreads,
      .whole = kRagged && Step::kBlocks,
      .filled = true,
  };
  const auto kernel = norm_backward_kernel<kRms, T, W, S, kRagged, Step>;
  const RowPlan plan = plan_rows(reinterpret_cast<const void*>(kernel), problem, scope);
  if (plan.held) launch_plan<kRms>(kernel, plan, t, p, scope);
  return plan.held;
}

// A cluster for a row: the smallest whose blocks hold it. Stages as in norm_backward_cluster.cuh.
struct ClusterPlan {
  RowPlan rows;
  int stages = 0;
};

// words, more: of a chunk in shared memory, of x and dy and of dresidual; registers: of a thread.
inline ClusterPlan plan_clusters(const NormShape& shape, int vec, int words, int more,
                                 int compute_bytes, int registers, const LaunchScope& scope) {
  constexpr int kHeld = kClusterChunks, kWorkers = 352;  // whose block fills an SM
  constexpr int kAsked = 104 << 10;  // bytes on their way to an SM; more of them are slower
  const int64_t chunks = shape.n / vec;
  const int cluster = static_cast<int>(std::max<int64_t>(2, ceil_div(chunks, kHeld * kWorkers)));
  if (scope.facts().code_version < 90 || cluster > kRowCluster) return {};
  const int workers = static_cast<int>(round_up(ceil_div(ceil_div(chunks, cluster), kHeld), 32));
  const int threads = workers + kScout, pitch = kHeld * workers * 16;
  const int blocks = std::max(65536 / registers / threads, 1);  // of an SM
  const int asked = kAsked / blocks - more * (kMoreStages - 1) * pitch;
  ClusterPlan plan;
  plan.stages = std::clamp(asked / (words * pitch) + 1, kLeastStages, kMostStages);
  plan.rows.threads = threads;
  plan.rows.layout = {shape.rows, static_cast<int>(shape.n), 32, cluster, kHeld, pitch, true};
  plan.rows.shared_bytes = (compute_bytes == 8 ? row_slot_bytes<double>(cluster, threads)
                                               : row_slot_bytes<float>(cluster, threads)) +
                           cluster_ring_bytes(plan.stages, words, more, pitch);
  plan.rows.held = plan.rows.shared_bytes <= scope.facts().shared_memory_per_block;
  return plan;
}

// False where no cluster can hold a row.
template <bool kRms, bool kRagged, class T, class W, class S>
bool launch_clusters(const NormGradients& t, NormBackward<T, W, S>& p, const NormShape& shape,
                     const LaunchScope& scope) {
  constexpr int kVec = kChunkOf<T>;
  constexpr int kRegisters = cluster_registers<T, W>;
  const auto kernel = norm_backward_cluster_kernel<kRms, T, W, S, kRagged, kRegisters>;
  auto [plan, stages] =
      plan_clusters(shape, kVec, norm_backward_words<T, S>(false), p.dresidual == nullptr ? 0 : 1,
                    sizeof(Compute<T>), kRegisters, scope);
  if (!plan.held) return false;
  const int cluster = plan.layout.cluster;
  const int64_t resident =
      resident_blocks(reinterpret_cast<const void*>(kernel), plan, scope) / cluster;
  if (resident == 0) return false;
  const int64_t classes = kVec / std::gcd<int64_t>(shape.n, kVec);
  int64_t teams = std::min(shape.rows, resident);
  // NOTE: a few teams fewer cost less than changes of class.
  if (teams % classes <= teams / 16) teams -= teams % classes;
  plan.stays = shape.rows > teams;
  plan.blocks = teams * cluster;
  // Rows in whose time a team changes to another class: fewer than a team has.
  const int64_t gap = std::min<int64_t>(8, shape.rows / (classes * teams));
  launch_plan<kRms>(kernel, plan, t, p, scope, stages, static_cast<unsigned>(classes),
                    static_cast<unsigned>(gap));
  return true;
}

template <bool kRms, bool kRagged, class T, class W, class S>
bool launch_held(const NormGradients& t, NormBackward<T, W, S>& p, const NormShape& shape,
                 const LaunchScope& scope) {
  if (row_chunks(shape.n, kChunkOf<T>) <= 32 * WarpStep::kChunks) {
    return launch_rows_of<kRms, kRagged, WarpStep>(t, p, shape, scope);
  }
  if (shape.n / kChunkOf<T> > kRowThreads * BlockStep::kChunks) {
    return launch_clusters<kRms, kRagged>(t, p, shape, scope);
  }
  return launch_rows_of<kRms, kRagged, BlockStep>(t, p, shape, scope);
}

template <bool kRms, class T, class W, class S>
void launch(const NormGradients& t, const std::optional<Tensor>& weight, const NormShape& shape,
            int64_t norm_dims, const LaunchScope& scope) {
  using C = Compute<T>;
  constexpr int kVec = kChunkOf<T>;
  const RowInput dy = row_input(t.dy, shape.n, norm_dims, kVec);
  const RowInput x = row_input(t.x, shape.n, norm_dims, kVec);
  const RowInput dresidual = t.dresidual ? row_input(*t.dresidual, shape.n, norm_dims, kVec) : x;
  NormBackward<T, W, S> p{};
  p.dy = dy.as<S>();
  p.x = x.as<T>();
  p.dresidual = t.dresidual && t.dx != nullptr ? dresidual.as<T>() : nullptr;
  p.dy_stride = dy.stride;
  p.x_stride = x.stride;
  p.dresidual_stride = dresidual.stride;
  p.weight = weight ? static_cast<const W*>(weight->const_data_ptr()) : nullptr;
  p.mean = t.mean == nullptr ? nullptr : static_cast<const C*>(t.mean->const_data_ptr());
  p.rstd = static_cast<const C*>(t.rstd.const_data_ptr());
  p.dx = t.dx == nullptr ? nullptr : static_cast<T*>(t.dx->mutable_data_ptr());
  const bool small = shape.rows * shape.n <= kSplitElements && shape.rows <= kSmallRows;
  if (!small && shape.rows < kMostRows && shape.n < (int64_t{1} << 30)) {
    bool held = false;
    dispatch_ragged<T>(shape.n, [&]<bool kRagged>(Tag<kRagged>) {
      held = launch_held<kRms, kRagged>(t, p, shape, scope);
    });
    if (held) return;
    if (p.dx != nullptr && is_long(shape, scope)) {
      return dispatch_bool(shape.n % kVec != 0, [&]<bool kRagged>(Tag<kRagged>) {
        launch_long<kRms, kRagged>(t, p, shape, scope);
      });
    }
  }
  launch_split<kRms>(t, p, shape, scope);
}

// Which instance: dtypes of x, weight and dy. A float32 dy beside a half x goes with float32
// weights.
template <bool kRms>
void norm_gradients(const NormGradients& t, const NormShape& shape, int64_t norm_dims,
                    const LaunchScope& scope) {
  const ScalarType dtype = t.x.scalar_type();
  const bool wide_dy = t.dy.scalar_type() != dtype;
  const bool wide_weight = t.weight && t.weight->scalar_type() != dtype;
  const std::optional<Tensor> weight =
      t.weight && wide_dy && !wide_weight
          ? std::optional(torch::stable::to(*t.weight, ScalarType::Float))
          : t.weight;
  dispatch_dtype(shape.dtype, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    if constexpr (sizeof(T) == 2) {
      if (wide_dy) return launch<kRms, T, float, float>(t, weight, shape, norm_dims, scope);
      if (wide_weight) return launch<kRms, T, float, T>(t, weight, shape, norm_dims, scope);
    }
    launch<kRms, T, T, T>(t, weight, shape, norm_dims, scope);
  });
}

}  // namespace fusedops::cuda
