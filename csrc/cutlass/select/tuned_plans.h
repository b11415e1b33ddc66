// Plans that fusedops.tune measured on this machine, asked before the compiled table. One table per
// process, filled from Python; the first problem that misses the plan cache makes Python read the
// file. Also the recorder by which tune learns what a model computes. Host only.
#pragma once

#include <compare>
#include <vector>

#include "csrc/cutlass/select/select.h"

namespace fusedops {

// The problem as the table knows it. Alignment is left out: a plan that this problem's operands do
// not allow is passed over.
struct TunedKey {
  int64_t m, n, k;
  DType dtype;
  MathMode math;
  Epilogue epilogue;
  Major a, b;
  Activation activation;
  int capability, sm_count;
  auto operator<=>(const TunedKey&) const = default;
};

TunedKey tuned_key(const GemmProblem& problem, const DeviceModel& device);

// expected_us of the plan is the time that was measured. False, and nothing is set, where the plan
// asks for a tile order that no candidate has.
bool set_tuned_plan(const TunedKey& key, GemmPlan plan);

void clear_tuned_plans();

// Called once per process, on whichever thread needs the table first; fills it by set_tuned_plan.
using TunedLoader = void (*)();
void set_tuned_loader(TunedLoader loader);

// The tuned plan of the problem, else what select_gemm says. An entry without an activation also
// serves every activation that has none of its own.
GemmPlan choose_gemm(const GemmProblem& problem, const DeviceModel& device);

// The tuned plan alone; config == -1: there is none that this problem allows.
GemmPlan tuned_plan(const GemmProblem& problem, const DeviceModel& device);

// Changes whenever choose_gemm may answer differently than before.
uint64_t tuned_generation();

struct RecordedGemm {
  GemmProblem problem;  // without addresses
  DeviceModel device;
};

// Between the two calls choose_gemm notes every problem; start forgets cached plans, so that each
// one is seen.
void start_recording();
std::vector<RecordedGemm> stop_recording();

}  // namespace fusedops
