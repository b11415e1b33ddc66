// The gradient of softmax and log_softmax on CUDA.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <type_traits>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/checks/row_check.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/device/shared_memory.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cuda/rows/softmax/softmax_backward_direct.cuh"
#include "csrc/cuda/rows/softmax/softmax_backward_ends.cuh"
#include "csrc/cuda/rows/softmax/softmax_packed.cuh"
#include "csrc/cuda/rows/softmax/softmax_stream.cuh"
#include "csrc/cuda/rows/team/row_plan.h"

namespace fusedops::cuda {
namespace {

constexpr int64_t kMostRows = ((int64_t{1} << 31) - 1) / kRowCluster;  // that a grid has blocks for

// Rows that registers of a block hold, or of a cluster where they are longer; odd ones also where
// lanes of a warp hold them. false: not here.
template <class T, bool kRagged>
bool launch_ends(const SoftmaxBackward<T, T>& p, const SoftmaxShape& shape,
                 const LaunchScope& scope) {
  constexpr int kMaxThreads = 512, kLaneChunks = 3, kHeld = 4;
  const int64_t chunks = shape.n / kChunkOf<T>;
  if (shape.outer > kMostRows) return false;
  const auto launch = [&](auto kernel, int lanes, int64_t cluster, int64_t threads) {
    const RowLayout layout{shape.outer, static_cast<int>(shape.n), lanes,
                           static_cast<int>(cluster)};
    const int64_t blocks =
        cluster == 0 ? ceil_div(shape.outer * lanes, threads) : shape.outer * cluster;
    const RowPlan plan{true, layout, static_cast<int>(threads), 0, blocks};
    launch_rows(kernel, plan, scope, p, layout);
    return true;
  };
  // NOTE: the ends of a row take 16 lanes.
  if constexpr (kRagged) {
    if (chunks > 16 && chunks <= 32 * kLaneChunks) {
      constexpr int kThreads = 64;
      constexpr RowVariant kVariant{
          .threads = kThreads, .blocks = 14, .held = kLaneChunks, .ragged = true};
      return launch(softmax_backward_ends_kernel<T, LaneTeam, kVariant>,
                    chunks <= 16 * kLaneChunks ? 16 : 32, 0, kThreads);
    }
  }
  if (chunks <= 32 * kLaneChunks) return false;
  constexpr auto variant = [](uint8_t held) -> RowVariant {
    return {.threads = kMaxThreads, .blocks = 2, .held = held, .ragged = kRagged};
  };
  if (chunks <= kMaxThreads) {
    return launch(softmax_backward_ends_kernel<T, BlockTeam, variant(1)>, 32, 1,
                  round_up(chunks, 32));
  }
  if (chunks <= 2 * kMaxThreads) {
    return launch(softmax_backward_ends_kernel<T, BlockTeam, variant(2)>, 32, 1,
                  round_up(ceil_div(chunks, 2), 32));
  }
  constexpr int64_t kLargest = int64_t{kRowCluster} * kHeld * kMaxThreads;
  if (chunks > kLargest || scope.facts().code_version < 90) return false;
  // NOTE: small blocks, where they are enough, leave less of a multiprocessor idle.
  const int64_t most = chunks <= kLargest / 2 ? kMaxThreads / 2 : kMaxThreads;
  const int64_t cluster = ceil_div(chunks, kHeld * most);
  return launch(softmax_backward_ends_kernel<T, ClusterTeam, variant(kHeld)>, 32, cluster,
                round_up(ceil_div(chunks, kHeld * cluster), 32));
}

// Longer rows: what registers do not hold waits in shared memory.
template <class T, bool kRagged>
bool launch_long(const SoftmaxBackward<T, T>& p, const SoftmaxShape& shape,
                 const LaunchScope& scope) {
  constexpr int kHeld = 2, kThreads = 512;
  const int cluster = scope.facts().code_version >= 90 ? kRowCluster : 1;
  const int64_t chunks = ceil_div(shape.n, int64_t{kChunkOf<T>});
  const int64_t per_thread = ceil_div(chunks, int64_t{cluster} * kThreads);
  const int64_t rest = std::max<int64_t>(per_thread - kHeld, 0) * kThreads * 16;
  const int64_t limit = scope.facts().shared_memory_per_block - ClusterTeam::kSlots * 16;
  if (2 * rest > limit || shape.outer > kMostRows) return false;
  const RowLayout layout{.rows = shape.outer,
                         .n = static_cast<int>(shape.n),
                         .lanes = 32,
                         .cluster = cluster,
                         .chunks = static_cast<int>(per_thread),
                         .pitch = static_cast<int>(rest),
                         .bulk = false};
  const RowPlan plan{true, layout, kThreads, 2 * rest, shape.outer * cluster};
  const auto launch = [&]<class Team>(std::type_identity<Team>) {
    constexpr RowVariant kVariant{
        .threads = kThreads, .blocks = 3, .held = kHeld, .ragged = kRagged, .overflows = true};
    constexpr auto kKernel = softmax_backward_direct_kernel<T, Team, kVariant>;
    allow_shared_memory<kKernel>(scope.device(), static_cast<int>(limit));
    launch_rows(kKernel, plan, scope, p, layout);
  };
  cluster == 1 ? launch(std::type_identity<BlockTeam>{})
               : launch(std::type_identity<ClusterTeam>{});
  return true;
}

// Rows that threads hold straight from memory; false: not here.
template <class T, bool kRagged>
bool launch_direct(const SoftmaxBackward<T, T>& p, const SoftmaxShape& shape,
                   const LaunchScope& scope) {
  // NOTE: of odd rows, those just beyond a power of two are frequent.
  constexpr int kChunks = kRagged ? 3 : 4;
  const DirectPlan plan = plan_direct(shape.outer, shape.n, kChunkOf<T>, {kChunks}, scope);
  using K = DirectKind;
  const bool few =
      plan.kind == K::kFewLanes || plan.kind == K::kFewBlocks || plan.kind == K::kFewClusters;
  if (!few && launch_ends<T, kRagged>(p, shape, scope)) return true;
  if (!few && plan.kind != K::kLanes) {
    const int64_t chunks = ceil_div(shape.n, int64_t{kChunkOf<T>});
    const bool idle = shape.outer * chunks <= int64_t{scope.facts().sm_count} * 1024;
    return !idle && launch_long<T, kRagged>(p, shape, scope);
  }
  using Kinds = Choices<K::kFewLanes, K::kFewBlocks, K::kFewClusters, K::kLanes>;
  dispatch(Kinds{}, plan.kind, [&]<DirectKind K>(Tag<K>) {
    constexpr RowVariant kVariant = [] {
      RowVariant variant = direct_variant<K>(kRagged);
      // NOTE: with more blocks registers are spilled.
      if (K == DirectKind::kLanes) variant.blocks = 14;
      return variant;
    }();
    launch_rows(softmax_backward_direct_kernel<T, DirectTeam<K>, kVariant>, plan.rows, scope, p,
                plan.rows.layout);
  });
  return true;
}

// Short rows side by side, many to a warp; false: not here.
template <class T, class S>
bool launch_packed(const SoftmaxBackward<T, S>& p, const SoftmaxShape& shape,
                   const LaunchScope& scope) {
  constexpr int64_t kLongest = sizeof(T) == 2 ? kPackedLongest / 2 : kPackedLongest;
  constexpr int kBytes = kPackedBytes<S, T, 2>, kMostStagedLanes = 32;
  if (p.dy_stride != shape.n || p.y_stride != shape.n) return false;
  const PackedRows rows = plan_packed(shape.outer, shape.n, kChunkOf<T>, shape.n * kBytes, kLongest,
                                      kMostStagedLanes, scope.facts().sm_count);
  if (rows.tile == 0) return false;
  launch_packed_rows(rows, kBytes, [&]<int kLanes>(Tag<kLanes>, int64_t bytes) {
    launch_kernel(softmax_backward_packed_kernel<T, S, kLanes>, dim3(rows.blocks()),
                  dim3(kPackedThreads), bytes, scope.stream(), scope.context().overlap, p, rows);
  });
  return true;
}

template <class T, class S, bool kRagged>
void launch_rows_of(const Tensor& dy, const Tensor& y, const SoftmaxShape& shape, bool log, T* dx,
                    const LaunchScope& scope) {
  // Config
  constexpr int kVec = kChunkOf<S>;
  const int inner_dims = y.dim() > 0 ? 1 : 0;
  const RowInput dy_rows = row_input(dy, shape.n, inner_dims, kVec);
  const RowInput y_rows = row_input(y, shape.n, inner_dims, kVec);
  const SoftmaxBackward<T, S> p{dy_rows.as<S>(), y_rows.as<S>(), dx,
                                dy_rows.stride,  y_rows.stride,  log};
  constexpr bool kDirect = sizeof(T) == 2 && std::is_same_v<T, S>;
  if constexpr (kRagged || !kDirect) {
    if (launch_packed<T, S>(p, shape, scope)) return;
  }
  if constexpr (kDirect) {
    if (launch_direct<T, kRagged>(p, shape, scope)) return;
  }
  // NOTE: of two tensors, half as many chunks are as many bytes on their way; a quarter where the
  // largest cluster then holds a row, so that two clusters share a multiprocessor.
  constexpr int kQuarter = 2 * kRowThreads * kRowCluster * kVec;
  const bool large = !kRagged && shape.n <= kQuarter && shape.n > kQuarter / 2;
  const RowProblem problem{
      shape.outer,        shape.n, kVec,   2, large ? 2 : (kSoftmaxChunks<kRagged> + 1) / 2,
      sizeof(Compute<T>), 2,       kRagged};
  const auto kernel = softmax_backward_kernel<T, S, kRagged>;
  const RowPlan plan = plan_rows(reinterpret_cast<const void*>(kernel), problem, scope);

  // Launch
  if (plan.held) {
    launch_rows(kernel, plan, scope, p, plan.layout);
  } else {
    const RowParts parts(shape.outer, shape.n, kVec, sizeof(S), scope.facts().sm_count);
    const dim3 blocks(static_cast<unsigned>(shape.outer * parts.parts)), threads(kStreamThreads);
    const Tensor found = new_dense(y, {shape.outer * parts.parts}, compute_type(shape.dtype));
    auto* const sums = static_cast<Compute<T>*>(found.mutable_data_ptr());
    launch_plain(softmax_backward_part_kernel<T, S>, blocks, threads, scope, p, parts, sums);
    launch_plain(softmax_backward_spread_kernel<T, S>, blocks, threads, scope, p, parts, sums);
  }
}

template <class T, class S, int kCols>
void launch_columns(const SoftmaxBackward<T, S>& p, const SoftmaxShape& shape,
                    const LaunchScope& scope) {
  const ColumnShape columns{shape.outer, shape.n, shape.inner};
  const int64_t tiles = ColumnTile<kCols>::count(columns);
  const int64_t blocks = std::min<int64_t>(tiles, int64_t{scope.facts().sm_count} * 64);
  launch_plain(softmax_backward_column_kernel<T, S, kCols>, dim3(blocks), dim3(kColumnX, kColumnY),
               scope, p, columns, tiles);
}

template <class T, class S>
void launch_columns_of(const Tensor& dy, const Tensor& y, const SoftmaxShape& shape, bool log,
                       T* dx, const LaunchScope& scope) {
  constexpr int kVec = 8 / sizeof(S);
  const Tensor dy_dense = dense(dy);
  const Tensor y_dense = dense(y);
  const SoftmaxBackward<T, S> p{static_cast<const S*>(dy_dense.const_data_ptr()),
                                static_cast<const S*>(y_dense.const_data_ptr()),
                                dx,
                                0,
                                0,
                                log};
  const auto aligned = [](const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  };
  if (aligned(p.dy) && aligned(p.y) && shape.inner % kVec == 0 && shape.inner >= kColumnX * kVec) {
    launch_columns<T, S, kVec>(p, shape, scope);
  } else {
    launch_columns<T, S, 1>(p, shape, scope);
  }
}

template <class T, class S>
void launch(const Tensor& dy, const Tensor& y, const SoftmaxShape& shape, bool log,
            const Tensor& dx, const LaunchScope& scope) {
  T* const out = static_cast<T*>(dx.mutable_data_ptr());
  if (shape.inner == 1) {
    dispatch_ragged<S>(shape.n, [&]<bool kRagged>(Tag<kRagged>) {
      launch_rows_of<T, S, kRagged>(dy, y, shape, log, out, scope);
    });
  } else {
    launch_columns_of<T, S>(dy, y, shape, log, out, scope);
  }
}

Tensor softmax_backward(const Tensor& dy,  // any shape
                        const Tensor& y,   // like dy
                        int64_t dim, bool log, int64_t dx_dtype) {
  // Guard
  const LaunchScope scope("softmax_backward", dy);

  // Contract and checks
  const SoftmaxShape shape = check_softmax_backward("softmax_backward", dy, y, dim);
  const DType dtype = check_grad_dtype("softmax_backward", dx_dtype, shape.dtype);

  // Allocate
  const Tensor dx = new_dense(y, y.sizes(), scalar_type_of(dtype));

  // Empty early return
  if (y.numel() == 0) return dx;

  // Config, launch
  dispatch_dtype(dtype, [&]<DType D>(Tag<D>) {
    using T = DeviceType<D>;
    if constexpr (sizeof(T) == 2) {
      if (dx_dtype != 0) return launch<T, float>(dy, y, shape, log, dx, scope);
    }
    launch<T, T>(dy, y, shape, log, dx, scope);
  });

  // Launch check
  check_launch("softmax_backward");
  return dx;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) {
  m.impl("softmax_backward", FUSEDOPS_BOX(&softmax_backward));
}

}  // namespace fusedops::cuda
