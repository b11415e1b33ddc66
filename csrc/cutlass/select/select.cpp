#include "csrc/cutlass/select/select.h"

#include <algorithm>

#include "csrc/cutlass/configs/skinny_configs.h"
#include "csrc/cutlass/select/families.h"
#include "csrc/cutlass/select/sm90_measured.h"
#include "csrc/cutlass/select/time_model.h"

namespace fusedops {
namespace {

// The measured choice for exactly this product, or null. A row without a costly activation also
// serves those, where they have none of their own.
const MeasuredGemm* measured_choice(const GemmProblem& p) {
  if (!is_half(p.dtype)) return nullptr;
  const MeasuredGemm* found = nullptr;
  for (const MeasuredGemm& row : measured::kProducts) {
    if (row.m != p.m || row.n != p.n || row.k != p.k || row.a != p.a.major || row.b != p.b.major ||
        row.epilogue != p.epilogue) {
      continue;
    }
    if (row.costly && is_costly(p.activation)) return &row;
    if (!row.costly) found = &row;
  }
  return found;
}

bool is_choice(const MeasuredGemm& row, const GemmPlan& plan) {
  if (plan.family != row.family || splits_number(plan) != row.splits) return false;
  if (plan.family == Family::kCluster && plan.shared_tiles != row.shared_tiles) return false;
  const GemmConfig& c = config_of(plan.family, plan.config);
  return c.tile_m == row.tile_m && c.tile_n == row.tile_n && c.cluster_m == row.cluster_m &&
         c.cluster_n == row.cluster_n;
}

bool any_runs(const Candidates& candidates, auto&& of_family) {
  return std::ranges::any_of(candidates, [&](const Candidate& c) {
    return c.rejected == nullptr && of_family(c.plan.family);
  });
}

// Whether the skinny kernels go before all others: they won every product that was measured for the
// time model and that they can run. Those had many columns. Where few have a long K, its slices are
// faster than two blocks that share it (12 products on an H200), which take so much longer than
// expected.
bool skinny_first(const GemmProblem& p, const Candidates& candidates) {
  constexpr int64_t kFewColumns = 640, kLongK = 4096;
  constexpr double kMuchLess = 0.8, kLongUs = 2.5;
  double skinny = 0, other = 0;
  int blocks = 0;  // that share K in the fastest skinny kernel
  for (const Candidate& c : candidates) {
    if (c.rejected) continue;
    const bool of_skinny = c.plan.family == Family::kSkinny;
    double& least = of_skinny ? skinny : other;
    if (least > 0 && c.plan.expected_us >= least) continue;
    least = c.plan.expected_us;
    if (of_skinny) blocks = kSkinnyConfigs[c.plan.config].cluster_n;
  }
  if (skinny == 0 || other == 0) return skinny > 0;
  const bool few = p.n <= kFewColumns && p.k > kLongK && blocks <= 2;
  return other > (few ? skinny + kLongUs : kMuchLess * skinny);
}

}  // namespace

std::vector<Candidate> enumerate_candidates(const GemmProblem& problem, const DeviceModel& device) {
  Candidates candidates;
  for (const auto add : {add_sm90, add_sm80, add_cluster, add_skinny}) {
    add(problem, device, candidates);
  }
  // WGMMA has the higher rate and, when it is an option, the better latency: mma.sync never
  // competes with it.
  if (any_runs(candidates, [](Family family) { return family != Family::kSm80; })) {
    for (Candidate& c : candidates) {
      if (c.plan.family == Family::kSm80 && !c.rejected) {
        c.rejected = "WGMMA kernels take this problem";
      }
    }
  }
  return candidates;
}

GemmPlan select_gemm(const GemmProblem& problem, const DeviceModel& device) {
  const Candidates candidates = enumerate_candidates(problem, device);
  const bool skinny = skinny_first(problem, candidates);
  // NOTE: the sweeps store; what is added to D in memory has other costs.
  const bool in_table = !skinny && !problem.accumulate;
  const MeasuredGemm* measured = in_table ? measured_choice(problem) : nullptr;
  GemmPlan best;
  for (const Candidate& candidate : candidates) {
    if (candidate.rejected || (candidate.plan.family == Family::kSkinny) != skinny) continue;
    const bool is_measured = measured && is_choice(*measured, candidate.plan);
    if (is_measured || best.config < 0 || candidate.plan.expected_us < best.expected_us) {
      best = candidate.plan;
    }
    best.chosen_by = is_measured ? ChosenBy::kMeasured
                     : skinny    ? ChosenBy::kSkinny
                                 : ChosenBy::kModel;
    if (is_measured) break;
  }
  return best;
}

}  // namespace fusedops
