// Offsets of packed clouds as the searches read them: from 0 to the number of rows, none below the
// one before it. An offset that falls counts as the largest before it, so that clouds never
// overlap.
#pragma once

#include <utility>

#include "csrc/common/checks/neighbours_check.h"
#include "csrc/common/host/launch.h"

namespace fusedops::cuda {

// Replaces the offsets, if there are any.
void make_offsets_monotone(const LaunchScope& scope, CloudTensors& clouds);

inline CloudTensors with_monotone_offsets(const LaunchScope& scope, CloudTensors clouds) {
  make_offsets_monotone(scope, clouds);
  return clouds;
}

inline NeighbourTensors with_monotone_offsets(const LaunchScope& scope, NeighbourTensors tensors) {
  // NOTE: queries that are the points are recognised by their pointers
  const bool shared = tensors.queries.view.offsets == tensors.points.view.offsets;
  make_offsets_monotone(scope, tensors.points);
  if (shared) {
    tensors.queries.offsets = tensors.points.offsets;
    tensors.queries.view.offsets = tensors.points.view.offsets;
  } else {
    make_offsets_monotone(scope, tensors.queries);
  }
  return tensors;
}

}  // namespace fusedops::cuda
