#include "csrc/cutlass/launch/gated_gemm.h"

#include "csrc/common/int_math.h"
#include "csrc/cutlass/configs/alignment.h"
#include "csrc/cutlass/configs/stream_k_tail.h"
#include "csrc/cutlass/launch/gemm_launch.h"
#include "csrc/cutlass/launch/launch_memory.h"
#include "csrc/cutlass/select/families.h"
#include "csrc/cutlass/select/plan_cache.h"

namespace fusedops {
namespace {

// NOTE: zero-initialised before any dynamic initialiser runs.
GatedRunFn g_kernels[kNumGatedProducts][kNumDTypes][kNumSm90Configs];

// Measured: wider bands save up to 4 % where five matrices of the output's size pass by.
constexpr int raster_width_of(GatedProduct product) {
  return product == GatedProduct::kGradient ? 16 : 8;
}

// The output in tiles of `config`; a cluster holds `pair` of them.
struct TileGrid {
  int64_t tiles, clusters, pair;
};
TileGrid tiles_of(GatedProduct product, const GatedGemm& p, int config) {
  const GemmConfig& c = kSm90Configs[config];
  const int64_t columns = product == GatedProduct::kForward ? c.tile_n / 2 : c.tile_n;
  const int64_t tiles_m = ceil_div(p.m, c.tile_m), tiles_n = ceil_div(p.n, columns);
  return {tiles_m * tiles_n, ceil_div(tiles_m, c.cluster_m) * ceil_div(tiles_n, c.cluster_n),
          c.cluster_m * c.cluster_n};
}

// Less than a wave of tiles is better served by smaller ones and slices of K. Measured: what
// kGradient saves beside its product is more from two thirds of a wave on, for any K.
bool pays(GatedProduct product, const GatedGemm& p, const DeviceModel& device) {
  const int64_t tiles = tiles_of(product, p, first_gated_config(product)).tiles;
  return product == GatedProduct::kGradient ? tiles * 3 >= device.sm_count * 2
                                            : tiles >= device.sm_count;
}

bool has_tail(GatedProduct product, const GatedGemm& p, int config, const DeviceModel& device) {
  const auto [tiles, clusters, pair] = tiles_of(product, p, config);
  const int64_t slots = device.sm_count / pair;
  return stream_k_tail(clusters % slots, slots, ceil_div(p.k, 64)).helpers > 0;
}

// Both sums of kInput are one over twice as many steps of K.
GemmPlan plan_of(GatedProduct product, const GatedGemm& p, const DeviceModel& device) {
  GemmPlan plan{.family = Family::kSm90, .config = first_gated_config(product)};
  plan.raster_width = raster_width_of(product);
  if (product != GatedProduct::kInput) {
    if (has_tail(product, p, plan.config, device)) plan.k_split = KSplit::kTail;
    return plan;
  }
  GemmProblem both = p;
  both.k *= 2;
  const GemmPlan chosen = select_gemm_cached(both, device);
  const bool compiled = chosen.family == Family::kSm90 && gated_compiled(product, chosen.config);
  if (compiled && chosen.k_split != KSplit::kSlices) return chosen;
  plan.k_split = KSplit::kTail;  // where that saves something
  return plan;
}

// Fills in one pair of operands, as the kernels of this product read them; false when they cannot.
bool place(const MatrixView& a, const MatrixView& b, Major b_major, GemmProblem& p,
           const DeviceModel& device) {
  const OperandPlan plan = plan_operands(a, b, p, device);
  if (plan.pack_a || plan.pack_b) return false;
  p.a = plan.problem.a;
  p.b = plan.problem.b;
  return p.a.major == Major::kK && p.b.major == b_major && tma_refusal(p) == nullptr;
}

}  // namespace

void register_gated(GatedProduct product, DType dtype, int config, GatedRunFn run) {
  g_kernels[static_cast<int>(product)][static_cast<int>(dtype)][config] = run;
}

GatedRunFn find_gated(GatedProduct product, DType dtype, int config) {
  return g_kernels[static_cast<int>(product)][static_cast<int>(dtype)][config];
}

bool run_gated_gemm(const char* op, GatedProduct product, GatedGemm p,
                    const GatedOperands& operands, const LaunchScope& scope) {
  const DeviceModel device = device_model(scope);
  if (find_gated(product, p.dtype, first_gated_config(product)) == nullptr || !device.hopper()) {
    return false;
  }
  if (p.k == 0 || !pays(product, p, device)) return false;
  if (!aligned16(p.gate) || !aligned16(p.up) || p.gate_ld % 8 != 0) return false;
  const Major b_major = product == GatedProduct::kForward ? Major::kK : Major::kMN;
  GemmProblem second = p;
  if (!place(operands.a, operands.b, b_major, p, device)) return false;
  if (operands.b2) {
    if (!place(operands.a2.value_or(operands.a), *operands.b2, b_major, second, device)) {
      return false;
    }
    p.a2 = second.a;
    p.b2 = second.b;
  }
  const GemmPlan plan = plan_of(product, p, device);
  p.raster_width = plan.raster_width;
  Tensor exchanged;
  if (plan.k_split == KSplit::kTail) {
    const GemmConfig& tile = kSm90Configs[plan.config];
    exchanged = make_exchange_space(int64_t{tile.tile_m} * tile.tile_n, scope, p.exchange);
  }
  const char* failure = find_gated(product, p.dtype, plan.config)(p, scope.context());
  FUSEDOPS_CHECK(failure == nullptr, op, ": a kernel of the gated MLP did not run: ", failure);
  return true;
}

}  // namespace fusedops
