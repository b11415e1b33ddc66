#include "csrc/cutlass/select/tuned_plans.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "csrc/cutlass/configs/cluster_configs.h"

namespace fusedops {
namespace {

struct State {
  std::mutex mutex;
  std::map<TunedKey, GemmPlan> plans;
  bool recording = false;
  std::vector<RecordedGemm> recorded;
};

// NOTE: never destroyed; threads of other libraries may outlive static destructors.
State& state() {
  static State* const instance = new State;
  return *instance;
}

std::atomic<uint64_t> g_generation{1};
std::atomic<TunedLoader> g_loader{nullptr};

// NOTE: no lock is held while the loader runs, which takes Python's. A thread that comes meanwhile
// goes on without the table, until the new generation makes it ask again.
void load_once() {
  if (const TunedLoader loader = g_loader.exchange(nullptr)) loader();
}

void note_problem(GemmProblem problem, const DeviceModel& device) {
  problem.a.data = problem.b.data = problem.bias = nullptr;
  problem.d = problem.preact = nullptr;
  const std::lock_guard lock(state().mutex);
  if (state().recording) state().recorded.push_back({problem, device});
}

// A plan comes from a file, which may say anything.
bool has_tile_order(const GemmPlan& plan) {
  constexpr int kWidestRaster = 64;  // tune tries up to 16
  if (plan.family != Family::kCluster) {
    return plan.raster_width >= 1 && plan.raster_width <= kWidestRaster;
  }
  return std::ranges::find(kTileClusters, plan.shared_tiles) != std::end(kTileClusters);
}

// A raster of any width suits the kernels that have one.
bool is_plan_of(const GemmPlan& plan, const GemmPlan& known) {
  return known.family == plan.family && known.config == plan.config &&
         known.k_split == plan.k_split && known.slices == plan.slices &&
         (plan.family != Family::kCluster || known.shared_tiles == plan.shared_tiles);
}

bool find_plan(TunedKey key, GemmPlan& plan) {
  const std::lock_guard lock(state().mutex);
  const auto& plans = state().plans;
  auto found = plans.find(key);
  if (found == plans.end() && key.activation != Activation::kNone) {
    key.activation = Activation::kNone;
    found = plans.find(key);
  }
  if (found == plans.end()) return false;
  plan = found->second;
  return true;
}

}  // namespace

TunedKey tuned_key(const GemmProblem& p, const DeviceModel& device) {
  return {p.m,       p.n,       p.k,          p.dtype,           p.math,         p.epilogue,
          p.a.major, p.b.major, p.activation, device.capability, device.sm_count};
}

bool set_tuned_plan(const TunedKey& key, GemmPlan plan) {
  if (!has_tile_order(plan)) return false;
  plan.chosen_by = ChosenBy::kTuned;
  const std::lock_guard lock(state().mutex);
  state().plans[key] = plan;
  ++g_generation;
  return true;
}

void clear_tuned_plans() {
  const std::lock_guard lock(state().mutex);
  state().plans.clear();
  ++g_generation;
}

void set_tuned_loader(TunedLoader loader) { g_loader = loader; }

GemmPlan tuned_plan(const GemmProblem& problem, const DeviceModel& device) {
  load_once();
  GemmPlan plan;
  if (!find_plan(tuned_key(problem, device), plan)) return {};
  for (const Candidate& candidate : enumerate_candidates(problem, device)) {
    if (!candidate.rejected && is_plan_of(plan, candidate.plan)) return plan;
  }
  return {};
}

GemmPlan choose_gemm(const GemmProblem& problem, const DeviceModel& device) {
  const GemmPlan plan = tuned_plan(problem, device);
  note_problem(problem, device);
  return plan.config >= 0 ? plan : select_gemm(problem, device);
}

uint64_t tuned_generation() { return g_generation.load(std::memory_order_relaxed); }

void start_recording() {
  const std::lock_guard lock(state().mutex);
  state().recording = true;
  state().recorded.clear();
  ++g_generation;
}

std::vector<RecordedGemm> stop_recording() {
  const std::lock_guard lock(state().mutex);
  state().recording = false;
  return std::exchange(state().recorded, {});
}

}  // namespace fusedops
