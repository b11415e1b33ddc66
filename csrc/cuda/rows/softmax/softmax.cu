// softmax and log_softmax on CUDA.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <type_traits>

#include "csrc/common/checks/op_boundary.h"
#include "csrc/common/checks/row_check.h"
#include "csrc/common/device/device_types.cuh"
#include "csrc/common/device/shared_memory.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cuda/rows/softmax/softmax_direct.cuh"
#include "csrc/cuda/rows/softmax/softmax_ends.cuh"
#include "csrc/cuda/rows/softmax/softmax_packed.cuh"
#include "csrc/cuda/rows/softmax/softmax_stream.cuh"
#include "csrc/cuda/rows/team/row_plan.h"

namespace fusedops::cuda {
namespace {

constexpr int kHeld = 4, kLongHeld = 3;  // chunks of a thread in registers
constexpr int kLongThreads = 768;

// NOTE: the softmax rows of perf/results/h200/norm.csv are with these numbers;
// `python -m fusedops bench norm --compare` says what others give.
template <class T, bool kRagged, DirectKind kKind>
constexpr auto softmax_kernel_of() {
  using K = DirectKind;
  if constexpr (kKind == K::kLong) {
    constexpr RowVariant kVariant{.threads = kLongThreads,
                                  .blocks = 2,
                                  .held = kLongHeld,
                                  .ragged = kRagged,
                                  .overflows = true};
    return softmax_direct_kernel<T, BlockTeam, kVariant>;
  } else if constexpr (kKind == K::kWide) {
    constexpr RowVariant kVariant{
        .threads = kWideThreads, .blocks = 3, .held = kHeld, .ragged = kRagged};
    return softmax_ends_kernel<T, BlockTeam, kVariant>;
  } else if constexpr (kKind == K::kBlock && kRagged) {
    constexpr RowVariant kVariant{
        .threads = kBlockThreads, .blocks = 5, .held = kHeld, .ragged = true};
    return softmax_ends_kernel<T, BlockTeam, kVariant>;
  } else {
    return softmax_direct_kernel<T, DirectTeam<kKind>, direct_variant<kKind>(kRagged)>;
  }
}

// Rows that threads hold straight from memory; false: not here.
template <class T, bool kRagged>
bool launch_direct(const SoftmaxForward<T, T>& p, const SoftmaxShape& shape,
                   const LaunchScope& scope) {
  const DirectPlan plan = plan_direct(shape.outer, shape.n, kChunkOf<T>,
                                      {kHeld, kLongHeld, kLongThreads, kRagged}, scope);
  if (plan.kind == DirectKind::kNone) return false;
  const RowLayout& layout = plan.rows.layout;
  // NOTE: the ends of a row take 16 lanes.
  if (kRagged && plan.kind == DirectKind::kLanes && layout.lanes >= 16) {
    constexpr RowVariant kVariant{.threads = 64, .blocks = 16, .held = kHeld, .ragged = true};
    launch_rows(softmax_ends_kernel<T, LaneTeam, kVariant>, plan.rows, scope, p, layout);
    return true;
  }
  dispatch(DirectKinds{}, plan.kind, [&]<DirectKind K>(Tag<K>) {
    constexpr auto kKernel = softmax_kernel_of<T, kRagged, K>();
    if (K == DirectKind::kLong) {
      allow_shared_memory<kKernel>(scope.device(),
                                   scope.facts().shared_memory_per_block - kDirectSlotBytes);
    }
    launch_rows(kKernel, plan.rows, scope, p, layout);
  });
  return true;
}

// Short rows side by side, many to a warp; false: not here.
template <class T, class O>
bool launch_packed(const SoftmaxForward<T, O>& p, const SoftmaxShape& shape,
                   const LaunchScope& scope) {
  constexpr int64_t kLongest = sizeof(T) == 2 ? kPackedLongest / 2 : kPackedLongest;
  constexpr int kBytes = kPackedBytes<T, O, 1>, kMostStagedLanes = sizeof(T) == 2 ? 4 : 0;
  if (p.x_stride != shape.n) return false;
  const PackedRows rows = plan_packed(shape.outer, shape.n, kChunkOf<T>, shape.n * kBytes, kLongest,
                                      kMostStagedLanes, scope.facts().sm_count);
  if (rows.tile == 0) return false;
  launch_packed_rows(rows, kBytes, [&]<int kLanes>(Tag<kLanes>, int64_t bytes) {
    launch_kernel(softmax_packed_kernel<T, O, kLanes>, dim3(rows.blocks()), dim3(kPackedThreads),
                  bytes, scope.stream(), scope.context().overlap, p, rows);
  });
  return true;
}

// The innermost dim.
template <class T, class O, bool kRagged>
void launch_rows_of(const Tensor& x, const SoftmaxShape& shape, int64_t dims, bool log, O* y,
                    const LaunchScope& scope) {
  // Config
  constexpr int kVec = kChunkOf<T>;
  const RowInput input = row_input(x, shape.n, dims > 0 ? 1 : 0, kVec);
  const SoftmaxForward<T, O> p{input.as<T>(), y, input.stride, log};
  constexpr bool kDirect = sizeof(T) <= 4 && std::is_same_v<T, O>;
  if constexpr (kRagged || !kDirect) {
    // NOTE: a launch is what a few short rows wait for; a thread for each chunk has them soonest.
    const bool few = kDirect && shape.n % kVec == 0 &&
                     shape.outer * (shape.n / kVec) <= scope.facts().sm_count * kFewChunks;
    if (!few && launch_packed<T, O>(p, shape, scope)) return;
  }
  if constexpr (kDirect) {
    if (launch_direct<T, kRagged>(p, shape, scope)) return;
  }
  constexpr int kMax = kSoftmaxChunks<kRagged>;
  // NOTE: a block that fills a multiprocessor stays: nothing runs beside it.
  const bool stays = shape.n > kRowThreads / 2 * kMax * kVec;
  const RowProblem problem{shape.outer,        shape.n,       kVec,   1, kMax,
                           sizeof(Compute<T>), stays ? 0 : 2, kRagged};
  const auto kernel = softmax_kernel<T, O, kRagged>;
  const RowPlan plan = plan_rows(reinterpret_cast<const void*>(kernel), problem, scope);

  // Launch
  if (plan.held) {
    launch_rows(kernel, plan, scope, p, plan.layout);
  } else {
    const RowParts parts(shape.outer, shape.n, kVec, sizeof(T), scope.facts().sm_count);
    const dim3 blocks(static_cast<unsigned>(shape.outer * parts.parts)), threads(kStreamThreads);
    const Tensor found = new_dense(x, {shape.outer * parts.parts * 2}, compute_type(shape.dtype));
    auto* const sums = static_cast<Compute<T>*>(found.mutable_data_ptr());
    launch_plain(softmax_part_kernel<T, O>, blocks, threads, scope, p, parts, sums);
    launch_plain(softmax_spread_kernel<T, O>, blocks, threads, scope, p, parts, sums);
  }
}

// Any other dim.
template <class T, class O, int kCols>
void launch_columns(const SoftmaxForward<T, O>& p, const SoftmaxShape& shape,
                    const LaunchScope& scope) {
  const ColumnShape columns{shape.outer, shape.n, shape.inner};
  const int64_t tiles = ColumnTile<kCols>::count(columns);
  const int64_t blocks = std::min<int64_t>(tiles, int64_t{scope.facts().sm_count} * 64);
  launch_plain(softmax_column_kernel<T, O, kCols>, dim3(blocks), dim3(kColumnX, kColumnY), scope, p,
               columns, tiles);
}

template <class T, class O>
void launch_columns_of(const Tensor& x, const SoftmaxShape& shape, bool log, O* y,
                       const LaunchScope& scope) {
  constexpr int kVec = 8 / sizeof(T);
  const Tensor input = dense(x);
  const SoftmaxForward<T, O> p{static_cast<const T*>(input.const_data_ptr()), y, 0, log};
  const bool aligned = reinterpret_cast<uintptr_t>(p.x) % 16 == 0 && shape.inner % kVec == 0;
  if (aligned && shape.inner >= kColumnX * kVec) {
    launch_columns<T, O, kVec>(p, shape, scope);
  } else {
    launch_columns<T, O, 1>(p, shape, scope);
  }
}

Tensor softmax(const Tensor& x,  // any shape
               int64_t dim, bool log, bool fp32_out) {
  // Guard
  const LaunchScope scope("softmax", x);

  // Contract and checks
  const SoftmaxShape shape = check_softmax("softmax", x, dim, fp32_out);

  // Allocate
  const Tensor y = new_dense(x, x.sizes(), fp32_out ? ScalarType::Float : x.scalar_type());

  // Empty early return
  if (x.numel() == 0) return y;

  // Config, launch
  dispatch_dtype(shape.dtype, [&]<DType D>(Tag<D>) {
    dispatch_bool(fp32_out, [&]<bool kWide>(Tag<kWide>) {
      using T = DeviceType<D>;
      using O = std::conditional_t<kWide && sizeof(T) == 2, float, T>;
      O* const out = static_cast<O*>(y.mutable_data_ptr());
      if (shape.inner == 1) {
        dispatch_ragged<T>(shape.n, [&]<bool kRagged>(Tag<kRagged>) {
          launch_rows_of<T, O, kRagged>(x, shape, x.dim(), log, out, scope);
        });
      } else {
        launch_columns_of<T, O>(x, shape, log, out, scope);
      }
    });
  });

  // Launch check
  check_launch("softmax");
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fusedops, CUDA, m) { m.impl("softmax", FUSEDOPS_BOX(&softmax)); }

}  // namespace fusedops::cuda
