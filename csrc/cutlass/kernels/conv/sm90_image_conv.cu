#include "csrc/common/device/device_types.cuh"
#include "csrc/common/device/shared_memory.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cutlass/kernels/conv/sm90_image_conv.cuh"

namespace fusedops::image_conv {
namespace {

inline constexpr int kSharedBytes = 227 * 1024;

CUtensorMapDataType type_of(const Call& c) {
  return c.dtype == DType::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                    : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

// Squares of `side` pixels with 64 of the channels.
const char* encode_image(const Call& c, const void* data, int64_t channels, int side,
                         CUtensorMap* map) {
  static const auto encode =
      driver_entry<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  if (encode == nullptr) return "the driver has no cuTensorMapEncodeTiled";
  const cuuint64_t sizes[4] = {cuuint64_t(channels), cuuint64_t(c.w), cuuint64_t(c.h),
                               cuuint64_t(c.images)};
  const cuuint64_t strides[3] = {cuuint64_t(channels * 2), cuuint64_t(channels * c.w * 2),
                                 cuuint64_t(channels * c.w * c.h * 2)};
  const cuuint32_t box[4] = {kTapColumns, cuuint32_t(side), cuuint32_t(side), 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUresult status =
      encode(map, type_of(c), 4, const_cast<void*>(data), sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return status == CUDA_SUCCESS ? nullptr : "the driver refuses a tensor map";
}

const char* encode_all(const Call& c, Maps* maps) {
  TmaTensor weight;
  weight.data = c.weight;
  weight.type = type_of(c);
  weight.rows = c.transposed ? c.channels : c.outputs;
  weight.columns = kTaps * (c.transposed ? c.outputs : c.channels);
  weight.row_stride = weight.columns;
  if (const char* refusal = encode_tensor_map(weight, kTapColumns, &maps->weight)) return refusal;
  if (const char* refusal = encode_image(c, c.x, c.channels, kPatch, &maps->x)) return refusal;
  return encode_image(c, c.y, c.outputs, kTile, &maps->y);
}

struct Launch {
  Problem problem;
  int blocks, bytes;
};

template <class S>
Launch plan(const Call& c, int sm_count) {
  Problem p{};
  p.tiles_x = int(ceil_div(c.w, int64_t{kTile})), p.tiles_y = int(ceil_div(c.h, int64_t{kTile}));
  p.tiles = int(c.images) * p.tiles_x * p.tiles_y;
  p.tiles_n = int(ceil_div(c.outputs, int64_t{kTapColumns}));
  p.n = int(c.outputs), p.channels = int(c.channels);
  p.steps = int(c.channels) / kTapColumns;
  p.activation = c.activation;
  p.norm = c.norm;
  const int stage = kGroups * kPatchBytes;
  const int room = kSharedBytes - S::kFixedBytes - p.steps * kStepBytes;
  p.stages = room / stage < kMostStages ? room / stage : kMostStages;
  const int walkers = sm_count / p.tiles_n, pairs = (p.tiles + kGroups - 1) / kGroups;
  const int bytes = kSharedBytes - room + p.stages * stage;
  return {p, (pairs < walkers ? pairs : walkers) * p.tiles_n, bytes};
}

template <class T, bool kTransposed>
const char* launch(const Call& c, const LaunchContext& context) {
  constexpr auto kKernel = &image_conv_kernel<T, kTransposed>;
  Maps maps{};
  if (const char* refusal = encode_all(c, &maps)) return refusal;
  const Launch l = plan<Shape<kTransposed>>(c, context.sm_count);
  cudaError_t status = allow_shared_memory<kKernel>(context.device, kSharedBytes);
  if (status != cudaSuccess) return cudaGetErrorString(status);
  status =
      launch_kernel(kKernel, dim3(unsigned(l.blocks)), dim3(kThreads), size_t(l.bytes),
                    static_cast<cudaStream_t>(context.stream), context.overlap, l.problem, maps);
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

const char* run(const Call& c, const LaunchContext& context) {
  using Halves = Choices<DType::kFloat16, DType::kBFloat16>;
  return dispatch(Halves{}, c.dtype, [&]<DType kDType>(Tag<kDType>) {
    using T = DeviceType<kDType>;
    return c.transposed ? launch<T, true>(c, context) : launch<T, false>(c, context);
  });
}

const bool registered = register_kernels(&run);

}  // namespace
}  // namespace fusedops::image_conv
