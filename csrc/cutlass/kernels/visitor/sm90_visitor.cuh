// A main loop of the sm_90a kernels (sm90_kernel.cuh) whose epilogue calls functions that are
// linked to it later: fusedops_load and fusedops_visit, compiled from a user's expression. Compiled
// to LTO-IR, so that the linker inlines them; as calls they would not work at all (accumulators in
// local memory).
//
// A warpgroup goes through its tile in blocks of 64 rows by 64 columns, down each panel of 64
// columns. The first (M, N) operand of a block comes to a place in shared memory, from where the
// block's result leaves. Cooperative warpgroups have a place for each block, and all come during
// the main loop: nothing else would hide them. Pingpong ones have three places in turn, which cost
// no stage of the main loop.
#pragma once

#include "csrc/common/device/async_copy.cuh"
#include "csrc/cutlass/kernels/sm90/sm90_kernel.cuh"
#include "csrc/cutlass/kernels/visitor/visitor_abi.h"

// Whether the first (M, N) operand comes through shared memory, and whether a loop goes over blocks
// instead of one copy of the visitor for each. NOTE: constants, which the linker knows.
extern "C" __device__ bool fusedops_reads();
extern "C" __device__ bool fusedops_loops();

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
  CUtensorMap operand;  // the first (M, N) operand, where it comes through shared memory
  VisitorArguments arguments;
};

// What one warpgroup (rows by columns) stages.
template <int kRows_, int kColumns_, bool kPingpong>
struct VisitorStaging {
  static constexpr int kRows = kRows_, kColumns = kColumns_;
  static constexpr int kRowBlocks = kRows / 64, kBlocks = kRowBlocks * (kColumns / 64);
  static constexpr int kBlockBytes = 64 * kBoxRowBytes;
  static constexpr int kPlaces = kPingpong && kBlocks > 3 ? 3 : kBlocks;
  static constexpr int kVectorBytes = (kRows > kColumns ? kRows : kColumns) * 4;
  static_assert(kColumns % 64 == 0 && kRows % 64 == 0);

  struct Shared {
    alignas(1024) uint8_t staging[kPlaces][kBlockBytes];
    alignas(16) uint8_t vectors[kVisitorVectors][kVectorBytes];
    uint64_t arrived[kPlaces];  // a block of the operand
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
  using Staging = VisitorStaging<Base::kWarpgroupM, Base::kTileN, Base::kPingpong>;
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
  using Arrived = cutlass::arch::ClusterTransactionBarrier;
  static constexpr int kWords = kVisitorValues / 2;        // of a block's results
  static constexpr bool kTurns = S::kPlaces < S::kBlocks;  // of blocks at a place

 public:
  __device__ static void init(Shared& shared) {
    for (uint64_t& arrived : shared.arrived) Arrived::init(&arrived, 1);
  }

  __device__ TileEpilogue(const EpilogueParams& params, Shared& shared, int warpgroup)
      : p_(params),
        all_(params_around(params)),
        arguments_(all_.arguments),
        shared_(shared),
        warpgroup_(warpgroup),
        thread_(threadIdx.x % 128) {}

  // The last MMA of the tile that was prepared is under way: so are the words of its first block.
  __device__ void prefetch(const Tile&) {
    if (!prepared_) return;
    prepared_ = false;
    const VisitorPlace place = place_of(tile_, row_, 0);
    fusedops_load(&words_, &place, &arguments_);
  }

  // Vectors and the first (M, N) operand are on their way during the main loop.
  __device__ void prepare(const Tile& tile, int row) {
    tile_ = tile, row_ = row, prepared_ = true;
    if (fusedops_reads() && thread_ == 0) load_first_blocks(tile, row);
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
    // NOTE: nothing of a block is written back to the accumulators, which saves their moves.
    if (fusedops_loops()) {
#pragma unroll 1
      for (int block = 0; block < S::kBlocks; ++block) {
        float v[kVisitorValues];
        with_index<0, S::kBlocks>(block, [&](auto index) { take<decltype(index)::value>(v, acc); });
        finish_block(v, block, tile, row);
      }
    } else {
      cute::for_each(cute::make_int_sequence<S::kBlocks>{}, [&](auto index) {
        float v[kVisitorValues];
        take<decltype(index)::value>(v, acc);
        finish_block(v, index, tile, row);
      });
    }
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

  // `inside` of the bytes exist; the others are zeros. NOTE: compute-sanitizer reports the whole
  // unit where a part is copied asynchronously.
  __device__ void copy_vector(const uint8_t* from, uint8_t* to, int bytes, int inside) const {
    for (int at = thread_ * 16; at < bytes; at += 128 * 16) {
      const int size = min(max(inside - at, 0), 16);
      if (size % 16 == 0) {
        copy_async(shared_address(to + at), size > 0 ? from + at : from, size);
      } else {
        for (int i = 0; i < 16; ++i) to[at + i] = i < size ? from[at + i] : uint8_t{0};
      }
    }
  }

  // ---- the operand that comes through shared memory ----

  // One thread starts the copies of as many blocks as have a place, once earlier results have left.
  // In turns, a product that is kept leaves from the third place first.
  __device__ void load_first_blocks(const Tile& tile, int row) {
    cute::tma_store_wait<0>();
    const int blocks = kTurns && p_.store_hidden ? S::kPlaces - 1 : S::kPlaces;
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) load_block(tile, row, block);
  }

  __device__ void load_block(const Tile& tile, int row, int block) {
    constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    const int place = block % S::kPlaces;
    uint64_t* arrived = &shared_.arrived[place];
    Arrived::arrive_and_expect_tx(arrived, S::kBlockBytes);
    cute::SM90_TMA_LOAD_2D::copy(&all_.operand, arrived, kHint, shared_.staging[place],
                                 first_column(tile, block), first_row(tile, row, block));
  }

  // Behind the visit of a block all earlier results have left, and the next block without a place
  // comes to where they were: two blocks ahead, or one where each block leaves twice.
  __device__ __forceinline__ void load_next_block(const Tile& tile, int row, int block) {
    if (thread_ != 0) return;
    cute::tma_store_wait<0>();
    const int next = block + (p_.store_hidden ? 1 : 2);
    if (block > 0 && next < S::kBlocks) load_block(tile, row, next);
  }

  __device__ __forceinline__ void wait_for_block(int place) {
    Arrived::wait(&shared_.arrived[place], phases_ >> place & 1);
    phases_ ^= 1u << place;
  }

  __device__ static int first_column(const Tile& tile, int block) {
    return tile.n * T::kTileN + block / S::kRowBlocks * 64;
  }
  __device__ static int first_row(const Tile& tile, int row, int block) {
    return tile.m * T::kTileM + row + block % S::kRowBlocks * 64;
  }

  template <int kBlock>
  __device__ __forceinline__ static void take(float* v, const float* acc) {
    constexpr int kPanel = kBlock / S::kRowBlocks, kRow = kBlock % S::kRowBlocks;
#pragma unroll
    for (int e = 0; e < kVisitorValues; ++e) {
      v[e] = acc[(kRow * (S::kColumns / 8) + kPanel * 8) * 4 + e];
    }
  }

  // The row of this lane in a block: of matrices 0..3 = (upper, lower rows) x (columns 8 j.., the
  // next 8) of the warp's 16 rows, it gives the address of one.
  __device__ uint8_t* row_in(int place) const {
    return shared_.staging[place] + (thread_ / 32 * 16 + thread_ % 16) * kBoxRowBytes;
  }

  // This thread's first value in a block.
  __device__ __forceinline__ VisitorPlace place_of(const Tile& tile, int row, int block) const {
    const int lane_row = thread_ / 32 * 16 + thread_ % 32 / 4, lane_column = thread_ % 4 * 2;
    VisitorPlace place;
    place.tile_row = block % S::kRowBlocks * 64 + lane_row;
    place.tile_column = block / S::kRowBlocks * 64 + lane_column;
    place.row = tile.m * T::kTileM + row + place.tile_row;
    place.column = tile.n * T::kTileN + place.tile_column;
    place.vectors = shared_.vectors[0];
    place.vector_bytes = S::kVectorBytes;
    place.operand = row_in(block % S::kPlaces);
    return place;
  }

  // The next block's loads, the visitor, the result, and the product where it is kept.
  __device__ __forceinline__ void finish_block(float* v, int block, const Tile& tile, int row) {
    const int column = first_column(tile, block), at_row = first_row(tile, row, block);
    const VisitorWords words = words_;
    if (block < S::kBlocks - 1) {
      const VisitorPlace next = place_of(tile, row, block + 1);
      fusedops_load(&words_, &next, &arguments_);
    }
    const VisitorPlace place = place_of(tile, row, block);
    if (fusedops_reads()) {
      uint32_t kept[kWords];
      pack_values(kept, v);
      wait_for_block(block % S::kPlaces);
      fusedops_visit(v, &words, &place, &arguments_);
      if constexpr (kTurns) load_next_block(tile, row, block);
      // Each warp writes where it alone has read.
      store(v, block % S::kPlaces, p_.d, column, at_row);
      if (p_.store_hidden) store_beside(kept, block, column, at_row);
    } else {
      if (p_.store_hidden) store(v, next_place(), p_.aux, column, at_row);
      fusedops_visit(v, &words, &place, &arguments_);
      store(v, next_place(), p_.d, column, at_row);
    }
  }

  // What is kept leaves from where the block before it left; the first one has its own only. In
  // turns that place is free since load_next_block.
  __device__ __forceinline__ void store_beside(const uint32_t* words, int block, int column,
                                               int row) {
    if constexpr (kTurns) {
      publish(words, (block + S::kPlaces - 1) % S::kPlaces, p_.aux, column, row);
    } else {
      if (thread_ == 0) {
        if (block == 0) {
          cute::tma_store_wait<0>();
        } else {
          cute::tma_store_wait<1>();
        }
      }
      barrier();
      publish(words, max(block - 1, 0), p_.aux, column, row);
    }
  }

  // The place in turn, once what it had has left.
  __device__ __forceinline__ int next_place() {
    place_ = place_ == S::kPlaces - 1 ? 0 : place_ + 1;
    if (thread_ == 0) cute::tma_store_wait<S::kPlaces - 1>();
    barrier();
    return place_;
  }

  __device__ __forceinline__ static void pack_values(uint32_t* words, const float* v) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = pack<Element, false>(v[2 * i], v[2 * i + 1]);
  }

  __device__ __forceinline__ void store(const float* v, int place, const CUtensorMap& map,
                                        int column, int row) {
    uint32_t words[kWords];
    pack_values(words, v);
    publish(words, place, map, column, row);
  }

  __device__ __forceinline__ void publish(const uint32_t* words, int place, const CUtensorMap& map,
                                          int column, int row) {
    uint8_t* at = row_in(place);
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const uint32_t* w = words + j * 2;
      cute::SM90_U32x4_STSM_N::copy(
          w[0], w[1], w[2], w[3],
          *reinterpret_cast<cute::uint128_t*>(at + ((j + thread_ % 32 / 16) ^ (thread_ % 8)) * 16));
    }
    cute::tma_store_fence();
    barrier();
    if (thread_ == 0) {
      cute::SM90_TMA_STORE_3D::copy(&map, shared_.staging[place], column, row, 0);
      cute::tma_store_arrive();
    }
  }

  const EpilogueParams& p_;
  const VisitorParams& all_;
  const VisitorArguments& arguments_;
  Shared& shared_;
  int warpgroup_, thread_, place_ = 0;
  uint32_t phases_ = 0;  // a bit of each place
  VisitorWords words_;   // of the next block
  Tile tile_{};          // that was prepared, and its row of this warpgroup
  int row_ = 0;
  bool prepared_ = false;
};

}  // namespace fusedops::sm90
