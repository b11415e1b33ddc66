// The kernels for 16-bit operands that begin anywhere, with WGMMA: it reads a tile of shared memory
// once for four warps, of which mma.sync reads it four times.
#include "csrc/common/device/mbarrier.cuh"
#include "csrc/cutlass/kernels/hopper/wgmma.cuh"
#include "csrc/cutlass/kernels/unaligned/unaligned.cuh"
#include "csrc/cutlass/kernels/unaligned/unaligned.h"

namespace fusedops::unaligned {
namespace {

// An operand as WGMMA reads it: lines of 128 bytes with the 128-byte swizzle, in panels of 64 rows
// where K is not contiguous.
template <int kRows, Major kMajor>
struct HopperTile {
  static constexpr int kLineUnits = 8;

  static __device__ __forceinline__ int place(int line, int unit) {
    return unit / 8 * (kTileK * kLineUnits) + line * kLineUnits + (unit % 8 ^ line % 8);
  }
};

inline constexpr int kPanelBytes = 64 * 128;  // 64 rows of a tile

// A warpgroup has 64 rows by all columns of a tile of 128 rows, or all rows by half of the columns.
template <class Half, int kTile, Major kA, Major kB>
struct HopperGemm : Shape<Half, kHopperTiles[kTile], kHopperTiles[kTile].m / 16, true> {
  using S = Shape<Half, kHopperTiles[kTile], kHopperTiles[kTile].m / 16, true>;
  static constexpr int kK = kTileK;
  static constexpr bool kTransA = kA == Major::kMN, kTransB = kB == Major::kMN;
  using LoaderA = Loader<S::kM, kA, HopperTile<S::kM, kA>>;
  using LoaderB = Loader<S::kN, kB, HopperTile<S::kN, kB>>;
  static constexpr int kStage = LoaderA::kTileUnits + LoaderB::kTileUnits;
  static constexpr int kSharedBytes = 2 * kStage * 16;
  static_assert(S::kM * kStagedUnits<Half, S::kN> <= 2 * kStage);
  static_assert(S::kTilesM == 1 && S::kWarpN % 64 == 0);

  static __device__ __forceinline__ void multiply(Sums<S>& sums, const uint4* a, const uint4* b) {
    const auto address = [](const uint4* at) {
      return static_cast<uint32_t>(__cvta_generic_to_shared(at));
    };
    const int group = wgmma::warpgroup();
    const uint64_t left = wgmma::descriptor(address(a) + (S::kM > 64 ? group * kPanelBytes : 0));
    const uint64_t right = wgmma::descriptor(address(b) + (S::kM > 64 ? 0 : group * kPanelBytes),
                                             kTransB ? kPanelBytes : 16);
    auto& d = reinterpret_cast<float (&)[S::kWarpN / 2]>(sums.value);
    wgmma::fence();
#pragma unroll
    for (int k = 0; k < kK / 16; ++k) {
      wgmma::multiply<Half, S::kWarpN, kTransA, kTransB>(
          d, left + k * (kTransA ? wgmma::kStepRows : wgmma::kStepK),
          right + k * (kTransB ? wgmma::kStepRows : wgmma::kStepK));
    }
    wgmma::commit();
  }
  static __device__ __forceinline__ void finish(Sums<S>& sums) {
    wgmma::wait<0>();
    wgmma::settle(reinterpret_cast<float (&)[S::kWarpN / 2]>(sums.value));
    fence_bulk_copies();
  }
};

template <class T, int kTile>
struct Layouts {
  template <Major kA, Major kB>
  using G = HopperGemm<T, kTile, kA, kB>;
};

template <class T>
const char* launch_hopper(int tile, const GemmProblem& p, const LaunchContext& context) {
  static_assert(kNumHopperTiles == 3);
  switch (tile) {
    case 0: return launch_layout<Layouts<T, 0>::template G>(p, context);
    case 1: return launch_layout<Layouts<T, 1>::template G>(p, context);
    default: return launch_layout<Layouts<T, 2>::template G>(p, context);
  }
}

const char* run(int tile, const GemmProblem& p, const LaunchContext& context) {
  return p.dtype == DType::kFloat16 ? launch_hopper<__half>(tile, p, context)
                                    : launch_hopper<__nv_bfloat16>(tile, p, context);
}

const bool registered = register_hopper(&run);

}  // namespace
}  // namespace fusedops::unaligned
