// Host side of first layers on CUDA: what has a kernel of its own, and the grid.
#pragma once

#include "csrc/cuda/conv/depthwise_host.h"
#include "csrc/cuda/conv/first.cuh"

namespace fusedops::cuda {

// Sides with a kernel of their own.
inline constexpr int kAnyFirst = 0;
using FirstInstances = Choices<3, 7, kAnyFirst>;

inline int first_instance(const FirstProblem& p, DType dtype) {
  bool fits = is_half(dtype) && p.channels == kFirstChannels && p.outputs % 8 == 0;
  fits = fits && p.kh == p.kw && (p.kh == 3 || p.kh == 7);
  fits = fits && p.stride_h == kFirstStride && p.stride_w == kFirstStride;
  fits = fits && reinterpret_cast<uintptr_t>(p.y) % 16 == 0;
  fits = fits && p.outputs <= kFirstOutputs * 1024;
  const int64_t tiles =
      p.n * ceil_div(p.out_h, int64_t{kFirstRows}) * ceil_div(p.out_w, int64_t{kFirstColumns});
  return fits && tiles <= int64_t{1} << 30 ? static_cast<int>(p.kh) : kAnyFirst;
}

inline FirstProblem first_problem(const DepthwiseShape& s, int64_t outputs) {
  FirstProblem p{};
  p.n = s.n, p.h = s.h, p.w = s.w, p.channels = s.channels;
  p.outputs = outputs, p.kh = s.kh, p.kw = s.kw;
  p.stride_h = s.stride_h, p.stride_w = s.stride_w, p.pad_h = s.pad_h, p.pad_w = s.pad_w;
  p.out_h = s.out_h, p.out_w = s.out_w;
  return p;
}

// Sets the tiles; x: blocks that share them evenly, one wave, y: groups of outputs.
inline dim3 first_grid(FirstProblem& p, int64_t places) {
  p.tiles_h = static_cast<int>(ceil_div(p.out_h, int64_t{kFirstRows}));
  p.tiles_w = static_cast<int>(ceil_div(p.out_w, int64_t{kFirstColumns}));
  p.tiles = static_cast<unsigned>(p.n * p.tiles_h * p.tiles_w);
  const int64_t groups = ceil_div(p.outputs, int64_t{kFirstOutputs});
  const int64_t rounds = ceil_div(int64_t{p.tiles}, ceil_div(places, groups));
  return dim3(static_cast<unsigned>(ceil_div(int64_t{p.tiles}, rounds)),
              static_cast<unsigned>(groups));
}

}  // namespace fusedops::cuda
