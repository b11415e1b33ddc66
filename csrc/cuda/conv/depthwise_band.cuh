// Depthwise convolutions of (N, H, W, C) with stride 1 on Tensor Cores, norm and activation behind,
// and their adjoints.
//
// Along a row of an image the convolution of one channel is a product with a band matrix: 8 results
// are 16 neighbours times (16 x 8), a row of taps on its diagonals. An instruction multiplies 16
// blocks of 8 results: 8 beside each other, or of other segments of images where these are narrow,
// in a row and in the one half a tile further down. A block brings tiles of 16 channels to shared
// memory, channel by channel; a warp has one, with its matrices and open sums in registers.
#pragma once

#include "csrc/common/device/mma.cuh"
#include "csrc/cuda/conv/depthwise.cuh"

namespace fusedops {

inline constexpr int kBandChannels = 16;  // of a block: one for each warp
inline constexpr int kBandThreads = kBandChannels * 32;
inline constexpr int kBandBlocks = 8;                 // of results in a row of a tile
inline constexpr int kBandWords = kBandChannels / 2;  // of a pixel
inline constexpr int kBandOutPitch = kBandWords + 1;  // fewer conflicts of banks

// How results and channels are cut into tiles.
struct BandGrid {
  int chunks;                  // of channels
  int across;                  // blocks of 8 results beside each other in a tile: 1, 2, 4 or 8
  int rows;                    // of results in a segment, even
  int row_segments, columns;   // of an image: segments below each other, tiles beside each other
  unsigned segments, tiles;    // of all images; tiles of a chunk
  unsigned row_blocks;         // blocks of a chunk
  int row_words, plane_words;  // of a channel's image in shared memory

  __host__ __device__ int in_tile() const { return kBandBlocks / across; }  // segments
  __host__ __device__ int segment_words() const { return (across + 1) * 4; }
  int bytes() const {
    return (kBandChannels * plane_words + rows * kBandBlocks * 8 * kBandOutPitch) * 4;
  }
};

struct BandProblem {
  DepthwiseProblem base;  // its grid is not used; no residual
  BandGrid grid;
};

// Where a segment lies.
struct BandSegment {
  int n, row;  // image and first row of results
  bool exists;

  __device__ __forceinline__ BandSegment(const BandGrid& grid, unsigned segment)
      : n(static_cast<int>(segment / grid.row_segments)),
        row(static_cast<int>(segment - static_cast<unsigned>(n) * grid.row_segments) * grid.rows),
        exists(segment < grid.segments) {}
};

// Sizes and padding as the convolution reads and writes them.
struct BandImages {
  int in_h, in_w, out_h, out_w, pad_h, pad_w, channels;

  template <int kKernel, bool kAdjoint>
  __device__ __forceinline__ static BandImages of(const DepthwiseShape& s) {
    const int pad_h = static_cast<int>(s.pad_h), pad_w = static_cast<int>(s.pad_w);
    const int h = static_cast<int>(s.h), w = static_cast<int>(s.w);
    const int out_h = static_cast<int>(s.out_h), out_w = static_cast<int>(s.out_w);
    const int channels = static_cast<int>(s.channels);
    if (kAdjoint) {
      return {out_h, out_w, h, w, kKernel - 1 - pad_h, kKernel - 1 - pad_w, channels};
    }
    return {h, w, out_h, out_w, pad_h, pad_w, channels};
  }
};

// Where the first row and column that a segment reads lie.
struct __align__(16) BandStart {
  int64_t element;
  int y;  // far outside where there is no segment
};

// Those of a tile, by its first threads.
__device__ __forceinline__ void start_band(const BandGrid& grid, const BandImages& images,
                                           unsigned segment, int x0, BandStart* to) {
  const int s = static_cast<int>(threadIdx.x);
  if (s >= grid.in_tile()) return;
  const BandSegment at(grid, segment + s);
  const int y = at.row - images.pad_h;
  to[s] = {((int64_t{at.n} * images.in_h + y) * images.in_w + x0 - images.pad_w) * images.channels,
           at.exists ? y : -(1 << 30)};
}

// Whether one of the values of two of each word is not finite; words: the largest magnitudes.
template <class T>
__device__ __forceinline__ bool is_beyond(uint32_t largest) {
  constexpr uint32_t kInfinity = __is_same(T, __half) ? 0x7c00 : 0x7f80;
  return (largest & 0xffff) >= kInfinity || largest >> 16 >= kInfinity;
}

// Brings a tile of 16 channels to shared memory, planes of pairs of neighbouring columns, zeros
// beyond the image. Returns whether all that came is finite.
template <class T, int kKernel>
__device__ __forceinline__ bool fill_band(const BandGrid& grid, const BandImages& images,
                                          const T* image, int first, const BandStart* starts,
                                          int x0, uint32_t* planes) {
  const int octet = static_cast<int>(threadIdx.x) % 2;
  const int rows = grid.rows + kKernel - 1, width = grid.segment_words();
  const unsigned share = (65536u + width - 1) / width;  // of a segment, exact for a row's words
  const int step_row = kBandThreads / 2 / grid.row_words;
  const int step_word = kBandThreads / 2 - step_row * grid.row_words;
  int row = static_cast<int>(threadIdx.x) / 2 / grid.row_words;
  int word = static_cast<int>(threadIdx.x) / 2 - row * grid.row_words;
  const bool reads = first + octet * 8 < images.channels;
  const int plane = grid.plane_words;
  uint32_t* const to = planes + octet * 8 * plane;
  uint32_t largest = 0;
#pragma unroll 2
  while (row < rows) {
    const int s = static_cast<int>(static_cast<unsigned>(word) * share >> 16);
    const BandStart start = starts[s];
    const int x = (word - s * width) * 2;  // from the segment's first column
    const bool inside =
        reads && static_cast<unsigned>(start.y + row) < static_cast<unsigned>(images.in_h);
    const T* const from =
        image + octet * 8 + start.element + (int64_t{row} * images.in_w + x) * images.channels;
    uint4 pixels[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool is = inside && static_cast<unsigned>(x0 - images.pad_w + x + i) <
                                    static_cast<unsigned>(images.in_w);
      pixels[i] = is ? __ldg(reinterpret_cast<const uint4*>(from + i * images.channels)) : uint4{};
    }
    const uint32_t* const left = &pixels[0].x;
    const uint32_t* const right = &pixels[1].x;
    uint32_t* const at = to + row * grid.row_words + word;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      largest = __vmaxu2(largest, __vmaxu2(left[i] & 0x7fff7fff, right[i] & 0x7fff7fff));
      at[2 * i * plane] = __byte_perm(left[i], right[i], 0x5410);
      at[(2 * i + 1) * plane] = __byte_perm(left[i], right[i], 0x7632);
    }
    row += step_row, word += step_word;
    if (word >= grid.row_words) word -= grid.row_words, ++row;
  }
  return !is_beyond<T>(largest);
}

// The matrices of a channel, one for each row of taps: element (k, g) is tap k - g.
template <class T, int kKernel>
struct BandMatrices {
  uint32_t near[kKernel], far[kKernel];  // of neighbours 0 to 7, and 8 to 15

  template <bool kAdjoint>
  __device__ __forceinline__ void load(const T* taps, bool exists) {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4, t = static_cast<int>(threadIdx.x) % 4;
    const auto tap = [&](int a, int b) -> uint32_t {
      if (!exists || b < 0 || b >= kKernel) return 0;
      const int at = a * kKernel + b;
      return __ldg(reinterpret_cast<const unsigned short*>(taps) +
                   (kAdjoint ? kKernel * kKernel - 1 - at : at));
    };
#pragma unroll
    for (int a = 0; a < kKernel; ++a) {
      near[a] = tap(a, 2 * t - g) | tap(a, 2 * t + 1 - g) << 16;
      far[a] = tap(a, 2 * t + 8 - g) | tap(a, 2 * t + 9 - g) << 16;
    }
  }
};

// What is behind the sums of a channel: act((z + before) * scale + bias).
struct BandAffine {
  float before = 0, scale = 1, bias = 0;

  template <class T>
  __device__ __forceinline__ static BandAffine of(const DepthwiseProblem& p, int channel) {
    float2 two[3];
    stage_affine<T>(p, channel & ~1, two);
    if (channel % 2 == 0) return {two[0].x, two[1].x, two[2].x};
    return {two[0].y, two[1].y, two[2].y};
  }
  template <class T, int kCount>
  __device__ __forceinline__ void finish(Activation activation, float (&z)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) z[i] = (z[i] + before) * scale + bias;
    with_activation(activation, [&]<Activation kActivation>() {
      resolve_rare<kActivation>(activation, [&]<Activation kNow>() {
#pragma unroll
        for (int i = 0; i < kCount; ++i) z[i] = activate_as<kNow, kAccuracyOf<T>>(z[i]);
      });
    });
  }
};

// A tile with values that are not finite, which a zero of a band matrix would spread: each result
// from its own taps.
template <class T, int kKernel, bool kAdjoint>
__device__ __noinline__ void sum_taps_of_tile(const BandProblem& problem, int first,
                                              unsigned segment, int x0) {
  const DepthwiseProblem& p = problem.base;
  const BandGrid& grid = problem.grid;
  const BandImages images = BandImages::of<kKernel, kAdjoint>(p.shape);
  const int count = grid.rows * kBandBlocks * 8 * kBandChannels;
  for (int i = threadIdx.x; i < count; i += kBandThreads) {
    const int channel = first + i % kBandChannels, pixel = i / kBandChannels;
    const int block = pixel / 8 % kBandBlocks, row = pixel / (8 * kBandBlocks);
    const BandSegment at(grid, segment + block / grid.across);
    const int y = at.row + row, x = x0 + block % grid.across * 8 + pixel % 8;
    if (!at.exists || y >= images.out_h || x >= images.out_w || channel >= images.channels)
      continue;
    const T* const taps = static_cast<const T*>(p.weight) + int64_t{channel} * kKernel * kKernel;
    float z[1] = {};
    for (int a = 0; a < kKernel; ++a) {
      const int in_y = y - images.pad_h + a;
      if (static_cast<unsigned>(in_y) >= static_cast<unsigned>(images.in_h)) continue;
      const int64_t line = (int64_t{at.n} * images.in_h + in_y) * images.in_w;
      for (int b = 0; b < kKernel; ++b) {
        const int in_x = x - images.pad_w + b, tap = a * kKernel + b;
        if (static_cast<unsigned>(in_x) >= static_cast<unsigned>(images.in_w)) continue;
        z[0] += to_compute(static_cast<const T*>(p.x)[(line + in_x) * images.channels + channel]) *
                to_compute(taps[kAdjoint ? kKernel * kKernel - 1 - tap : tap]);
      }
    }
    if constexpr (!kAdjoint) BandAffine::of<T>(p, channel).template finish<T>(p.activation, z);
    const int64_t line = (int64_t{at.n} * images.out_h + y) * images.out_w;
    static_cast<T*>(p.y)[(line + x) * images.channels + channel] = from_compute<T>(z[0]);
  }
}

template <class T, int kKernel, bool kAdjoint>
__global__ void __launch_bounds__(kBandThreads, 2)
    depthwise_band_kernel(const __grid_constant__ BandProblem problem) {
  extern __shared__ __align__(16) uint32_t memory[];
  __shared__ BandStart starts[2][kBandBlocks];
  wait_for_predecessor();
  const DepthwiseProblem& p = problem.base;
  const BandGrid& grid = problem.grid;
  const BandImages images = BandImages::of<kKernel, kAdjoint>(p.shape);
  uint32_t* const out = memory + kBandChannels * grid.plane_words;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4;
  const int first = static_cast<int>(blockIdx.x % grid.chunks) * kBandChannels;
  const int channel = first + warp;
  const bool exists = channel < images.channels;
  BandMatrices<T, kKernel> matrices;
  matrices.template load<kAdjoint>(
      static_cast<const T*>(p.weight) + int64_t{channel} * kKernel * kKernel, exists);
  BandAffine affine;
  if (!kAdjoint && exists) affine = BandAffine::of<T>(p, channel);
  const int half = grid.rows / 2;
  const uint32_t* const own = memory + warp * grid.plane_words +
                              g / grid.across * grid.segment_words() + g % grid.across * 4 + t;
  T* const own_out = reinterpret_cast<T*>(out) + warp;
  const auto x_of = [&](unsigned tile) {
    return static_cast<int>(tile % grid.columns) * grid.across * 8;
  };
  const auto segment_of = [&](unsigned tile) { return tile / grid.columns * grid.in_tile(); };
  unsigned tile = blockIdx.x / grid.chunks;
  start_band(grid, images, segment_of(tile), x_of(tile), starts[0]);
  __syncthreads();
  for (int turn = 0; tile < grid.tiles; tile += grid.row_blocks, turn ^= 1) {
    const int x0 = x_of(tile);
    const unsigned segment = segment_of(tile), next = tile + grid.row_blocks;
    start_band(grid, images, segment_of(next), x_of(next), starts[turn ^ 1]);
    const bool finite = fill_band<T, kKernel>(grid, images, static_cast<const T*>(p.x) + first,
                                              first, starts[turn], x0, memory);
    if (__syncthreads_or(!finite)) {
      sum_taps_of_tile<T, kKernel, kAdjoint>(problem, first, segment, x0);
      __syncthreads();
      continue;
    }

    // Sums. NOTE: those of rows in front of the tile and behind it are left where they are.
    float sums[kKernel][4] = {};  // of the rows that are open, the newest first
    for (int row = 0; row < half + kKernel - 1; ++row) {
      const uint32_t* const upper = own + row * grid.row_words;
      const uint32_t* const lower = upper + half * grid.row_words;
      const uint32_t pixels[4] = {upper[0], lower[0], upper[4], lower[4]};
      float z[4];
      mma_k16_on<T>(z, pixels, matrices.near[kKernel - 1], matrices.far[kKernel - 1],
                    sums[kKernel - 1]);
#pragma unroll
      for (int a = kKernel - 2; a >= 0; --a) {
        mma_k16_on<T>(sums[a + 1], pixels, matrices.near[a], matrices.far[a], sums[a]);
      }
      if (row < kKernel - 1) continue;
      if constexpr (!kAdjoint) affine.template finish<T>(p.activation, z);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int line = row - kKernel + 1 + i / 2 * half;
        const int pixel = (line * kBandBlocks + g) * 8 + 2 * t + i % 2;
        own_out[pixel * kBandOutPitch * 2] = from_compute<T>(z[i]);
      }
    }
    __syncthreads();

    // Results
    const int word = static_cast<int>(threadIdx.x) % kBandWords;
    const int pixel = static_cast<int>(threadIdx.x) / kBandWords;  // of a row's 64
    const int block = pixel / 8, in = first + word * 2;
    const BandSegment at(grid, segment + block / grid.across);
    const int x = x0 + block % grid.across * 8 + pixel % 8;
    if (!at.exists || x >= images.out_w || in >= images.channels) continue;
    T* to = static_cast<T*>(p.y) +
            ((int64_t{at.n} * images.out_h + at.row) * images.out_w + x) * images.channels + in;
    const uint32_t* from = out + pixel * kBandOutPitch + word;
    const int count = min(grid.rows, images.out_h - at.row);
    for (int row = 0; row < count; ++row) {
      *reinterpret_cast<uint32_t*>(to) = *from;
      to += images.out_w * images.channels;
      from += kBandBlocks * 8 * kBandOutPitch;
    }
  }
}

}  // namespace fusedops
