#include "csrc/common/device/device_types.cuh"
#include "csrc/common/device/shared_memory.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cutlass/kernels/narrow/sm90_narrow_pair.cuh"

namespace fusedops::narrow {
namespace {

const char* encode(DType dtype, const void* data, int64_t rows, int64_t columns, int64_t ld,
                   int box_rows, CUtensorMap* map) {
  TmaTensor t;
  t.data = data;
  t.type =
      dtype == DType::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  t.columns = columns;
  t.rows = rows;
  t.row_stride = ld;
  return encode_tensor_map(t, box_rows, map);
}

// Encodes the maps of what is wanted; a map that no copy uses stays as it is.
template <class S>
const char* encode_all(const Backward& p, Maps* maps) {
  const auto rows = [&](const void* data, int64_t columns, int64_t ld, CUtensorMap* map) {
    return data ? encode(p.dtype, data, p.m, columns, ld, kTileRows, map) : nullptr;
  };
  if (const char* refusal = rows(p.dy, p.n, p.dy_ld, &maps->dy)) return refusal;
  if (const char* refusal = rows(p.saved, p.n, p.saved_ld, &maps->saved)) return refusal;
  if (p.dweight) {
    if (const char* refusal = rows(p.x, p.k, p.x_ld, &maps->x)) return refusal;
  }
  if (p.dx == nullptr) return nullptr;
  if (const char* refusal = rows(p.dx, p.k, p.k, &maps->dx)) return refusal;
  return encode(p.dtype, p.weight, p.n, p.k, p.weight_ld, S::kNBoxes * kBoxFeatures, &maps->weight);
}

// So many sums and more are enough for blocks of threads with wide accesses.
constexpr int64_t kWideSums = 16384;

template <class Out, int kVec>
cudaError_t launch_sum(const Backward& p, const Plan& plan, const LaunchContext& context) {
  return launch_kernel(narrow_sum_kernel<Out, kVec>,
                       dim3(unsigned(ceil_div(p.width(), kSumX * kVec))), dim3(kSumX, kSumY), 0,
                       static_cast<cudaStream_t>(context.stream), context.overlap, p.partial,
                       plan.slots, p.width(), static_cast<Out*>(p.dweight),
                       p.dweight ? p.n * p.k : 0, static_cast<Out*>(p.dbias));
}

template <class Out>
cudaError_t launch_sum(const Backward& p, const Plan& plan, const LaunchContext& context) {
  return p.width() >= kWideSums ? launch_sum<Out, 4>(p, plan, context)
                                : launch_sum<Out, 1>(p, plan, context);
}

Problem problem_of(const Backward& p, const Plan& plan) {
  Problem problem;
  problem.partial = p.partial;
  problem.width = p.width();
  problem.tiles = int(ceil_div(p.m, kTileRows));
  problem.n = int(p.n);
  problem.k = int(p.k);
  problem.chunks = plan.chunks;
  problem.slots = plan.slots;
  problem.needs_dx = p.dx != nullptr;
  problem.needs_dweight = p.dweight != nullptr;
  problem.needs_dbias = p.dbias != nullptr;
  problem.activation = p.activation;
  return problem;
}

template <class T, class S>
constexpr auto kernel_of() {
  if constexpr (S::kCluster == 2) {
    return &narrow_pair_kernel<T>;
  } else {
    return &narrow_kernel<T, S>;
  }
}

template <class T, class S>
const char* launch(const Backward& p, const Plan& plan, const LaunchContext& context) {
  constexpr auto kKernel = kernel_of<T, S>();
  Maps maps{};
  if (const char* refusal = encode_all<S>(p, &maps)) return refusal;
  cudaError_t status = allow_shared_memory<kKernel>(context.device, S::kBytes);
  if (status != cudaSuccess) return cudaGetErrorString(status);
  status = launch_cluster_kernel(
      kKernel, dim3(unsigned(plan.slots * plan.chunks)), dim3(S::kThreads), S::kCluster, S::kBytes,
      static_cast<cudaStream_t>(context.stream), context.overlap, problem_of(p, plan), maps);
  if (status == cudaSuccess && p.width() > 0) {
    status = p.fp32_sums ? launch_sum<float>(p, plan, context) : launch_sum<T>(p, plan, context);
  }
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

const char* run(const Backward& p, const LaunchContext& context) {
  const Plan plan = plan_of(p, context.sm_count);
  using Halves = Choices<DType::kFloat16, DType::kBFloat16>;
  return dispatch(Halves{}, p.dtype, [&]<DType kDType>(Tag<kDType>) {
    using T = DeviceType<kDType>;
    if (plan.n_boxes == 4 && plan.chunks == 2) return launch<T, PairShape>(p, plan, context);
    return dispatch(Choices<1, 2, 4>{}, plan.n_boxes, [&]<int kN>(Tag<kN>) {
      return dispatch(Choices<1, 2>{}, plan.k_boxes,
                      [&]<int kK>(Tag<kK>) { return launch<T, Shape<kN, kK>>(p, plan, context); });
    });
  });
}

const bool registered = register_kernels(&run);

}  // namespace
}  // namespace fusedops::narrow
