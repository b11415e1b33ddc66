#include <algorithm>

#include "csrc/common/device/device_types.cuh"
#include "csrc/common/device/pdl.cuh"
#include "csrc/common/device/shared_memory.cuh"
#include "csrc/common/dispatch.h"
#include "csrc/cutlass/configs/registry.h"
#include "csrc/cutlass/configs/skinny_configs.h"
#include "csrc/cutlass/kernels/skinny/sm90_skinny.cuh"

namespace fusedops::skinny {
namespace {

using Columns = Choices<8, 16, 32, 64, 96, 128>;

constexpr int columns_for(int64_t m) {
  return m <= 8 ? 8 : m <= 16 ? 16 : m <= 32 ? 32 : m <= 64 ? 64 : m <= 96 ? 96 : 128;
}

// A launch's shared memory. The sums and the outputs of a block reuse its stages.
template <class S>
struct Layout {
  int stages, bytes;
  bool fits;
  constexpr Layout(const GemmConfig& config, int m) {
    const Pieces pieces(m, config.cluster_n);
    const int fixed = S::kBarrierBytes + pieces.template received_bytes<S>(config.cluster_n);
    const int sums = pieces.per_block * S::kGroups * kPieceBytes;
    stages = std::min(kMaxStages, (shared_budget(config.tile_k) - fixed) / S::kStageBytes);
    bytes = stages * S::kStageBytes + fixed;
    fits = stages >= 2 && sums + sums / 2 <= stages * S::kStageBytes;
  }
};

CUtensorMapDataType tma_type(DType dtype) {
  return dtype == DType::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                  : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

const char* encode(const GemmProblem& p, const GemmOperand& operand, int64_t rows, int box_rows,
                   CUtensorMap* map) {
  sm90::TmaTensor t;
  t.data = operand.data;
  t.type = tma_type(p.dtype);
  t.columns = p.k;
  t.rows = rows;
  t.row_stride = operand.ld;
  return sm90::encode_tensor_map(t, box_rows, map);
}

template <class T, class S>
const char* launch(const GemmProblem& p, const GemmConfig& config, const LaunchContext& context) {
  CUtensorMap x, w;
  if (const char* refusal = encode(p, p.a, p.m, S::kCols, &x)) return refusal;
  if (const char* refusal = encode(p, p.b, p.n, S::kRows, &w)) return refusal;
  cudaError_t status = allow_shared_memory<&skinny_kernel<T, S>>(context.device, shared_budget(1));
  if (status != cudaSuccess) return cudaGetErrorString(status);
  const auto misaligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16; };
  const Layout<S> layout(config, int(p.m));
  Problem problem;
  problem.bias = p.bias;
  problem.y = p.d;
  problem.z = p.epilogue == Epilogue::kPreact ? p.preact : nullptr;
  problem.ldy = p.ldd;
  problem.m = int(p.m);
  problem.n = int(p.n);
  problem.k = int(p.k);
  problem.vectors = p.n % 8 == 0 && p.ldd % 8 == 0 && !misaligned(p.d) && !misaligned(p.preact);
  problem.activation = p.activation;
  problem.stages = layout.stages;
  const int64_t blocks = ceil_div(p.n, S::kRows) * config.cluster_n;
  status = launch_cluster_kernel(
      skinny_kernel<T, S>, dim3(unsigned(blocks)), dim3(S::kThreads), unsigned(config.cluster_n),
      layout.bytes, static_cast<cudaStream_t>(context.stream), context.overlap, problem, x, w);
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

template <int kConfig, DType kDType>
const char* run(const GemmProblem& p, const LaunchContext& context) {
  constexpr GemmConfig kTile = kSkinnyConfigs[kConfig];
  using T = DeviceType<kDType>;
  if (const char* refusal = skinny_refusal(p)) return refusal;
  return dispatch(Columns{}, columns_for(p.m), [&]<int kCols>(Tag<kCols>) {
    using S = Shape<kTile.tile_n, kCols>;
    static_assert(Layout<S>(kTile, kCols).fits);
    return launch<T, S>(p, kTile, context);
  });
}

template <int kConfig>
bool register_from() {
  if constexpr (kConfig < kNumSkinnyConfigs) {
    for (Epilogue epilogue : {Epilogue::kFused, Epilogue::kPreact}) {
      const auto key = [&](DType dtype) {
        return KernelKey{Family::kSkinny, kConfig,   dtype,   MathMode::kNative,
                         Major::kK,       Major::kK, epilogue};
      };
      register_kernel(key(DType::kFloat16), &run<kConfig, DType::kFloat16>);
      register_kernel(key(DType::kBFloat16), &run<kConfig, DType::kBFloat16>);
    }
    register_from<kConfig + 1>();
  }
  return true;
}

const bool registered = register_from<0>();

}  // namespace
}  // namespace fusedops::skinny
