// The sizes of a depthwise convolution, shared by checks, CPU loops and kernels; no torch header.
#pragma once

#include <cstdint>

namespace fusedops {

// x (n, h, w, channels), weight (channels, kh, kw), y (n, out_h, out_w, channels).
struct DepthwiseShape {
  int64_t n = 0, h = 0, w = 0, channels = 0;
  int64_t kh = 1, kw = 1;
  int64_t stride_h = 1, stride_w = 1;
  int64_t pad_h = 0, pad_w = 0;
  int64_t out_h = 0, out_w = 0;

  constexpr int64_t taps() const { return kh * kw; }
  constexpr bool is_square() const { return kh == kw && stride_h == stride_w; }
};

}  // namespace fusedops
