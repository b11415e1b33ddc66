// Bins of equal width over a range that the compute type may not hold: host and device, no torch.
#pragma once

#include <cmath>
#include <cstdint>

namespace fusedops {

// Whether C holds (high - low) * bins and does not round high - low to 0.
template <class C>
bool holds_range(C low, C high, int64_t bins) {
  const C width = high - low;
  return width > 0 && std::isfinite(width * static_cast<C>(bins));
}

// The bin of low <= x <= high where C does not hold the range.
constexpr int64_t wide_bin(double x, double low, double high, int64_t bins) {
  const double share = (x / 2 - low / 2) / (high / 2 - low / 2);  // halves do not overflow
  const double bin = share * static_cast<double>(bins);
  if (!(bin < static_cast<double>(bins))) return bins - 1;
  return bin > 0 ? static_cast<int64_t>(bin) : 0;
}

}  // namespace fusedops
