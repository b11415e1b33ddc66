#include "csrc/common/device/device_types.cuh"
#include "csrc/common/device/shared_memory.cuh"
#include "csrc/cutlass/configs/cluster_configs.h"
#include "csrc/cutlass/configs/registry.h"
#include "csrc/cutlass/kernels/cluster/sm90_cluster.cuh"

namespace fusedops::cluster {
namespace {

// Boxes are box_rows by 64 of K, or 64 rows where K is not what is contiguous.
const char* encode(const GemmProblem& p, const GemmOperand& operand, int64_t rows, int box_rows,
                   CUtensorMap* map) {
  const bool contiguous_k = operand.major == Major::kK;
  TmaTensor t;
  t.data = operand.data;
  t.type = p.dtype == DType::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                      : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  t.columns = contiguous_k ? p.k : rows;
  t.rows = contiguous_k ? rows : p.k;
  t.row_stride = operand.ld;
  return encode_tensor_map(t, contiguous_k ? box_rows : kStepK, map);
}

template <class T, class S>
const char* launch(const ClusterConfig& config, const GemmProblem& p,
                   const LaunchContext& context) {
  const GemmOperand &rows = S::kSwapped ? p.b : p.a, &columns = S::kSwapped ? p.a : p.b;
  const int64_t num_rows = S::kSwapped ? p.n : p.m, num_columns = S::kSwapped ? p.m : p.n;
  CUtensorMap a, b;
  if (const char* refusal = encode(p, rows, num_rows, S::kRows, &a)) return refusal;
  if (const char* refusal = encode(p, columns, num_columns, S::kPart, &b)) return refusal;
  const TileCluster cluster = tile_cluster(config, p, p.shared_tiles);
  const int64_t tiles = cluster.tiles_of(config, p);
  if (tiles > INT32_MAX / S::kBlocks) return "too many output tiles";
  cudaError_t status = allow_shared_memory<&cluster_kernel<T, S>>(context.device, S::kSharedBytes);
  if (status != cudaSuccess) return cudaGetErrorString(status);
  Problem problem;
  problem.bias = p.bias;
  problem.y = p.d;
  problem.z = p.epilogue == Epilogue::kPreact ? p.preact : nullptr;
  problem.ldy = p.ldd;
  problem.m = int(p.m);
  problem.n = int(p.n);
  problem.cluster_rows = S::kSwapped ? cluster.n : cluster.m;
  problem.cluster_columns = S::kSwapped ? cluster.m : cluster.n;
  problem.row_tiles = int(round_up(ceil_div(num_rows, S::kRows), problem.cluster_rows));
  problem.steps = int(ceil_div(p.k, kStepK));
  problem.activation = p.activation;
  problem.has_norm = p.epilogue == Epilogue::kNorm;
  problem.norm = p.norm;
  status = launch_cluster_kernel(cluster_kernel<T, S>, dim3(unsigned(tiles * S::kBlocks)),
                                 dim3(S::kThreads), S::kBlocks * cluster.tiles(), S::kSharedBytes,
                                 static_cast<cudaStream_t>(context.stream), context.overlap,
                                 problem, a, b);
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

template <int kConfig, DType kDType, bool kTransA, bool kTransB>
const char* run(const GemmProblem& p, const LaunchContext& context) {
  constexpr ClusterConfig kTile = kClusterConfigs[kConfig];
  if (const char* refusal = cluster_refusal(kTile, p)) return refusal;
  constexpr int kRows = kTile.swapped ? kTile.tile_n : kTile.tile_m;
  constexpr int kColumns = kTile.swapped ? kTile.tile_m : kTile.tile_n;
  using S = Shape<kRows / 64, kColumns, kTile.cluster_n, kTransA, kTransB, kTile.swapped>;
  return launch<DeviceType<kDType>, S>(kTile, p, context);
}

template <int kConfig, bool kTransA, bool kTransB>
void register_config(Epilogue epilogue) {
  constexpr Major kA = kTransA ? Major::kMN : Major::kK, kB = kTransB ? Major::kMN : Major::kK;
  if constexpr (kClusterConfigs[kConfig].variants & variant_bit(Epilogue::kFused, kA, kB)) {
    const auto key = [&](DType dtype) {
      return KernelKey{Family::kCluster, kConfig, dtype, MathMode::kNative, kA, kB, epilogue};
    };
    register_kernel(key(DType::kFloat16), &run<kConfig, DType::kFloat16, kTransA, kTransB>);
    register_kernel(key(DType::kBFloat16), &run<kConfig, DType::kBFloat16, kTransA, kTransB>);
  }
}

static_assert(kNumClusterConfigs <= kMaxConfigs);  // the table of kernels has no other guard

template <int kConfig = 0>
bool register_from() {
  if constexpr (kConfig < kNumClusterConfigs) {
    register_config<kConfig, false, false>(Epilogue::kFused);
    register_config<kConfig, false, false>(Epilogue::kPreact);
    register_config<kConfig, false, false>(Epilogue::kNorm);
    register_config<kConfig, false, true>(Epilogue::kFused);
    register_config<kConfig, true, true>(Epilogue::kFused);
    register_from<kConfig + 1>();
  }
  return true;
}

const bool registered = register_from();

}  // namespace
}  // namespace fusedops::cluster
