#include "csrc/common/device/device_types.cuh"
#include "csrc/common/device/shared_memory.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cutlass/kernels/conv/sm90_pointwise_conv.cuh"

namespace fusedops::pointwise_conv {
namespace {

inline constexpr int kSharedBytes = 227 * 1024;
// A weight of up to so many bytes for a block's columns stays in shared memory.
inline constexpr int kMostKeptBytes = 128 * 1024;
inline constexpr int kLeastStages = 2;

const char* encode(const Call& c, const void* data, int64_t rows, int64_t columns, int box_rows,
                   CUtensorMap* map) {
  TmaTensor t;
  t.data = data;
  t.type = c.dtype == DType::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                      : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  t.columns = columns;
  t.rows = rows;
  t.row_stride = columns;
  return encode_tensor_map(t, box_rows, map);
}

const char* encode_all(const Call& c, int columns, Maps* maps) {
  if (const char* refusal = encode(c, c.x, c.m, c.k, kTileRows, &maps->x)) return refusal;
  if (const char* refusal = encode(c, c.weight, c.n, c.k, columns, &maps->weight)) return refusal;
  if (const char* refusal = encode(c, c.y, c.m, c.n, kGroupRows, &maps->y)) return refusal;
  return c.residual ? encode(c, c.residual, c.m, c.n, kGroupRows, &maps->residual) : nullptr;
}

struct Launch {
  Problem problem;
  int blocks, bytes;
};

template <class S>
Launch plan(const Call& c, int sm_count) {
  Problem p{};
  p.m = int(c.m), p.n = int(c.n);
  p.tiles_n = int(ceil_div(c.n, int64_t{S::kColumns}));
  const int tiles_m = int(ceil_div(c.m, int64_t{kTileRows}));
  p.tiles = tiles_m * p.tiles_n;
  p.steps = int(ceil_div(c.k, int64_t{kBoxColumns}));
  p.activation = c.activation;
  p.norm = c.norm;
  const int walkers = sm_count / p.tiles_n;  // blocks of the same columns
  const int room = kSharedBytes - S::kFixedBytes;
  const int kept = p.steps * S::kWeightStepBytes;
  p.keeps_weight =
      tiles_m > walkers && kept <= kMostKeptBytes && room - kept >= kLeastStages * kRowStepBytes;
  const int stage = kRowStepBytes + (p.keeps_weight ? 0 : S::kWeightStepBytes);
  const int left = room - (p.keeps_weight ? kept : 0);
  p.stages = left / stage < kMostStages ? left / stage : kMostStages;
  const int bytes = kSharedBytes - left + p.stages * stage;
  return {p, (tiles_m < walkers ? tiles_m : walkers) * p.tiles_n, bytes};
}

template <class T, int kColumns, bool kResidual>
const char* launch(const Call& c, const LaunchContext& context) {
  constexpr auto kKernel = &pointwise_conv_kernel<T, kColumns, kResidual>;
  Maps maps{};
  if (const char* refusal = encode_all(c, kColumns, &maps)) return refusal;
  const Launch l = plan<Shape<kColumns, kResidual>>(c, context.sm_count);
  cudaError_t status = allow_shared_memory<kKernel>(context.device, kSharedBytes);
  if (status != cudaSuccess) return cudaGetErrorString(status);
  status =
      launch_kernel(kKernel, dim3(unsigned(l.blocks)), dim3(kThreads), size_t(l.bytes),
                    static_cast<cudaStream_t>(context.stream), context.overlap, l.problem, maps);
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

// The columns of a tile: few tiles, each of which reads x, and few columns beyond N.
int columns_of(const Call& c) {
  int best = 0;
  int64_t least = 0;
  for (const int columns : {64, 128, 192}) {
    if (c.residual && columns > 128) break;
    const int64_t work = ceil_div(c.n, int64_t{columns}) * (columns + 48);
    if (best == 0 || work < least) best = columns, least = work;
  }
  return best;
}

const char* run(const Call& c, const LaunchContext& context) {
  using Halves = Choices<DType::kFloat16, DType::kBFloat16>;
  return dispatch(Halves{}, c.dtype, [&]<DType kDType>(Tag<kDType>) {
    using T = DeviceType<kDType>;
    return dispatch(Choices<64, 128, 192>{}, columns_of(c), [&]<int kColumns>(Tag<kColumns>) {
      if constexpr (kColumns <= 128) {
        if (c.residual) return launch<T, kColumns, true>(c, context);
      }
      return launch<T, kColumns, false>(c, context);
    });
  });
}

const bool registered = register_kernels(&run);

}  // namespace
}  // namespace fusedops::pointwise_conv
