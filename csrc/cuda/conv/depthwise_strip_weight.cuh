// The gradient of a depthwise convolution's weight on tiles in shared memory: sums over all results
// of dy x, for each tap.
//
// Blocks, threads and copies are those of depthwise_strip.cuh; a buffer has dy behind the image. A
// thread keeps the sums of all taps of its two channels; blocks write what they summed, and a
// second kernel joins them in a fixed order.
#pragma once

#include "csrc/cuda/conv/depthwise_strip.cuh"
#include "csrc/cuda/conv/depthwise_weight.cuh"

namespace fusedops {

struct StripWeightProblem {
  DepthwiseWeightProblem base;  // its grid is not used
  StripGrid grid;
};

template <class T, int kKernel, int kStride, int kAcross>
__global__ void __launch_bounds__(kStripThreads, strip_blocks(kKernel, kStride, false))
    depthwise_strip_weight_kernel(const __grid_constant__ StripWeightProblem problem) {
  using Tile = StripTile<kKernel, kStride, false, kAcross>;
  using Vertical = typename Tile::Vertical;
  using Across = typename Tile::Across;
  constexpr int kRows = Tile::kRows, kColumns = Tile::kColumns, kTaps = kKernel * kKernel;
  extern __shared__ __align__(16) unsigned char memory[];
  wait_for_predecessor();
  const DepthwiseWeightProblem& p = problem.base;
  const StripGrid& grid = problem.grid;
  const DepthwiseShape& s = p.shape;
  const StripPlace<kAcross> at(grid);
  const StripCopies<T, Tile::kPlaces> images(grid, grid.image_steps, at.first);
  const int rows = Tile::place_rows(grid.down), places = rows * Tile::kPlaces;
  const int pad_h = static_cast<int>(s.pad_h), pad_w = static_cast<int>(s.pad_w);
  const auto fetch = [&](unsigned tile, int buffer) {
    const TilePlace place(grid, tile);
    const uint32_t to = shared_address(memory) + buffer * grid.buffer_bytes;
    images.start(grid, grid.image_steps, static_cast<const T*>(p.x) + at.first,
                 static_cast<int>(s.h), static_cast<int>(s.w), to, place.n,
                 static_cast<int>(Vertical::first_input(place.row * grid.down, pad_h)),
                 static_cast<int>(Across::first_input(place.column * kAcross, pad_w)), rows);
    // NOTE: made anew for each tile, since registers are few.
    const StripCopies<T, Tile::kResults> results(grid, grid.dy_steps, at.first);
    results.start(grid, grid.dy_steps, static_cast<const T*>(p.dy) + at.first,
                  static_cast<int>(s.out_h), static_cast<int>(s.out_w), to + places * kEightBytes,
                  place.n, place.row * grid.down * kRows, place.column * Tile::kResults,
                  grid.down * kRows);
  };
  fetch(at.tile, 0);
  commit_copies();
  const unsigned char* const own_image =
      memory + at.bytes(grid, at.down * Vertical::kOwn * Tile::kPlaces + at.across * Across::kOwn);
  const unsigned char* const own_dy =
      memory + at.bytes(grid, places + at.down * kRows * Tile::kResults + at.across * kColumns);
  float2 sums[kTaps] = {};
  int buffer = 0;
  for (unsigned tile = at.tile; tile < grid.tiles; tile += grid.row_blocks, buffer ^= 1) {
    __syncthreads();  // the other buffer has been read
    if (tile + grid.row_blocks < grid.tiles) fetch(tile + grid.row_blocks, buffer ^ 1);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    if (!at.active) continue;
#pragma unroll
    for (int r = 0; r < Vertical::kInputs; ++r) {
      float2 v[Across::kInputs];
      read_pairs<T>(own_image + buffer * grid.buffer_bytes + r * Tile::kPlaces * kEightBytes, v);
#pragma unroll
      for (int a = 0; a < kRows; ++a) {
        if (!Vertical::takes(a, r)) continue;
        float2 dy[kColumns];
        read_pairs<T>(own_dy + buffer * grid.buffer_bytes + a * Tile::kResults * kEightBytes, dy);
#pragma unroll
        for (int b = 0; b < kColumns; ++b) {
#pragma unroll
          for (int c = 0; c < Across::kInputs; ++c) {
            if (!Across::takes(b, c)) continue;
            float2& sum = sums[Vertical::tap(a, r) * kKernel + Across::tap(b, c)];
            sum.x += v[c].x * dy[b].x;
            sum.y += v[c].y * dy[b].y;
          }
        }
      }
    }
  }

  // The block's sums, a row of taps at a time: (strips, kKernel, pairs)
  float2* const shared = reinterpret_cast<float2*>(memory);
  const int pairs = grid.eights * 4, strips = grid.down * kAcross;
  const int strip = at.down * kAcross + at.across;
#pragma unroll
  for (int a = 0; a < kKernel; ++a) {
    __syncthreads();
    if (at.active) {
#pragma unroll
      for (int b = 0; b < kKernel; ++b) {
        shared[(strip * kKernel + b) * pairs + at.pair] = sums[a * kKernel + b];
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kKernel * pairs; i += static_cast<int>(blockDim.x)) {
      const int b = i / pairs, channel = at.first + i % pairs * 2;
      if (channel >= grid.channels) continue;
      double first = 0, second = 0;
      for (int y = 0; y < strips; ++y) {
        first += shared[y * kKernel * pairs + i].x;
        second += shared[y * kKernel * pairs + i].y;
      }
      const unsigned block = blockIdx.x / grid.chunks;
      float* const to = static_cast<float*>(p.partial) +
                        (int64_t{block} * kTaps + a * kKernel + b) * grid.channels + channel;
      to[0] = static_cast<float>(first);
      to[1] = static_cast<float>(second);
    }
  }
}

}  // namespace fusedops
