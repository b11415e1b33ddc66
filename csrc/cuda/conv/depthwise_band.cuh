// Depthwise convolutions of (N, H, W, C) with stride 1 on Tensor Cores, norm and activation behind,
// and their adjoints.
//
// Along a row of an image the convolution of one channel is a product with a band matrix: 8 results
// are (8 x 16) times 16 neighbours, a row of taps on its diagonals. An instruction has two of them,
// of neighbouring rows of taps for neighbouring rows of results, and multiplies 8 blocks of
// results: beside each other, or of other segments of images where these are narrow. A block brings
// tiles of 16 channels to shared memory, channel by channel; a warp has two, their matrices in
// registers.
#pragma once

#include "csrc/common/device/mma.cuh"
#include "csrc/cuda/conv/depthwise.cuh"

namespace fusedops {

inline constexpr int kBandThreads = 256;
inline constexpr int kBandChannels = 16;              // of a block: two of a warp
inline constexpr int kBandBlocks = 8;                 // of results in a product
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

// Whether one of two magnitudes is that of an infinity or NaN.
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

// Matrices of a channel: element (g, k) of one is tap k - g of a row of taps. That of `a` has row a
// for a row of results and row a - 1 for the next one.
template <class T, int kKernel>
struct BandMatrices {
  uint32_t matrix[kKernel + 1][4];

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
    for (int a = 0; a <= kKernel; ++a) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = a - i % 2, b = 2 * t + i / 2 * 8 - g;
        // NOTE: a copy of its own: an instruction wants its four in a row.
        const uint32_t pair = row < 0 || row >= kKernel ? 0u : tap(row, b) | tap(row, b + 1) << 16;
        asm volatile("mov.b32 %0, %1;" : "=r"(matrix[a][i]) : "r"(pair));
      }
    }
  }
};

// act((z + affine[0]) * affine[1] + affine[2]) of some values of two channels.
template <class T, int kCount>
__device__ __forceinline__ void finish_band(Activation activation, const float2 (&affine)[3],
                                            float (&z)[2][kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    z[0][i] = (z[0][i] + affine[0].x) * affine[1].x + affine[2].x;
    z[1][i] = (z[1][i] + affine[0].y) * affine[1].y + affine[2].y;
  }
  with_activation(activation, [&]<Activation kActivation>() {
    resolve_rare<kActivation>(activation, [&]<Activation kNow>() {
#pragma unroll
      for (int i = 0; i < 2 * kCount; ++i) {
        z[i / kCount][i % kCount] = activate_as<kNow, kAccuracyOf<T>>(z[i / kCount][i % kCount]);
      }
    });
  });
}

// A tile with values that are not finite, which a zero of a band matrix would spread: each result
// from its own taps.
template <class T, int kKernel, bool kAdjoint>
__device__ __noinline__ void sum_taps_of_tile(const BandProblem& problem, int first,
                                              unsigned segment, int x0) {
  const DepthwiseProblem& p = problem.base;
  const BandGrid& grid = problem.grid;
  const BandImages images = BandImages::of<kKernel, kAdjoint>(p.shape);
  const int count = grid.rows * kBandBlocks * 8 * kBandWords;
  for (int i = threadIdx.x; i < count; i += kBandThreads) {
    const int channel = first + i % kBandWords * 2, column = i / kBandWords % 8;
    const int block = i / (kBandWords * 8) % kBandBlocks, row = i / (kBandWords * 8 * kBandBlocks);
    const BandSegment at(grid, segment + block / grid.across);
    const int y = at.row + row, x = x0 + block % grid.across * 8 + column;
    if (!at.exists || y >= images.out_h || x >= images.out_w || channel >= images.channels)
      continue;
    float z[2][1] = {};
    for (int a = 0; a < kKernel; ++a) {
      const int in_y = y - images.pad_h + a;
      if (static_cast<unsigned>(in_y) >= static_cast<unsigned>(images.in_h)) continue;
      for (int b = 0; b < kKernel; ++b) {
        const int in_x = x - images.pad_w + b;
        if (static_cast<unsigned>(in_x) >= static_cast<unsigned>(images.in_w)) continue;
        const T* const from =
            static_cast<const T*>(p.x) +
            ((int64_t{at.n} * images.in_h + in_y) * images.in_w + in_x) * images.channels + channel;
        const int tap = kAdjoint ? kKernel * kKernel - 1 - a * kKernel - b : a * kKernel + b;
        const T* const weight =
            static_cast<const T*>(p.weight) + int64_t{channel} * kKernel * kKernel + tap;
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          z[c][0] += to_compute(from[c]) * to_compute(weight[c * kKernel * kKernel]);
        }
      }
    }
    if constexpr (!kAdjoint) {
      float2 affine[3];
      stage_affine<T>(p, channel, affine);
      finish_band<T>(p.activation, affine, z);
    }
    uint32_t* const to = reinterpret_cast<uint32_t*>(
        static_cast<T*>(p.y) +
        ((int64_t{at.n} * images.out_h + y) * images.out_w + x) * images.channels + channel);
    *to = pack_pair<T>(z[0][0], z[1][0]);
  }
}

template <class T, int kKernel, bool kAdjoint>
__global__ void __launch_bounds__(kBandThreads, 2)
    depthwise_band_kernel(const __grid_constant__ BandProblem problem) {
  constexpr int kOpen = (kKernel + 1) / 2;  // pairs of rows of results that a row adds to
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
  const int channel = first + warp * 2;
  const bool exists = channel < images.channels;
  BandMatrices<T, kKernel> matrices[2];
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    matrices[c].template load<kAdjoint>(
        static_cast<const T*>(p.weight) + int64_t{channel + c} * kKernel * kKernel, exists);
  }
  float2 affine[3] = {};
  if (!kAdjoint && exists) stage_affine<T>(p, channel, affine);
  const uint32_t* const own = memory + warp * 2 * grid.plane_words +
                              g / grid.across * grid.segment_words() + g % grid.across * 4 + t;

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

    // Sums. NOTE: those of results in front of the tile and behind it are never read.
    float sums[2][kOpen][4] = {};
    const int pairs = grid.rows / 2, steps = pairs + kOpen - 1;
    for (int q = 0; q < steps; ++q) {
      float z[2][4];
      const uint32_t* const row = own + 2 * q * grid.row_words;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const uint32_t* const from = row + c * grid.plane_words;
        const auto& matrix = matrices[c].matrix;
        uint32_t b[4] = {from[0], from[4], from[grid.row_words], from[grid.row_words + 4]};
#pragma unroll
        for (int j = 0; j < kOpen; ++j) mma_k16<T>(sums[c][j], matrix[2 * j], b[0], b[1]);
        mma_k16_on<T>(z[c], matrix[kKernel], b[2], b[3], sums[c][kOpen - 1]);
#pragma unroll
        for (int j = kOpen - 2; j >= 0; --j) {
          mma_k16_on<T>(sums[c][j + 1], matrix[2 * j + 1], b[2], b[3], sums[c][j]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[c][0][i] = 0;
      }
      const int pair = q - kOpen + 1;
      if (pair < 0) continue;
      if constexpr (!kAdjoint) finish_band<T>(p.activation, affine, z);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int pixel = ((pair * 2 + i / 2) * kBandBlocks + 2 * t + i % 2) * 8 + g;
        out[pixel * kBandOutPitch + warp] = pack_pair<T>(z[0][i], z[1][i]);
      }
    }
    __syncthreads();

    // Results
    const int word = static_cast<int>(threadIdx.x) % kBandWords;
    const int pixel = static_cast<int>(threadIdx.x) / kBandWords;  // of 32: half a row
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int block = half * 4 + pixel / 8;
      const BandSegment at(grid, segment + block / grid.across);
      const int x = x0 + block % grid.across * 8 + pixel % 8, in = first + word * 2;
      if (!at.exists || x >= images.out_w || in >= images.channels) continue;
      T* to = static_cast<T*>(p.y) +
              ((int64_t{at.n} * images.out_h + at.row) * images.out_w + x) * images.channels + in;
      const uint32_t* from = out + (half * 32 + pixel) * kBandOutPitch + word;
      const int count = min(grid.rows, images.out_h - at.row);
      for (int row = 0; row < count; ++row) {
        *reinterpret_cast<uint32_t*>(to) = *from;
        to += images.out_w * images.channels;
        from += kBandBlocks * 8 * kBandOutPitch;
      }
    }
  }
}

}  // namespace fusedops
