// Depthwise convolutions of (N, H, W, C) and their adjoints on tiles in shared memory, norm,
// residual and activation behind.
//
// A block has up to 8 times 8 channels and walks tiles of results; the part of the image that its
// next tile needs is on its way while it sums. A thread has two channels and a strip of 2 x 7
// results of the tile: weights and sums stay in registers, and every place in shared memory is a
// constant from its own one on.
#pragma once

#include "csrc/common/device/async_copy.cuh"
#include "csrc/cuda/conv/depthwise.cuh"

namespace fusedops {

inline constexpr int kStripThreads = 256;  // the most of a block
inline constexpr int kMostStrips = 8;      // of a block
inline constexpr int kMostEights = 8;      // of channels
inline constexpr int kEightBytes = 16;

// Blocks of a multiprocessor, of as many threads: what their registers leave room for.
constexpr int strip_blocks(int kernel, int stride, bool adjoint) {
  return kernel == 3 || (adjoint && stride > 1) ? 3 : 2;
}

// Strips of kAcross x (any) in a block.
template <int kKernel, int kStride, bool kAdjoint, int kAcross>
struct StripTile {
  // NOTE: sides of common images are multiples of 7; pairs of an adjoint with stride 2 are not cut.
  static constexpr int kRows = 2, kColumns = kAdjoint && kStride > 1 ? 8 : 7;
  using Vertical = TileAxis<kKernel, kStride, kAdjoint, kRows>;
  using Across = TileAxis<kKernel, kStride, kAdjoint, kColumns>;
  // Places of the image that the block sees, beside each other.
  static constexpr int kPlaces = Across::kInputs + (kAcross - 1) * Across::kOwn;
  static constexpr int kResults = kAcross * kColumns;

  __host__ __device__ static constexpr int place_rows(int down) {
    return Vertical::kInputs + (down - 1) * Vertical::kOwn;
  }
};

// How the threads of a block share the copies of rows of places.
struct StripSteps {
  int place, row;  // from one copy of a thread to its next one

  StripSteps() = default;
  __host__ StripSteps(int places, int slots)
      : place(slots >= places ? places : slots), row(slots >= places ? slots / places : 1) {}
};

// How results and channels are cut into blocks.
struct StripGrid {
  int chunks, eights;    // of channels, and eights of channels in one
  int down;              // strips of a block, below each other
  int tiles_h, tiles_w;  // of an image
  unsigned tiles;        // of all images
  unsigned row_blocks;   // blocks of a chunk
  int channels;
  int pitch;         // places of an eight in a buffer, an odd number: no conflicts of banks
  int buffer_bytes;  // of two
  int tap_bytes;     // behind them, or 0
  int threads;
  StripSteps image_steps, dy_steps;

  // The pitch of rows of taps; two more: fewer conflicts of banks.
  __host__ __device__ int tap_pitch() const { return eights * 8 + 2; }
  int bytes() const { return 2 * buffer_bytes + tap_bytes; }
  unsigned blocks() const { return row_blocks * static_cast<unsigned>(chunks); }
};

struct StripProblem {
  DepthwiseProblem base;  // its grid is not used
  StripGrid grid;
};

// Where a thread stands.
template <int kAcross>
struct StripPlace {
  int pair, down, across;  // pair: of the block's channels
  int first, col;          // first: channel of the block, col: of the thread
  unsigned tile;           // the first of the block
  bool active;

  __device__ __forceinline__ explicit StripPlace(const StripGrid& grid) {
    const int pairs = grid.eights * 4, strip = static_cast<int>(threadIdx.x) / pairs;
    pair = static_cast<int>(threadIdx.x) - strip * pairs;
    down = strip / kAcross;
    across = strip % kAcross;
    const unsigned chunk = blockIdx.x % grid.chunks;
    tile = blockIdx.x / grid.chunks;
    first = static_cast<int>(chunk) * grid.eights * 8;
    col = first + pair * 2;
    active = down < grid.down && col < grid.channels;
  }
  // Bytes from a buffer to the thread's pair at a place of its eight.
  __device__ __forceinline__ int bytes(const StripGrid& grid, int place) const {
    return (pair / 4 * grid.pitch + place) * kEightBytes + pair % 4 * 4;
  }
};

// Copies of kPlaces neighbours of rows of an image, all channels of a block, zeros beyond the
// image. A thread has one eight of channels, and one place of a row, or some.
// NOTE: what it keeps is one register, since those of the sums are all that there are.
template <class T, int kPlaces>
class StripCopies {
 public:
  __device__ __forceinline__ StripCopies(const StripGrid& grid, const StripSteps& steps,
                                         int first) {
    const int slot = static_cast<int>(threadIdx.x) / grid.eights;
    const int eight = static_cast<int>(threadIdx.x) - slot * grid.eights;
    const int row = slot / steps.place;
    const bool active = row < steps.row && first + eight * 8 < grid.channels;
    lane_ = (active ? row : kNone) << 16 | (slot - row * steps.place) << 8 | eight;
  }

  // image: of the block's channels; to: of its places of the first eight, in the shared window.
  __device__ __forceinline__ void start(const StripGrid& grid, const StripSteps& steps,
                                        const T* image, int height, int width, uint32_t to, int n,
                                        int y, int x, int rows) const {
    const int first_row = lane_ >> 16, place = lane_ >> 8 & 0xff, eight = lane_ & 0xff;
    const int channels = grid.channels;
    const int64_t step = int64_t{steps.row} * width * channels;
    to += eight * grid.pitch * kEightBytes;
    for (int i = place; i < kPlaces; i += steps.place) {
      const bool is_column = static_cast<unsigned>(x + i) < static_cast<unsigned>(width);
      const T* from =
          image + ((int64_t{n} * height + y + first_row) * width + x + i) * channels + eight * 8;
      uint32_t at = to + (first_row * kPlaces + i) * kEightBytes;
#pragma unroll 2
      for (int row = first_row; row < rows; row += steps.row) {
        const bool is = is_column && static_cast<unsigned>(y + row) < static_cast<unsigned>(height);
        copy_async(at, from, is ? kEightBytes : 0);
        from += step;
        at += steps.row * kPlaces * kEightBytes;
      }
    }
  }

 private:
  static constexpr int kNone = 0x7fff;  // a row that no tile has
  int lane_;
};

// kCount neighbours of a row in shared memory as pairs of channels.
template <class T, int kCount>
__device__ __forceinline__ void read_pairs(const unsigned char* from, float2 (&to)[kCount]) {
#pragma unroll
  for (int c = 0; c < kCount; ++c) {
    to[c] = unpack_pair<T>(*reinterpret_cast<const uint32_t*>(from + c * kEightBytes));
  }
}

// The weights of a block's channels to shared memory, rows of taps.
template <class T, int kTaps>
__device__ __forceinline__ void stage_strip_taps(const StripGrid& grid, int first,
                                                 const void* weight, float* taps) {
  const int pitch = grid.tap_pitch();
  const int count = min(grid.eights * 8, grid.channels - first) * kTaps;
  const T* const from = static_cast<const T*>(weight) + int64_t{first} * kTaps;
  for (int i = threadIdx.x; i < count; i += static_cast<int>(blockDim.x)) {
    taps[i % kTaps * pitch + i / kTaps] = to_compute(from[i]);
  }
}

// sums: a strip's, of the image from `from` on. taps: rows of the thread's two weights, which stay
// in shared memory: registers have no room for 25 of them beside the sums.
template <class T, int kKernel, class Tile, class Sums>
__device__ __forceinline__ void sum_strip(const unsigned char* from, const float* taps, int pitch,
                                          Sums& sums) {
  using Vertical = typename Tile::Vertical;
  using Across = typename Tile::Across;
#pragma unroll
  for (int r = 0; r < Vertical::kInputs; ++r) {
    float2 v[Across::kInputs];
    read_pairs<T>(from + r * Tile::kPlaces * kEightBytes, v);
#pragma unroll
    for (int oy = 0; oy < Tile::kRows; ++oy) {
      if (!Vertical::takes(oy, r)) continue;
#pragma unroll
      for (int ox = 0; ox < Tile::kColumns; ++ox) {
#pragma unroll
        for (int c = 0; c < Across::kInputs; ++c) {
          if (!Across::takes(ox, c)) continue;
          const int tap = Vertical::tap(oy, r) * kKernel + Across::tap(ox, c);
          const float2 w = *reinterpret_cast<const float2*>(taps + tap * pitch);
          sums[oy][ox].x += v[c].x * w.x;
          sums[oy][ox].y += v[c].y * w.y;
        }
      }
    }
  }
}

template <class T, int kKernel, int kStride, bool kAdjoint, int kAcross>
__global__ void __launch_bounds__(kStripThreads, strip_blocks(kKernel, kStride, kAdjoint))
    depthwise_strip_kernel(const __grid_constant__ StripProblem problem) {
  using Tile = StripTile<kKernel, kStride, kAdjoint, kAcross>;
  using Vertical = typename Tile::Vertical;
  using Across = typename Tile::Across;
  constexpr int kRows = Tile::kRows, kColumns = Tile::kColumns;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ float2 affine[3 * 4 * kMostEights];
  wait_for_predecessor();
  const DepthwiseProblem& p = problem.base;
  const StripGrid& grid = problem.grid;
  const DepthwiseShape& s = p.shape;
  const StripPlace<kAcross> at(grid);
  const StripCopies<T, Tile::kPlaces> copies(grid, grid.image_steps, at.first);
  const int pad_h = static_cast<int>(s.pad_h), pad_w = static_cast<int>(s.pad_w);
  const auto fetch = [&](unsigned tile, int buffer) {
    const TilePlace place(grid, tile);
    copies.start(grid, grid.image_steps, static_cast<const T*>(p.x) + at.first,
                 static_cast<int>(kAdjoint ? s.out_h : s.h),
                 static_cast<int>(kAdjoint ? s.out_w : s.w),
                 shared_address(memory) + buffer * grid.buffer_bytes, place.n,
                 static_cast<int>(Vertical::first_input(place.row * grid.down, pad_h)),
                 static_cast<int>(Across::first_input(place.column * kAcross, pad_w)),
                 Tile::place_rows(grid.down));
  };
  fetch(at.tile, 0);
  commit_copies();
  float* const taps = reinterpret_cast<float*>(memory + 2 * grid.buffer_bytes);
  stage_strip_taps<T, kKernel * kKernel>(grid, at.first, p.weight, taps);
  if constexpr (!kAdjoint) {
    if (at.active && at.down + at.across == 0) stage_affine<T>(p, at.col, affine + 3 * at.pair);
  }
  const int out_h = static_cast<int>(kAdjoint ? s.h : s.out_h);
  const int out_w = static_cast<int>(kAdjoint ? s.w : s.out_w);
  const int channels = grid.channels;
  const unsigned char* const own =
      memory + at.bytes(grid, at.down * Vertical::kOwn * Tile::kPlaces + at.across * Across::kOwn);
  int buffer = 0;
  for (unsigned tile = at.tile; tile < grid.tiles; tile += grid.row_blocks, buffer ^= 1) {
    __syncthreads();  // the other buffer has been read
    if (tile + grid.row_blocks < grid.tiles) fetch(tile + grid.row_blocks, buffer ^ 1);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    const TilePlace place(grid, tile);
    const int oy0 =
        static_cast<int>(Vertical::first_result(place.row * grid.down + at.down, pad_h));
    const int ox0 =
        static_cast<int>(Across::first_result(place.column * kAcross + at.across, pad_w));
    if (!at.active || oy0 >= out_h || ox0 >= out_w) continue;
    float2 sums[kRows][kColumns] = {};
    sum_strip<T, kKernel, Tile>(own + buffer * grid.buffer_bytes, taps + 2 * at.pair,
                                grid.tap_pitch(), sums);

    const int64_t to = ((int64_t{place.n} * out_h + oy0) * out_w + ox0) * channels + at.col;
#pragma unroll
    for (int oy = 0; oy < kRows; ++oy) {
      if (static_cast<unsigned>(oy0 + oy) >= static_cast<unsigned>(out_h)) continue;
      const auto writes = [&](int ox) {
        return static_cast<unsigned>(ox0 + ox) < static_cast<unsigned>(out_w);
      };
      const int64_t row = to + int64_t{oy} * out_w * channels;
      float2(&z)[kColumns] = sums[oy];

      // Norm, residual, activation
      if constexpr (!kAdjoint) {
        const float2 before = affine[3 * at.pair], scale = affine[3 * at.pair + 1];
        const float2 bias = affine[3 * at.pair + 2];
#pragma unroll
        for (int ox = 0; ox < kColumns; ++ox) {
          z[ox].x = (z[ox].x + before.x) * scale.x + bias.x;
          z[ox].y = (z[ox].y + before.y) * scale.y + bias.y;
        }
        if (p.residual != nullptr) {
          const T* const residual = static_cast<const T*>(p.residual) + row;
#pragma unroll
          for (int ox = 0; ox < kColumns; ++ox) {
            if (!writes(ox)) continue;
            const float2 added =
                unpack_pair<T>(__ldg(reinterpret_cast<const uint32_t*>(residual + ox * channels)));
            z[ox].x += added.x, z[ox].y += added.y;
          }
        }
        with_activation(p.activation, [&]<Activation kActivation>() {
          resolve_rare<kActivation>(p.activation, [&]<Activation kNow>() {
#pragma unroll
            for (int ox = 0; ox < kColumns; ++ox) {
              z[ox].x = activate_as<kNow, kAccuracyOf<T>>(z[ox].x);
              z[ox].y = activate_as<kNow, kAccuracyOf<T>>(z[ox].y);
            }
          });
        });
      }
#pragma unroll
      for (int ox = 0; ox < kColumns; ++ox) {
        if (!writes(ox)) continue;
        const Vec<T, 2> pair{{from_compute<T>(z[ox].x), from_compute<T>(z[ox].y)}};
        *reinterpret_cast<Vec<T, 2>*>(static_cast<T*>(p.y) + row + ox * channels) = pair;
      }
    }
  }
}

}  // namespace fusedops
