// GEMM of operands of any majorness that begin anywhere, and so end anywhere: what TMA and
// cp.async of 16 bytes cannot read and would have to be copied first. mma.sync with fp32 sums, two
// tiles in shared memory, the next one on its way in registers (unaligned_operand.cuh).
#pragma once

#include "csrc/cutlass/kernels/sm80/sm80_tile.cuh"
#include "csrc/cutlass/kernels/unaligned/unaligned_operand.cuh"
#include "csrc/cutlass/kernels/unaligned/unaligned_result.cuh"

namespace fusedops::unaligned {

struct Params {
  Operand a, b;
  int64_t m, n;
  sm80::KRange range;
  sm80::TileOrder order;
  void* d;
  void* preact;      // or null
  const void* bias;  // or null
  int64_t ldd, slice_stride;
  Activation activation;
  bool as_float;  // d gets the sums themselves, in fp32
};

// A tile among the warps of a block, side by side along N or, where kDown, below each other first.
template <class Element, Tile kTile, int kAlongM = warps_m(kTile), bool kDown = false>
struct Shape {
  using T = Element;
  static constexpr Tile kShape = kTile;
  static constexpr int kM = kShape.m, kN = kShape.n;
  static constexpr int kWarpsM = kAlongM, kWarpsN = kThreads / 32 / kAlongM;
  static constexpr bool kRowsFirst = kDown;
  static constexpr int kWarpM = kM / kWarpsM, kWarpN = kN / kWarpsN;
  static constexpr int kTilesM = kWarpM / 16, kTilesN = kWarpN / 8;
};

// A warp's sums, in fp32.
template <class S>
struct Sums {
  float value[S::kTilesM][S::kTilesN][4] = {};
  int row, col;  // the warp's first output, inside the tile

  __device__ __forceinline__ Sums() {
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    row = (S::kRowsFirst ? warp % S::kWarpsM : warp / S::kWarpsN) * S::kWarpM;
    col = (S::kRowsFirst ? warp / S::kWarpsM : warp % S::kWarpsN) * S::kWarpN;
  }
};

// 16-bit operands.
template <class Half, int kTile, Major kA, Major kB>
struct Gemm : Shape<Half, kTiles[kTile]> {
  using S = Shape<Half, kTiles[kTile]>;
  static constexpr int kK = kTileK;
  // Where products that multiply() began are there, and stores to shared memory for all to see.
  static __device__ __forceinline__ void finish(Sums<S>&) {}
  using LoaderA = Loader<S::kM, kA>;
  using LoaderB = Loader<S::kN, kB>;
  static constexpr int kStage = LoaderA::kTileUnits + LoaderB::kTileUnits;
  static constexpr int kSharedBytes = 2 * kStage * 16;
  static_assert(S::kM * kStagedUnits<Half, S::kN> <= 2 * kStage);

  static __device__ __forceinline__ void multiply(Sums<S>& sums, const uint4* a, const uint4* b) {
#pragma unroll
    for (int k = 0; k < kK; k += 16) {
      uint32_t left[S::kTilesM][4];
#pragma unroll
      for (int i = 0; i < S::kTilesM; ++i) {
        LoaderA::Shared::load_left(left[i], a, sums.row + i * 16, k);
      }
#pragma unroll
      for (int j = 0; j < S::kTilesN; j += 2) {
        uint32_t right[4];
        LoaderB::Shared::load_right(right, b, sums.col + j * 8, k);
#pragma unroll
        for (int i = 0; i < S::kTilesM; ++i) {
          mma_k16<Half>(sums.value[i][j], left[i], right[0], right[1]);
          mma_k16<Half>(sums.value[i][j + 1], left[i], right[2], right[3]);
        }
      }
    }
  }
};

// ---- mainloop ----

template <class G>
__device__ __forceinline__ void mainloop(uint4* shared, typename G::LoaderA& a,
                                         typename G::LoaderB& b, int k, Sums<typename G::S>& sums) {
  constexpr int kOfA = G::LoaderA::kTileUnits;
  a.load(k);
  b.load(k);
  a.store(shared, k);
  b.store(shared + kOfA, k);
  G::finish(sums);
  __syncthreads();
  int stage = 0;
#pragma unroll 1
  for (int left = k - G::kK; left > -G::kK; left -= G::kK) {
    const uint4* now = shared + stage;
    stage = G::kStage - stage;
    uint4* next = shared + stage;
    if (left > 0) {
      a.load(left);
      b.load(left);
    }
    G::multiply(sums, now, now + kOfA);
    if (left > 0) {
      a.store(next, left);
      b.store(next + kOfA, left);
    }
    G::finish(sums);
    __syncthreads();
  }
}

// ---- epilogue ----

// The sums themselves.
template <class S>
__device__ __forceinline__ void store_sums(const Sums<S>& sums, const ResultTile& result) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < S::kTilesM; ++i) {
#pragma unroll
    for (int j = 0; j < S::kTilesN; ++j) {
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const int row = sums.row + i * 16 + lane / 4 + v / 2 * 8;
        const int col = sums.col + j * 8 + lane % 4 * 2 + v % 2;
        if (row < result.rows && col < result.cols) {
          static_cast<float*>(result.first)[row * result.ld + col] = sums.value[i][j][v];
        }
      }
    }
  }
}

// Where a warp's results lie in the staged tile, and their bias.
template <class S>
struct Staged {
  using T = typename S::T;
  T* out;
  const T* bias;  // or null
  int row, col;   // of the lane's first result
  int cols;
  unsigned first_head, ld;

  __device__ __forceinline__ Staged(const Sums<S>& sums, const ResultTile& result, const T* bias,
                                    uint4* staged)
      : out(reinterpret_cast<T*>(staged)),
        bias(bias),
        row(sums.row + int(threadIdx.x) % 32 / 4),
        col(sums.col + int(threadIdx.x) % 4 * 2),
        cols(result.cols),
        first_head(head_of<T>(result, 0)),
        ld(static_cast<unsigned>(result.ld)) {}

  __device__ __forceinline__ float2 bias_of(int group) const {
    const int c = col + group * 8;
    return {bias && c < cols ? to_compute(bias[c]) : 0.0f,
            bias && c + 1 < cols ? to_compute(bias[c + 1]) : 0.0f};
  }
  // Two results of the r-th row from the lane's first one on.
  __device__ __forceinline__ void put(int r, int group, float first, float second) const {
    const unsigned line = row + r;
    T* to = out +
            line * (kStagedUnits<T, S::kN> * kPerUnit<T>)+(first_head + line * ld) % kPerUnit<T> +
            col + group * 8;
    to[0] = from_compute<T>(first);
    to[1] = from_compute<T>(second);
  }
};

template <class S, Activation kActivation>
__device__ __forceinline__ void stage_simple(const Sums<S>& sums, const Staged<S>& staged) {
  constexpr auto kAccuracy = kAccuracyOf<typename S::T>;
#pragma unroll
  for (int j = 0; j < S::kTilesN; ++j) {
    const float2 bias = staged.bias_of(j);
#pragma unroll
    for (int i = 0; i < S::kTilesM * 2; ++i) {
      const float* z = sums.value[i / 2][j] + i % 2 * 2;
      staged.put(i * 8, j, activate_as<kActivation, kAccuracy>(z[0] + bias.x),
                 activate_as<kActivation, kAccuracy>(z[1] + bias.y));
    }
  }
}

struct Eight {
  static constexpr int kElements = 8;
  float value[8];
  __device__ __forceinline__ float& operator[](int i) { return value[i]; }
};

// act(sums + bias) to where store_staged reads it.
template <class S>
__device__ __forceinline__ void stage(const Sums<S>& sums, const ResultTile& result,
                                      const typename S::T* bias, Activation activation,
                                      uint4* shared) {
  const Staged<S> staged(sums, result, bias, shared);
  if (activation == Activation::kNone) return stage_simple<S, Activation::kNone>(sums, staged);
  if (activation == Activation::kRelu) return stage_simple<S, Activation::kRelu>(sums, staged);
  constexpr int kPairs = S::kTilesM * S::kTilesN / 2;
  // NOTE: not unrolled, so that the activations are compiled once.
#pragma unroll 1
  for (int pair = 0; pair < kPairs; ++pair) {
    Eight z;
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
#pragma unroll
      for (int v = 0; v < 8; ++v) {
        const int group = p * 2 + v / 4;
        if (p == pair) z[v] = sums.value[group / S::kTilesN][group % S::kTilesN][v % 4];
      }
    }
    const int i = pair * 2 / S::kTilesN, j = pair * 2 % S::kTilesN;
#pragma unroll
    for (int v = 0; v < 8; v += 2) {
      const float2 both = staged.bias_of(j + v / 4);
      z[v] += both.x, z[v + 1] += both.y;
    }
    activate_array<kAccuracyOf<typename S::T>>(activation, z);
#pragma unroll
    for (int v = 0; v < 8; v += 2) {
      staged.put(i * 16 + v % 4 * 4, j + v / 4, z[v], z[v + 1]);
    }
  }
}

template <class S>
__device__ __forceinline__ void store_results(const Params& p, const Sums<S>& sums, int64_t first,
                                              ResultTile result, const typename S::T* bias,
                                              uint4* shared) {
  using T = typename S::T;
#pragma unroll 1
  for (int pass = p.preact ? 0 : 1; pass < 2; ++pass) {
    result.first = static_cast<T*>(pass == 0 ? p.preact : p.d) + first;
    stage<S>(sums, result, bias, pass == 0 ? Activation::kNone : p.activation, shared);
    __syncthreads();
    store_staged<T, S::kM, S::kN, kThreads>(result, shared);
    __syncthreads();
  }
}

// ---- kernel ----

template <class G>
__global__ void __launch_bounds__(kThreads, G::kShape.per_sm)
    gemm_kernel(const __grid_constant__ Params p) {
  using S = typename G::S;
  extern __shared__ __align__(1024) uint4 shared_units[];
  const int2 tile = p.order(blockIdx.x);
  const int64_t m = int64_t{tile.x} * G::kM, n = int64_t{tile.y} * G::kN;
  const int slice = blockIdx.y;
  const int rows = static_cast<int>(min(p.m - m, int64_t{G::kM}));
  const int cols = static_cast<int>(min(p.n - n, int64_t{G::kN}));
  const int64_t begin = p.range.begin(slice);
  wait_for_predecessor();

  typename G::LoaderA a(p.a, m, begin, rows);
  typename G::LoaderB b(p.b, n, begin, cols);
  Sums<S> sums;
  mainloop<G>(shared_units, a, b, p.range.count(slice), sums);

  const int64_t first = m * p.ldd + n;
  ResultTile result{nullptr, p.ldd, rows, cols};
  if (p.as_float) {
    result.first = static_cast<float*>(p.d) + first + slice * p.slice_stride;
    store_sums<S>(sums, result);
  } else {
    const auto* bias = static_cast<const typename G::T*>(p.bias);
    store_results<S>(p, sums, first, result, bias ? bias + n : nullptr, shared_units);
  }
}

// ---- host side ----

// A slice ends with K or at a multiple of 64, so that one end serves all.
inline Operand make_operand(const GemmOperand& operand, int64_t rows, int64_t k, int bytes) {
  const auto* data = static_cast<const char*>(operand.data);
  const bool along_k = operand.major == Major::kK;
  const int64_t lines = along_k ? rows : k, length = along_k ? k : rows;
  return {data, data + ((lines - 1) * operand.ld + length) * bytes, operand.ld * bytes};
}

template <class G>
const char* launch(const GemmProblem& problem, const LaunchContext& context) {
  constexpr int kBytes = sizeof(typename G::T);
  const bool sums = problem.epilogue == Epilogue::kAccumulator;
  const Params params = {.a = make_operand(problem.a, problem.m, problem.k, kBytes),
                         .b = make_operand(problem.b, problem.n, problem.k, kBytes),
                         .m = problem.m,
                         .n = problem.n,
                         .range = sm80::make_k_range(problem),
                         .order = sm80::make_tile_order(problem, G::kM, G::kN),
                         .d = problem.d,
                         .preact = problem.epilogue == Epilogue::kPreact ? problem.preact : nullptr,
                         .bias = sums ? nullptr : problem.bias,
                         .ldd = problem.ldd,
                         .slice_stride = problem.slices > 1 ? problem.slice_stride : 0,
                         .activation = sums ? Activation::kNone : problem.activation,
                         .as_float = sums};
  return sm80::launch_tiles<&gemm_kernel<G>>(problem, context, kThreads, G::kSharedBytes, params);
}

// All majornesses of a kernel.
template <template <Major, Major> class G>
const char* launch_layout(const GemmProblem& p, const LaunchContext& context) {
  const bool a = p.a.major == Major::kK, b = p.b.major == Major::kK;
  if (a && b) return launch<G<Major::kK, Major::kK>>(p, context);
  if (a) return launch<G<Major::kK, Major::kMN>>(p, context);
  if (b) return launch<G<Major::kMN, Major::kK>>(p, context);
  return launch<G<Major::kMN, Major::kMN>>(p, context);
}

template <class T, int kTile>
struct Halves {
  template <Major kA, Major kB>
  using G = Gemm<T, kTile, kA, kB>;
};

template <class T>
const char* launch_any(int tile, const GemmProblem& p, const LaunchContext& context) {
  static_assert(kNumTiles == 5);
  switch (tile) {
    case 0: return launch_layout<Halves<T, 0>::template G>(p, context);
    case 1: return launch_layout<Halves<T, 1>::template G>(p, context);
    case 2: return launch_layout<Halves<T, 2>::template G>(p, context);
    case 3: return launch_layout<Halves<T, 3>::template G>(p, context);
    default: return launch_layout<Halves<T, 4>::template G>(p, context);
  }
}

}  // namespace fusedops::unaligned
