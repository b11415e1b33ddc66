// fp32 products by parts (unaligned_fp32.cuh) with WGMMA, which runs while the next tile is parted.
#include "csrc/common/device/mbarrier.cuh"
#include "csrc/cutlass/kernels/hopper/wgmma.cuh"
#include "csrc/cutlass/kernels/unaligned/unaligned.h"
#include "csrc/cutlass/kernels/unaligned/unaligned_fp32.cuh"

namespace fusedops::unaligned {
namespace {

// A part as WGMMA reads it: rows of 64 bytes with the 64-byte swizzle, or, where K is not
// contiguous, lines of 128 bytes with the 128-byte swizzle in panels of 64 rows.
template <Major kMajor>
struct HopperPartTile {
  static constexpr bool kAlongK = kMajor == Major::kK;
  static constexpr int kLineUnits = kAlongK ? 4 : 8;

  static __device__ __forceinline__ int place(int line, int unit) {
    if constexpr (kAlongK) return line * kLineUnits + (unit ^ line / 2 % 4);
    return unit / 8 * (kPartTileK * kLineUnits) + line * kLineUnits + (unit % 8 ^ line % 8);
  }
};

inline constexpr int kPanelBytes = 64 * 64;  // 64 rows of a part

template <bool kTransposed>
__device__ __forceinline__ uint64_t descriptor(const uint4* at) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(at));
  if constexpr (kTransposed) return wgmma::descriptor(address, kPanelBytes);
  // NOTE: 8 rows every 512 bytes, swizzle mode 2 (64 bytes).
  return uint64_t((address & 0x3ffff) >> 4) | uint64_t(1) << 16 | uint64_t(32) << 32 |
         uint64_t(2) << 62;
}

template <class S>
struct PartSums : Sums<S> {
  float added[S::kWarpN / 2] = {};  // what WGMMA sums up of the tile in shared memory
};

// A warpgroup has 64 rows by all columns.
template <Major kA, Major kB>
struct HopperPartGemm : Shape<float, kHopperPartTiles[0], 8, true> {
  using S = Shape<float, kHopperPartTiles[0], 8, true>;
  using Result = PartSums<S>;
  static constexpr int kK = kPartTileK;
  static constexpr bool kRepairs = true, kTransA = kA == Major::kMN, kTransB = kB == Major::kMN;
  using LoaderA = PartLoader<S::kM, kA, HopperPartTile<kA>>;
  using LoaderB = PartLoader<S::kN, kB, HopperPartTile<kB>>;
  static constexpr int kStage = LoaderA::kTileUnits + LoaderB::kTileUnits;
  static constexpr int kSharedBytes = 2 * kStage * 16;
  static_assert(S::kM * kStagedUnits<float, S::kN> <= 2 * kStage);
  static_assert(S::kM == 128 && S::kTilesM == 1);

  // NOTE: Tensor Cores cut off what they add to a sum, so that they add up few products at a time.
  static __device__ __forceinline__ void multiply(Result& sums, const uint4* a, const uint4* b) {
    const uint4* rows = a + wgmma::warpgroup() * (kPanelBytes / 16);
#pragma unroll
    for (int i = 0; i < S::kWarpN / 2; ++i) sums.added[i] = 0;
    wgmma::fence();
#pragma unroll
    for (int both = kParts - 1; both >= 0; --both) {  // the smallest first
#pragma unroll
      for (int p = 0; p <= both; ++p) {
        const uint64_t left = descriptor<kTransA>(rows + p * LoaderA::kPartUnits);
        const uint64_t right = descriptor<kTransB>(b + (both - p) * LoaderB::kPartUnits);
#pragma unroll
        for (int k = 0; k < kK / 16; ++k) {
          wgmma::multiply<__nv_bfloat16, S::kWarpN, kTransA, kTransB>(
              sums.added, left + k * (kTransA ? wgmma::kStepRows : wgmma::kStepK),
              right + k * (kTransB ? wgmma::kStepRows : wgmma::kStepK));
        }
      }
    }
    wgmma::commit();
  }
  static __device__ __forceinline__ void finish(Result& sums) {
    wgmma::wait<0>();
    wgmma::settle(sums.added);
#pragma unroll
    for (int j = 0; j < S::kTilesN; ++j) {
#pragma unroll
      for (int v = 0; v < 4; ++v) sums.value[0][j][v] += sums.added[j * 4 + v];
    }
    fence_bulk_copies();
  }
  static __device__ __forceinline__ void repair(const LoaderA& a, const LoaderB& b,
                                                const Part& part, Sums<S>& sums) {
    repair_sums<S>(a, b, part, sums);
  }
};

const char* run(int, const GemmProblem& p, const LaunchContext& context) {
  return launch_layout<HopperPartGemm>(p, context);
}

const bool registered = register_hopper_parts(&run);

}  // namespace
}  // namespace fusedops::unaligned
