// Depthwise convolutions on Tensor Cores: the grid and launches.
#include <algorithm>

#include "csrc/common/device/shared_memory.cuh"
#include "csrc/cuda/conv/depthwise_band.cuh"
#include "csrc/cuda/conv/depthwise_host.h"

namespace fusedops::cuda {
namespace {

// Tiles as wide as the image in blocks of 8, segments of even parts of its rows.
BandGrid band_grid(const DepthwiseShape& s, int64_t height, int64_t width, int64_t most_rows) {
  BandGrid grid{};
  grid.chunks = static_cast<int>(ceil_div(s.channels, int64_t{kBandChannels}));
  grid.across = 1;
  while (grid.across < kBandBlocks && grid.across * 8 < width) grid.across *= 2;
  grid.columns = static_cast<int>(ceil_div(width, int64_t{grid.across} * 8));
  const int64_t parts = ceil_div(height, most_rows);
  grid.rows = static_cast<int>(round_up(ceil_div(height, parts), 2));
  grid.row_segments = static_cast<int>(ceil_div(height, int64_t{grid.rows}));
  grid.segments = static_cast<unsigned>(s.n * grid.row_segments);
  grid.tiles = static_cast<unsigned>(ceil_div(int64_t{grid.segments}, int64_t{grid.in_tile()}) *
                                     grid.columns);
  grid.row_words = grid.in_tile() * grid.segment_words();
  // NOTE: 2 modulo 4: the two eights of channels that a warp stores lie in different banks.
  const int words = (grid.rows + static_cast<int>(s.kh) - 1) * grid.row_words;
  grid.plane_words = words + (words % 4 == 2 ? 0 : 2);
  return grid;
}

// In one wave of so many blocks.
void share_tiles(BandGrid& grid, int64_t blocks) {
  const int64_t wave = ceil_div(blocks, int64_t{grid.chunks});
  const int64_t rounds = ceil_div(int64_t{grid.tiles}, wave);
  grid.row_blocks = static_cast<unsigned>(ceil_div(int64_t{grid.tiles}, rounds));
}

template <auto kKernelOf>
void launch(const LaunchScope& scope, const DepthwiseProblem& base) {
  const DepthwiseShape& s = base.shape;
  const DeviceFacts& facts = scope.facts();
  const int64_t height = base.adjoint ? s.h : s.out_h, width = base.adjoint ? s.w : s.out_w;
  BandProblem p{base, band_grid(s, height, width, 16)};
  constexpr int kReserved = 1024;  // of a block
  const bool few = int64_t{p.grid.tiles} * p.grid.chunks < 2 * facts.sm_count;
  if (few || p.grid.bytes() + kReserved > facts.shared_memory_per_block) {
    p.grid = band_grid(s, height, width, 8);
  }
  const int by_memory = (facts.shared_memory_per_block + kReserved) / (p.grid.bytes() + kReserved);
  const int by_registers = 65536 / (registers_of<kKernelOf>() * kBandThreads);
  share_tiles(p.grid, int64_t{std::min(by_memory, by_registers)} * facts.sm_count);
  allow_any_shared_memory<kKernelOf>();
  launch_kernel(kKernelOf, dim3(p.grid.row_blocks * static_cast<unsigned>(p.grid.chunks)),
                dim3(kBandThreads), p.grid.bytes(), scope.stream(), facts.code_version >= 90, p);
}

}  // namespace

bool takes_band(const DepthwiseShape& s, DType dtype, std::initializer_list<const void*> data) {
  // NOTE: 5x5 in narrow images leaves half of a tile empty.
  const bool fits = s.kh == 7 || (s.kh == 5 && s.w > 8);
  const int64_t h = s.h > s.out_h ? s.h : s.out_h, w = s.w > s.out_w ? s.w : s.out_w;
  const bool small = s.n * ceil_div(h, int64_t{2}) * ceil_div(w, int64_t{8}) < int64_t{1} << 30;
  return fits && s.stride_h == 1 && small && has_pairs(s, dtype, data) && has_eights(s, data);
}

void launch_band(const LaunchScope& scope, DType dtype, const DepthwiseProblem& p) {
  with_half(dtype, [&]<class T>() {
    dispatch(Choices<5, 7>{}, static_cast<int>(p.shape.kh), [&]<int kKernel>(Tag<kKernel>) {
      dispatch_bool(p.adjoint, [&]<bool kAdjoint>(Tag<kAdjoint>) {
        launch<&depthwise_band_kernel<T, kKernel, kAdjoint>>(scope, p);
      });
    });
  });
}

}  // namespace fusedops::cuda
