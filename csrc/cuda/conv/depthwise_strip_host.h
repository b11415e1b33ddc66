// Host side of depthwise convolutions on tiles in shared memory: which problems take them, the
// grid, and their launches.
#pragma once

#include "csrc/common/device/shared_memory.cuh"
#include "csrc/cuda/conv/depthwise_host.h"
#include "csrc/cuda/conv/depthwise_strip.cuh"
#include "csrc/cuda/conv/depthwise_weight.cuh"

namespace fusedops::cuda {

inline constexpr bool kTakesStrips = true;

// instance: of depthwise_instance.
inline bool takes_strips(const DepthwiseShape& s, int instance,
                         std::initializer_list<const void*> data) {
  return kTakesStrips && instance != kAnyDepthwise && has_eights(s, data);
}

// One wave of blocks that share the tiles evenly. The height of a block is the largest that leaves
// room for two of them in shared memory and gives each multiprocessor one.
// results: (h, w) of the image that is cut; with_dy: whether a buffer has it, too.
template <class Tile>
StripGrid strip_grid(const DepthwiseShape& s, int64_t results_h, int64_t results_w, int across,
                     int registers, bool with_dy, const DeviceFacts& facts) {
  StripGrid grid{};
  const int eights = static_cast<int>(s.channels / 8);
  grid.channels = static_cast<int>(s.channels);
  grid.eights = eights < kMostEights ? eights : kMostEights;
  const auto waste = [&](int n) { return ceil_div(eights, n) * n - eights; };
  for (int n = grid.eights - 1; n >= kMostEights / 2; --n) {
    if (waste(n) < waste(grid.eights)) grid.eights = n;
  }
  grid.chunks = static_cast<int>(ceil_div(eights, grid.eights));

  // Height
  const auto fit = [&](int down) {
    grid.down = down;
    // NOTE: behind all tiles a row of taps of each strip takes less than its dy.
    const int dy = with_dy ? down * Tile::kRows * Tile::kResults : 0;
    grid.pitch = (Tile::place_rows(down) * Tile::kPlaces + dy) | 1;
    grid.buffer_bytes = grid.pitch * kEightBytes * grid.eights;
    grid.tap_bytes = with_dy ? 0 : static_cast<int>(s.taps()) * grid.tap_pitch() * 4;
    const int strips = down * across;
    grid.threads = static_cast<int>(round_up(strips * grid.eights * 4, 32));
  };
  constexpr int kReserved = 2048;  // of a block, with what is static
  const int all = facts.shared_memory_per_block + 1024;
  const int64_t strips_h = ceil_div(results_h, int64_t{Tile::kRows});
  grid.tiles_w = static_cast<int>(ceil_div(results_w, int64_t{Tile::kResults}));
  const int64_t columns = s.n * grid.tiles_w * grid.chunks;
  int most = kMostStrips / across;
  for (; most > 1; --most) {
    fit(most);
    const bool is_room = grid.bytes() + kReserved <= all / 2;
    if (is_room && columns * ceil_div(strips_h, int64_t{most}) >= facts.sm_count) break;
  }
  grid.tiles_h = static_cast<int>(ceil_div(strips_h, int64_t{most}));
  fit(static_cast<int>(ceil_div(strips_h, int64_t{grid.tiles_h})));

  // Blocks
  const int slots = grid.threads / grid.eights;
  grid.image_steps = StripSteps(Tile::kPlaces, slots);
  grid.dy_steps = StripSteps(Tile::kResults, slots);
  grid.tiles = static_cast<unsigned>(s.n * grid.tiles_h * grid.tiles_w);
  const int by_registers = 65536 / (registers * grid.threads);
  const int by_memory = all / (grid.bytes() + kReserved);
  const int64_t tiles = grid.tiles, sms = facts.sm_count;
  int64_t least = INT64_MAX;  // tiles of the multiprocessor that has most of them
  const int most_blocks = by_registers < by_memory ? by_registers : by_memory;
  for (int each = most_blocks > 0 ? most_blocks : 1; each > 0; --each) {
    const int64_t wanted = sms * each / grid.chunks > 0 ? sms * each / grid.chunks : 1;
    const int64_t rounds = ceil_div(tiles, wanted), row_blocks = ceil_div(tiles, rounds);
    const int64_t busiest = ceil_div(row_blocks * grid.chunks, sms) * rounds;
    if (least < INT64_MAX && busiest * 8 > least * 7) continue;  // fewer blocks hide less latency
    least = busiest;
    grid.row_blocks = static_cast<unsigned>(row_blocks);
  }
  return grid;
}

// Strips beside each other in a block: two, but for few and odd numbers of them.
template <int kKernel, int kStride, bool kAdjoint>
int strips_across(int64_t results_w) {
  using Tile = StripTile<kKernel, kStride, kAdjoint, 1>;
  const int64_t strips = ceil_div(results_w, int64_t{Tile::kColumns});
  return strips % 2 == 1 && strips <= 3 ? 1 : 2;
}

// y = conv(x), or its adjoint, with what is behind. Launches.
void launch_strips(const LaunchScope& scope, DType dtype, int instance, DepthwiseProblem problem);

// dweight of a convolution; base has neither grid nor sums of blocks. Launches.
void launch_strip_weight(const LaunchScope& scope, DType dtype, int instance,
                         const DepthwiseWeightProblem& base, const Tensor& dweight);

}  // namespace fusedops::cuda
