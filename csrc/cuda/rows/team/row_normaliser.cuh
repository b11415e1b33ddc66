// The normaliser of a row for softmax, from what the teams' warps have found.
#pragma once

#include "csrc/common/device/row_exp.cuh"
#include "csrc/cuda/rows/team/row_team.cuh"

namespace fusedops {

// Largest value of a row, and the sum of exponentials relative to it.
template <class C>
struct RowNormaliser {
  C top, sum;
};

// Joins what the lanes of each warp have found, the largest value and the sum relative to it, to
// the normaliser of the whole row.
template <class O, class Team, class C>
__device__ __forceinline__ RowNormaliser<C> join_normaliser(Team& team, C top, C sum,
                                                            C extra = C{0}) {
  if (team.in_warp()) return {finite_top(top), sum};
  team.publish(top, sum, extra);
  top = finite_top(team.max_slot_a());
  return {top, team.sum_slots([&](const RowSlot<C>& s) { return s.b * exp_from<O>(s.a, top); })};
}

}  // namespace fusedops
