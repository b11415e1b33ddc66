// The stencil's vocabulary, shared by checks, CPU loops and kernels; no torch header.
#pragma once

#include <cstdint>

namespace fusedops {

// What lies beyond the border, as in torch.nn.functional.pad.
// NOTE: python/fusedops/ops/stencil.py holds the same table.
enum class Padding : int64_t { kZeros = 0, kReflect = 1, kReplicate = 2, kCircular = 3 };
inline constexpr int64_t kNumPaddings = 4;
inline constexpr int kMaxTaps = 15;  // taps along one dimension; odd
inline constexpr int64_t kMaxExtent = 1 << 30;

// x as (planes, d, h, w); 1-D and 2-D stencils have d = 1, 1-D ones h = 1. weight is
// (groups, kd, kh, kw), plane p uses group p % groups.
struct StencilShape {
  int64_t planes = 0, groups = 1;
  int64_t d = 1, h = 1, w = 1;
  int kd = 1, kh = 1, kw = 1;
  Padding padding = Padding::kZeros;

  constexpr int64_t taps() const { return int64_t{kd} * kh * kw; }
  constexpr int64_t plane_size() const { return d * h * w; }
};

// The element that position i of 0..n-1 extended by r on both sides stands for; -1 for a zero and
// for what lies further out.
constexpr int64_t source_index(int64_t i, int64_t n, int64_t r, Padding padding) {
  if (i >= 0 && i < n) return i;
  if (i < -r || i >= n + r) return -1;
  switch (padding) {
    case Padding::kReflect: return i < 0 ? -i : 2 * (n - 1) - i;
    case Padding::kReplicate: return i < 0 ? 0 : n - 1;
    case Padding::kCircular: return i < 0 ? i + n : i - n;
    default: return -1;
  }
}

// The same without a switch, for kernels: beyond each border the source is a line in i. What is
// further out than the border gets -1 or some element.
struct BorderMap {
  int n = 0, low = -1, high = -1, low_slope = 0, high_slope = 0;

  BorderMap() = default;
  BorderMap(int64_t size, Padding padding) : n(static_cast<int>(size)) {
    if (padding == Padding::kReflect) low = 0, low_slope = -1, high = 2 * (n - 1), high_slope = -1;
    if (padding == Padding::kReplicate) low = 0, high = n - 1;
    if (padding == Padding::kCircular) low = n, low_slope = 1, high = -n, high_slope = 1;
  }
  constexpr int source(int i) const {
    const int source = i < 0 ? low + low_slope * i : i < n ? i : high + high_slope * i;
    return source < n ? source : -1;  // NOTE: every negative result stands for a zero
  }
};

}  // namespace fusedops
