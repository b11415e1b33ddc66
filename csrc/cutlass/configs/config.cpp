#include "csrc/cutlass/configs/config.h"

#include <cstdio>

#include "csrc/cutlass/configs/cluster_configs.h"
#include "csrc/cutlass/configs/skinny_configs.h"
#include "csrc/cutlass/configs/sm80_configs.h"
#include "csrc/cutlass/configs/sm90_configs.h"

namespace fusedops {

int num_configs(Family family) {
  switch (family) {
    case Family::kSm80: return kNumSm80Configs;
    case Family::kSm90: return kNumSm90Configs;
    case Family::kSkinny: return kNumSkinnyConfigs;
    case Family::kCluster: return kNumClusterConfigs;
  }
  return 0;
}

const GemmConfig& config_of(Family family, int config) {
  switch (family) {
    case Family::kSm80: return kSm80Configs[config];
    case Family::kSm90: return kSm90Configs[config];
    case Family::kSkinny: return kSkinnyConfigs[config];
    case Family::kCluster: break;
  }
  return kClusterConfigs[config];
}

static const char* cluster_schedule(const ClusterConfig& config) {
  if (config.swapped) return "swapped";
  return config.cluster_n > 1 ? "split-k" : "plain";
}

std::string config_name(Family family, int config) {
  constexpr const char* kSchedules[] = {"multistage", "pingpong", "cooperative"};
  constexpr const char* kDepths[] = {"deep", "half", "third"};  // of kSkinny
  const GemmConfig& c = config_of(family, config);
  const char* schedule = family == Family::kSkinny    ? kDepths[c.tile_k - 1]
                         : family == Family::kCluster ? cluster_schedule(kClusterConfigs[config])
                                                      : kSchedules[static_cast<int>(c.schedule)];
  char name[80];
  std::snprintf(name, sizeof name, "%s %dx%d %s %dx%d", kFamilyNames[static_cast<int>(family)],
                c.tile_m, c.tile_n, schedule, c.cluster_m, c.cluster_n);
  return name;
}

}  // namespace fusedops
