// Checks of bincount and histogram.
#pragma once

#include <cmath>

#include "csrc/common/checks/element_check.h"

namespace fusedops {

inline constexpr int64_t kMaxBins = int64_t{1} << 31;

inline void check_bins(const char* op, int64_t bins) {
  FUSEDOPS_CHECK(bins >= 1 && bins < kMaxBins, op, ": bins must be from 1 to 2147483647; got ",
                 bins);
}

inline void check_range(const char* op, double low, double high) {
  FUSEDOPS_CHECK(std::isfinite(low) && std::isfinite(high) && low < high, op,
                 ": low must be less than high, both finite; got ", low, " and ", high);
}

}  // namespace fusedops
