// A main loop of the sm_90a kernels (sm90_kernel.cuh) whose epilogue calls functions that are
// linked to it later: fusedops_load and fusedops_visit, compiled from a user's expression. Compiled
// to LTO-IR, so that the linker inlines them; as calls they would not work at all (accumulators in
// local memory).
#pragma once

#include "csrc/common/device/mbarrier.cuh"
#include "csrc/cutlass/kernels/sm90/sm90_kernel.cuh"
#include "csrc/cutlass/kernels/visitor/visitor_abi.h"

// Begins the loads of a place, which come long before its visit.
extern "C" __device__ void fusedops_load(fusedops::VisitorWords* words,
                                         const fusedops::VisitorPlace* place,
                                         const fusedops::VisitorArguments* arguments);

// values: kVisitorValues of this thread, which the results replace; words: what was loaded.
extern "C" __device__ void fusedops_visit(float* values, const fusedops::VisitorWords* words,
                                          const fusedops::VisitorPlace* place,
                                          const fusedops::VisitorArguments* arguments);

namespace fusedops::sm90 {

struct VisitorParams : KernelParams {
  VisitorArguments arguments;
};

// What one warpgroup (rows by columns) stages: two panels of 64 rows by 64 columns in turn.
template <int kRows_, int kColumns_>
struct VisitorStaging {
  static constexpr int kRows = kRows_, kColumns = kColumns_, kPanelRows = 64;
  static constexpr int kPanels = kColumns / 64, kRowBlocks = kRows / 64;
  static constexpr int kVectorBytes = (kRows > kColumns ? kRows : kColumns) * 4;
  static_assert(kColumns % 64 == 0 && kRows % 64 == 0);

  struct Shared {
    alignas(1024) uint8_t staging[2][kPanelRows * kBoxRowBytes];
    alignas(16) uint8_t vectors[kVisitorVectors][kVectorBytes];
  };
};

template <class Element, int kConfig>
struct VisitorTraits
    : KernelTraits<Element, kSm90Configs[kConfig].tile_m, kSm90Configs[kConfig].tile_n,
                   kSm90Configs[kConfig].cluster_m, kSm90Configs[kConfig].cluster_n,
                   kSm90Configs[kConfig].schedule, Major::kK, Major::kK, Epilogue::kFused> {
  using Base = KernelTraits<Element, kSm90Configs[kConfig].tile_m, kSm90Configs[kConfig].tile_n,
                            kSm90Configs[kConfig].cluster_m, kSm90Configs[kConfig].cluster_n,
                            kSm90Configs[kConfig].schedule, Major::kK, Major::kK, Epilogue::kFused>;
  using Staging = VisitorStaging<Base::kWarpgroupM, Base::kTileN>;
  static constexpr int kReserved = 2 * int(sizeof(typename Staging::Shared)) + 1024;
  static constexpr int kFit = (Base::kSharedLimit - kReserved) / Base::kStageBytes;
  static constexpr int kStages = kFit < 8 ? kFit : 8;
  static_assert(kStages >= 3);
};

template <class Element_, int kConfig>
class TileEpilogue<VisitorTraits<Element_, kConfig>> {
  using T = VisitorTraits<Element_, kConfig>;
  using Element = Element_;
  using S = typename T::Staging;
  using Shared = typename S::Shared;

 public:
  __device__ static void init(Shared&) {}

  __device__ TileEpilogue(const EpilogueParams& params, Shared& shared, int warpgroup)
      : p_(params),
        arguments_(params_around(params).arguments),
        shared_(shared),
        warpgroup_(warpgroup),
        thread_(threadIdx.x % 128) {}

  // The last MMA of the tile that was prepared is under way: so are the words of its first block.
  __device__ void prefetch(const Tile&) {
    if (!prepared_) return;
    prepared_ = false;
    const VisitorPlace place = place_of(tile_, row_, 0, 0);
    fusedops_load(&words_, &place, &arguments_);
  }

  // Vectors are on their way during the main loop.
  __device__ void prepare(const Tile& tile, int row) {
    tile_ = tile, row_ = row, prepared_ = true;
    for (int i = 0; i < arguments_.num_vectors; ++i) {
      const VisitorVector& vector = arguments_.vectors[i];
      const int first = vector.along_rows ? tile.m * T::kTileM + row : tile.n * T::kTileN;
      const int extent = vector.along_rows ? arguments_.rows : arguments_.columns;
      const int count = vector.along_rows ? S::kRows : S::kColumns;
      copy_vector(static_cast<const uint8_t*>(vector.data) + int64_t{first} * vector.element_bytes,
                  shared_.vectors[i], count * vector.element_bytes,
                  (extent - first) * vector.element_bytes);
    }
  }

  __device__ void run(float* acc, const Tile& tile, int row) {
    asm volatile("cp.async.wait_all;" ::: "memory");
    barrier();
    cute::for_each(cute::make_int_sequence<S::kPanels>{}, [&](auto panel) {
      for_each_rolled<0, S::kRowBlocks, kVisitorValues>(
          [&]<int kBlock>(cute::Int<kBlock>) {
            return acc + (kBlock * (S::kColumns / 8) + panel * 8) * 4;
          },
          [&](float* v, int block) { finish_block(v, panel, block, tile, row); });
    });
  }

  __device__ void finish() {
    if (thread_ == 0) cute::tma_store_wait<0>();
  }

 private:
  // The parameter that holds it.
  __device__ static const VisitorParams& params_around(const EpilogueParams& epilogue) {
    const auto* at = reinterpret_cast<const char*>(&epilogue) - offsetof(KernelParams, epilogue);
    return *static_cast<const VisitorParams*>(reinterpret_cast<const KernelParams*>(at));
  }

  __device__ void barrier() const {
    asm volatile("bar.sync %0, 128;" ::"r"(8 + warpgroup_) : "memory");
  }

  // `inside` of the bytes exist; the others are zeros.
  __device__ void copy_vector(const uint8_t* from, uint8_t* to, int bytes, int inside) const {
    for (int at = thread_ * 16; at < bytes; at += 128 * 16) {
      const int size = min(max(inside - at, 0), 16);
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to + at)),
                   "l"(size > 0 ? from + at : from), "r"(size)
                   : "memory");
    }
  }

  // Where this lane's row of an 8x8 matrix lies: of matrices 0..3 = (upper, lower rows) x (columns
  // 8 j.., the next 8) of the warp's 16 rows.
  __device__ cute::uint128_t& matrices(uint8_t* panel, int j) const {
    const int lane = thread_ % 32, r = thread_ / 32 * 16 + lane % 16;
    return *reinterpret_cast<cute::uint128_t*>(panel + r * kBoxRowBytes +
                                               (((j + lane / 16) ^ (lane % 8)) * 16));
  }

  // This thread's first value in 64 rows of a panel.
  __device__ __forceinline__ VisitorPlace place_of(const Tile& tile, int row, int panel,
                                                   int block) const {
    const int lane_row = thread_ / 32 * 16 + thread_ % 32 / 4, lane_column = thread_ % 4 * 2;
    VisitorPlace place;
    place.tile_row = block * 64 + lane_row;
    place.tile_column = panel * 64 + lane_column;
    place.row = tile.m * T::kTileM + row + place.tile_row;
    place.column = tile.n * T::kTileN + place.tile_column;
    place.vectors = shared_.vectors[0];
    place.vector_bytes = S::kVectorBytes;
    return place;
  }

  // 64 rows of a panel: the next block's loads, what is kept of these rows, the visitor, the
  // result.
  __device__ __forceinline__ void finish_block(float* v, int panel, int block, const Tile& tile,
                                               int row) {
    const int column = tile.n * T::kTileN + panel * 64;
    const int first_row = tile.m * T::kTileM + row + block * 64;
    const VisitorWords words = words_;
    const bool ends_panel = block == S::kRowBlocks - 1;
    if (!ends_panel || panel < S::kPanels - 1) {
      const VisitorPlace next = place_of(tile, row, panel + ends_panel, ends_panel ? 0 : block + 1);
      fusedops_load(&words_, &next, &arguments_);
    }
    const VisitorPlace place = place_of(tile, row, panel, block);
    if (p_.store_hidden) store(v, p_.aux, column, first_row);
    fusedops_visit(v, &words, &place, &arguments_);
    store(v, p_.d, column, first_row);
  }

  __device__ __forceinline__ void store(const float* v, const CUtensorMap& map, int column,
                                        int row) {
    slot_ ^= 1;
    if (thread_ == 0) cute::tma_store_wait<1>();
    barrier();
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const float* w = v + j * 4;
      cute::SM90_U32x4_STSM_N::copy(
          pack<Element, false>(w[0], w[1]), pack<Element, false>(w[2], w[3]),
          pack<Element, false>(w[4], w[5]), pack<Element, false>(w[6], w[7]),
          matrices(shared_.staging[slot_], j));
    }
    cute::tma_store_fence();
    barrier();
    if (thread_ == 0) {
      cute::SM90_TMA_STORE_3D::copy(&map, shared_.staging[slot_], column, row, 0);
      cute::tma_store_arrive();
    }
  }

  const EpilogueParams& p_;
  const VisitorArguments& arguments_;
  Shared& shared_;
  int warpgroup_, thread_, slot_ = 0;
  VisitorWords words_;  // of the next block
  Tile tile_{};         // that was prepared, and its row of this warpgroup
  int row_ = 0;
  bool prepared_ = false;
};

}  // namespace fusedops::sm90
